"""An optimizer that cannot update one parameter at a time is refused, and told why."""

import re
from collections.abc import Callable

import pytest
import torch
from torch.optim import LBFGS, Optimizer, SparseAdam

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.update_rules import from_torch
from openwafer.training.store.update_rules.translation import Translator
from tests.training.store.update_rules.foreign_optimizers import (
    AtOnce,
    Attributed,
    Borrowing,
    ClippedSgd,
    Colliding,
    Counting,
    Distance,
    Foreign,
    Knowing,
    Late,
    Listing,
    Lookahead,
    LoosePositions,
    Noisy,
    Patched,
    SignMomentum,
    Taking,
    Twice,
    Unguarded,
)
from tests.training.store.update_rules.side_by_side import parameters

REFUSED: dict[str, tuple[Callable[..., Optimizer], str]] = {
    "LBFGS": (LBFGS, "torch.optim.lbfgs.LBFGS cannot update streamed weights: its step calls a"),
    "closure": (Twice, "its step calls a closure, again and again, over all parameters at once"),
    "SparseAdam": (
        SparseAdam,
        "fails with RuntimeError: SparseAdam does not support dense gradients",
    ),
    "states at once": (AtOnce, "without states fails with KeyError: 'total'"),
    "clip": (ClippedSgd, "a step on all parameters at once changes the weights of small tensors"),
    "order": (
        LoosePositions,
        "at once changes its attribute 'factor' otherwise than a step on each",
    ),
    "group": (Distance, "at once changes 'distance' in its parameter groups otherwise than"),
    "random": (Noisy, "its step draws random numbers, whose order would be another"),
    "list": (Listing, "its state 'past' is of list, neither a tensor nor a number"),
    "name": (Colliding, "its state 'average' has a name that the store needs for itself"),
    "taking": (Taking, "its step takes gradients away, or makes some"),
    "alias": (Borrowing, "its state 'last' is the memory of a weight or a gradient"),
    "identity": (Knowing, "its attribute 'favourites' holds a parameter, so that its step knows"),
    "method": (Patched, "its attribute 'visit' holds a Patched, so that its step knows more than"),
    "wrapper": (Lookahead, "its attribute 'inner' holds a SGD, so that its step knows more than"),
    "unguarded": (Unguarded, "its step fails where a parameter has no gradient, as one may that"),
    "late": (Late, "Late has the states count, slow after this step, and count when the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name: str) -> None:
    build, text = REFUSED[name]
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        from_torch(build(parameters(((4, 3), (5,)))))


def test_an_attribute_of_a_parameter_is_not_passed_over() -> None:
    params = parameters(((4, 3), (5,)))
    params[1].lr_scale = 0.5  # type: ignore[attr-defined]
    with pytest.raises(OpenwaferError, match="reads the attribute 'lr_scale' of a parameter"):
        from_torch(Attributed(params))


class Switched(Foreign):
    """Clips by the norm over all parameters where its group says so."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        group = self.param_groups[0]
        if group["max_norm"]:
            torch.nn.utils.clip_grad_norm_(group["params"], group["max_norm"])
        return super().step(closure)

    visit = SignMomentum.visit


def test_an_option_that_couples_parameters_later_is_found() -> None:
    optimizer = Switched(parameters(((4, 3), (5,))), max_norm=0.0)
    translator = Translator(optimizer)
    assert len(translator.rules()) == 1
    optimizer.param_groups[0]["max_norm"] = 50.0
    with pytest.raises(OpenwaferError, match="changes the state 'momentum' of small"):
        translator.rules()


def test_a_warm_up_from_zero_hides_nothing() -> None:
    with pytest.raises(OpenwaferError, match="changes the weights of small tensors"):
        from_torch(ClippedSgd(parameters(((4, 3), (5,))), lr=0.0))


def test_trying_leaves_optimizer_and_generators_as_they_are() -> None:
    params, before = parameters(((4, 3), (5,))), torch.get_rng_state()
    optimizer = Counting(params)
    weights = [weight.detach().clone() for weight in params]
    from_torch(optimizer)
    assert torch.equal(before, torch.get_rng_state())
    assert not optimizer.state
    assert "step" not in optimizer.param_groups[0]
    assert all(map(torch.equal, weights, params))
