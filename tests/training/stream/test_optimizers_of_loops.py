"""A loop keeps its optimizer, whoever wrote it: weights, states and their way back and forth."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils import _pytree as pytree

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import StreamedLoop, stream_weights
from openwafer.training.store.update_rules import Lamb, Lion
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import checkerboard, some
from tests.training.store.update_rules.foreign_optimizers import (
    ClampedAdamW,
    ClippedSgd,
    Counting,
    Lookahead,
    Preinitialized,
    RowNorms,
    SignMomentum,
)
from tests.training.stream.axes import TIERS
from tests.training.stream.both_loops import STREAMED

SIZE = 48
WHOLE_MODEL = {torch.optim.LBFGS, torch.optim.SparseAdam}

Build = Callable[..., Optimizer]
OPTIMIZERS: dict[str, Build] = {
    **{
        name: partial(kind, lr=0.02)  # type: ignore[call-arg]  # all but their parent take it
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, Optimizer)
        and kind not in {Optimizer, *WHOLE_MODEL}
    },
    **{
        kind.__name__: kind
        for kind in (Lamb, Lion, ClampedAdamW, Counting, Preinitialized, RowNorms, SignMomentum)
    },
}
OPTIONS = {"RMSprop": {"centered": True, "momentum": 0.9}, "SGD": {"momentum": 0.9}}


def new_model() -> nn.Module:
    """Two kinds of layers without biases, as Muon takes matrices alone."""
    torch.manual_seed(0)
    sizes = ((SIZE, SIZE), (SIZE, 2 * SIZE), (2 * SIZE, SIZE), (SIZE, SIZE))
    return nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))


class Loop:
    """A model, its optimizer of two groups, and a scheduler."""

    def __init__(self, name: str, *, is_scheduled: bool = True) -> None:
        self.is_scheduled = is_scheduled
        self.model = new_model()
        first, *others = self.model.parameters()
        groups = [{"params": others}, {"params": [first], "lr": 0.01}]
        self.optimizer = OPTIMIZERS[name](groups, **OPTIONS.get(name, {}))
        cycles = "momentum" in self.optimizer.defaults or "betas" in self.optimizer.defaults
        self.scheduler = OneCycleLR(
            self.optimizer, [0.02, 0.01], total_steps=20, cycle_momentum=cycles
        )

    def run(self, steps: range) -> "Loop":
        for step in steps:
            torch.manual_seed(step)
            self.model(torch.randn(8, SIZE)).pow(2).mean().backward()
            self.optimizer.step()
            if self.is_scheduled:
                self.scheduler.step()
            self.optimizer.zero_grad()
        return self

    def state(self) -> tuple[Any, Any]:
        return copy.deepcopy((dict(self.model.state_dict()), self.optimizer.state_dict()))

    def load(self, state: tuple[Any, Any]) -> "Loop":
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        return self


@contextmanager
def streamed(
    loop: Loop, tier: StoreTier = StoreTier.DRAM, folder: Path | None = None
) -> Iterator[StreamedLoop]:
    options = replace(STREAMED, tier=tier, host_memory_bytes=1 << 20)
    with stream_weights(
        loop.model, loop.optimizer, device_memory="200KiB", folder=folder, options=options
    ) as handle:
        yield handle


def differing(found: Any, expected: Any) -> list[str]:
    """Paths of the leaves that are not equal: tensors by bits, numbers by type and value."""
    left, right = (dict(pytree.tree_flatten_with_path(each)[0]) for each in (found, expected))
    assert left.keys() == right.keys()
    return [pytree.keystr(path) for path in left if not _is_equal(left[path], right[path])]


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype is right.dtype and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize(("name", "tier"), checkerboard(tuple(OPTIMIZERS), TIERS, one_in=8))
def test_weights_and_states_are_those_of_the_plain_loop(
    tmp_path: Path, name: str, tier: StoreTier
) -> None:
    loop = Loop(name)
    with streamed(loop, tier, tmp_path / "store"):
        assert differing(loop.run(range(6)).state(), Loop(name).run(range(6)).state()) == []


@pytest.mark.parametrize("name", some(OPTIMIZERS, "ASGD", "Counting", "Preinitialized"))
def test_states_go_from_plain_loop_to_stream_and_back(name: str) -> None:
    loop = Loop(name).run(range(2))
    with streamed(loop):
        loop.run(range(2, 4))
    expected = Loop(name).run(range(6)).state()
    assert differing(loop.run(range(4, 6)).state(), expected) == []


NOT_RULES = [
    *("Adagrad", "NAdam", "ASGD", "Lamb", "ClampedAdamW", "Counting", "SignMomentum"),
    "Preinitialized",
]


@pytest.mark.parametrize("name", some(NOT_RULES, "ASGD", "SignMomentum"))
def test_saved_states_are_loaded_by_either_loop(name: str) -> None:
    new_loop = partial(Loop, name, is_scheduled=False)
    saved = new_loop().run(range(3)).state()
    loop = new_loop().run(range(1))
    with streamed(loop):
        loop.run(range(1)).load(saved)
        again = new_loop().load(loop.state()).run(range(3, 5))
        expected = new_loop().load(saved).run(range(3, 5)).state()
        assert differing(again.state(), expected) == []
        assert differing(loop.run(range(3, 5)).state(), expected) == []


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam, ClippedSgd, Lookahead])
def test_a_whole_model_method_is_refused_before_the_first_forward_runs(
    kind: Build,
) -> None:
    model = new_model()
    before = copy.deepcopy(model.state_dict())
    stream_weights(
        model, kind(model.parameters(), lr=0.1), device_memory="200KiB", options=STREAMED
    )
    with pytest.raises(OpenwaferError, match="cannot update streamed weights: "):
        model(torch.randn(8, SIZE))
    assert differing(dict(model.state_dict()), dict(before)) == []


def test_a_step_that_calls_its_parents_is_one_step() -> None:
    model = new_model()
    torch.optim.AdamW(model.parameters())  # from now on torch calls hooks in the parent's step, too
    optimizer = ClampedAdamW(model.parameters())
    with stream_weights(model, optimizer, device_memory="200KiB", options=STREAMED) as handle:
        model(torch.randn(8, SIZE)).sum().backward()
        numbers = iter(range(2))
        assert optimizer.step(lambda: float(next(numbers))) == 0.0
        assert next(numbers) == 1
        assert len(list(handle.weights())) == 4


def found_by_hook(*, is_streamed: bool, is_early: bool) -> list[Any]:
    """What a hook behind each step finds, registered before the first forward or behind it."""
    loop, found = Loop("AdamW"), list[Any]()

    def look(optimizer: Optimizer, *_: object) -> None:
        gradients = [parameter.grad for parameter in loop.model.parameters()]
        found.append(copy.deepcopy((optimizer.state_dict(), len(optimizer.state), gradients)))

    with streamed(loop) if is_streamed else nullcontext():
        if is_early:
            loop.optimizer.register_step_post_hook(look)
        loop.model(torch.randn(8, SIZE))
        if not is_early:
            loop.optimizer.register_step_post_hook(look)
        loop.run(range(2))
    return found


@pytest.mark.parametrize("is_early", [True, False])
def test_a_hook_behind_the_step_finds_states_and_gradients(is_early: bool) -> None:
    plain, stream = (found_by_hook(is_streamed=b, is_early=is_early) for b in (False, True))
    assert plain[0][1] == 4
    assert differing(stream, plain) == []


def train_beside_adamw(model: nn.Module, *, is_streamed: bool) -> dict[str, torch.Tensor]:
    first, *others = model.parameters()
    counting, adamw = Counting([first], lr=0.1), torch.optim.AdamW(others)
    scheduler = StepLR(counting, 1, 0.5)
    if is_streamed:
        stream_weights(model, (counting, adamw), device_memory="200KiB", options=STREAMED)
    for step in range(4):
        torch.manual_seed(step)
        model(torch.randn(8, SIZE)).pow(2).mean().backward()
        counting.step()
        scheduler.step()
        adamw.step()
        model.zero_grad()
    return dict(model.state_dict())


def test_each_of_several_optimizers_is_read_at_its_own_step() -> None:
    streamed, plain = (train_beside_adamw(new_model(), is_streamed=b) for b in (True, False))
    assert differing(streamed, plain) == []


def train_without_zeroing(loop: Loop) -> list[torch.Tensor]:
    """Gradients after each step, and the weights; a clip comes between backward and step."""
    held = list(loop.model.parameters())
    seen = []
    for step in range(3):
        torch.manual_seed(step)
        loop.model(torch.randn(8, SIZE)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(held, 0.5)
        loop.optimizer.step()
        seen += [weight.grad.clone() for weight in held if weight.grad is not None]
    return seen


@pytest.mark.parametrize("tier", TIERS)
def test_gradients_that_a_step_writes_to_are_found_so(tmp_path: Path, tier: StoreTier) -> None:
    loop, plain = Loop("ClampedAdamW"), Loop("ClampedAdamW")
    with streamed(loop, tier, tmp_path / "store"):
        assert differing(train_without_zeroing(loop), train_without_zeroing(plain)) == []
        assert differing(loop.state(), plain.state()) == []


def test_gradients_that_nobody_has_read_are_given_back_as_the_step_left_them() -> None:
    loop, plain = Loop("ClampedAdamW"), Loop("ClampedAdamW")
    with streamed(loop):
        for each in (loop, plain):
            torch.manual_seed(0)
            each.model(torch.randn(8, SIZE)).sum().backward()
            each.optimizer.step()
    found, expected = ([p.grad for p in each.model.parameters()] for each in (loop, plain))
    assert differing(found, expected) == []


def test_a_state_too_many_is_refused() -> None:
    loop = Loop("SignMomentum").run(range(1))
    loop.optimizer.state[loop.model[0].weight]["other"] = torch.zeros(3)  # type: ignore[index]
    text = "has the state 'other', and the optimizer keeps momentum"
    with streamed(loop), pytest.raises(OpenwaferError, match=text):
        loop.run(range(1))


def test_a_number_of_another_type_is_refused() -> None:
    loop = Loop("Counting").run(range(1))
    loop.optimizer.state[loop.model[0].weight]["count"] = 1.0  # type: ignore[index]
    text = r"the state 'count' of '0\.weight' is the float 1\.0, and the optimizer keeps \(\) torch"
    with streamed(loop), pytest.raises(OpenwaferError, match=text):
        loop.run(range(1))
