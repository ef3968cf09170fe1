"""An optimizer that is not written as a rule takes its own step, to its own bits."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import (
    ASGD,
    Adadelta,
    Adagrad,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.optim.lr_scheduler import OneCycleLR

from openwafer.training.store.update_rules import Lamb, from_torch
from openwafer.training.store.update_rules.rules import Cutting
from tests.examples import examples
from tests.tables import checkerboard
from tests.training.store.update_rules.foreign_optimizers import (
    Attributed,
    ClampedAdamW,
    Counting,
    RowNorms,
    SignMomentum,
)
from tests.training.store.update_rules.side_by_side import (
    Factory,
    SideBySide,
    gradients_of,
    parameters,
    run_side_by_side,
)

BY_ELEMENT: dict[str, Factory] = {
    "Adadelta": partial(Adadelta, lr=0.5, weight_decay=0.1),
    "Adadelta foreach": partial(Adadelta, lr=0.5, foreach=True, maximize=True),
    "Adagrad": partial(Adagrad, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.3),
    "Adagrad fused": partial(Adagrad, lr=0.05, weight_decay=0.1, fused=True),
    "Adagrad foreach": partial(Adagrad, lr=0.05, foreach=True, maximize=True),
    "Adamax": partial(Adamax, lr=0.05, weight_decay=0.1),
    "Adamax foreach": partial(Adamax, lr=0.05, foreach=True, maximize=True),
    "ASGD": partial(ASGD, lr=0.05, lambd=0.1, t0=3, weight_decay=0.1),
    "ASGD foreach": partial(ASGD, lr=0.05, t0=3, foreach=True),
    "NAdam": partial(NAdam, lr=0.05, weight_decay=0.1),
    "NAdam decoupled": partial(NAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "NAdam foreach": partial(NAdam, lr=0.05, foreach=True, maximize=True),
    "RAdam": partial(RAdam, lr=0.05, weight_decay=0.1),
    "RAdam decoupled": partial(RAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam foreach": partial(RAdam, lr=0.05, foreach=True),
    "RMSprop": partial(RMSprop, lr=0.05, weight_decay=0.1),
    "RMSprop centered": partial(RMSprop, lr=0.05, centered=True, momentum=0.9, maximize=True),
    "RMSprop foreach": partial(RMSprop, lr=0.05, momentum=0.9, foreach=True),
    "RMSprop tensor lr": partial(RMSprop, lr=torch.tensor(0.05)),
    "Rprop": partial(Rprop, lr=0.05),
    "Rprop foreach": partial(Rprop, lr=0.05, foreach=True, maximize=True),
}
WHOLE: dict[str, Factory] = {
    "Lamb": partial(Lamb, lr=0.05, weight_decay=0.1),
    "AdamW, clamped": partial(ClampedAdamW, lr=0.05),
    "AdamW, clamped, fused": partial(ClampedAdamW, lr=0.05, fused=True, amsgrad=True),
    "sign momentum": SignMomentum,
    "numbers for states": Counting,
    "state of another shape": RowNorms,
}
ALL = BY_ELEMENT | WHOLE


@pytest.mark.parametrize("name", ALL)
def test_ten_steps_are_equal(name: str) -> None:
    assert run_side_by_side(ALL[name], parameters()) == []


@pytest.mark.parametrize("name", ALL)
def test_a_parameter_may_skip_steps_under_a_scale(name: str) -> None:
    params = parameters(((17,), (63, 5), (4, 9)))
    both = SideBySide(ALL[name](params))
    for step in range(7):
        gradients = gradients_of(params, step)
        both.step({p: gradients[p] for i, p in enumerate(params) if (step + i) % 3}, 0.3718)
    assert both.differences() == []


@pytest.mark.parametrize(("name", "run_elements"), checkerboard(tuple(BY_ELEMENT), (64, 4160)))
def test_runs_do_not_change_the_bits(name: str, run_elements: int) -> None:
    params = parameters(((31, 173),))
    both = SideBySide(BY_ELEMENT[name](params), run_elements)
    for step in range(3):
        both.step(gradients_of(params, step), 0.5003)
    assert both.differences() == []


@pytest.mark.parametrize("name", WHOLE)
def test_a_foreign_step_gets_whole_tensors(name: str) -> None:
    (rule,) = from_torch(WHOLE[name](parameters(((3,),))))
    assert rule.cutting is Cutting.NEVER


@pytest.mark.parametrize("name", ["NAdam", "RMSprop centered", "Lamb", "AdamW, clamped"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_equal(name: str, dtype: torch.dtype) -> None:
    params = parameters(((17,), (101, 211)), dtype)
    assert run_side_by_side(ALL[name], params, num_steps=3, scale=0.5) == []


def test_groups_and_schedulers_are_those_of_the_loop() -> None:
    first, second, third = params = parameters(((17,), (63, 5), (4, 9)))
    groups = [{"params": [first, third], "lr": 0.1}, {"params": [second], "weight_decay": 0.2}]
    both = SideBySide(ClampedAdamW(groups, lr=0.01))
    scheduler = OneCycleLR(both.optimizer, [0.1, 0.2], total_steps=10)
    for step in range(8):
        both.step(gradients_of(params, step))
        scheduler.step()
    assert both.differences() == []


def test_a_gradient_is_as_the_step_leaves_it() -> None:
    (weight,), gradient = parameters(((5, 5),)), torch.full((5, 5), 2.0)
    SideBySide(ClampedAdamW([weight])).step({weight: gradient})
    assert torch.equal(gradient, torch.full((5, 5), 0.01))


def test_hooks_of_the_loop_are_not_called_for_each_parameter() -> None:
    params, calls = parameters(((3,), (4,))), list[object]()
    both = SideBySide(SignMomentum(params))
    both.optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    both.step(gradients_of(params, 0))
    assert len(calls) == 1


def test_attributes_that_no_parameter_has_may_be_asked_for() -> None:
    assert run_side_by_side(Attributed, parameters(((3,), (4,)))) == []


@examples(25, by_default=10, deadline=None)
@given(
    lr=st.floats(0, 1),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    eps=st.floats(1e-12, 1e-2),
    weight_decay=st.floats(0, 1),
    flags=st.fixed_dictionaries(
        {"amsgrad": st.booleans(), "maximize": st.booleans(), "foreach": st.booleans()}
    ),
)
def test_any_hyper_parameters_are_equal(
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    flags: dict[str, bool],
) -> None:
    class Own(AdamW):
        """Nothing of its own, so that the general way meets torch's arithmetic."""

    factory: Factory = partial(
        Own,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        **flags,  # type: ignore[arg-type]
    )
    assert run_side_by_side(factory, parameters(((7,), (5, 6))), num_steps=5) == []
