"""A step that calls other operators than the first one is told once, with its line."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present.step_watch import StepWatch
from openwafer.training.torch_private import current_function_mode
from tests.training.frontends.present_scripts import PresentScript, adamw, executor_of
from tests.training.frontends.session_scripts import clip

Step = Callable[[Tensor], Any]


class Script:
    """A linear model whose loss is made of its outputs around it."""

    def __init__(self, kind: str = "CSX") -> None:
        backend = cstorch.backend(kind)
        self.model = cstorch.compile(nn.Linear(2, 2), backend)
        self.optimizer = cstorch.optim.SGD(self.model.parameters(), lr=0.1)
        self.parameters = (p for p in self.model.parameters())
        self.number = 0

    def run(self, step: Step, batches: Sequence[Tensor] = (torch.ones(4, 2),) * 3) -> None:
        traced = cstorch.trace(step)
        for batch in executor_of(batches):
            traced(batch)

    def update(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def alike(self, batch: Tensor) -> None:
        self.update(self.model(batch).square().mean())

    def branching(self, batch: Tensor) -> None:
        self.number += 1
        output = self.model(batch)
        self.update(output.square().mean() if self.number < 2 else output.abs().mean())

    def clipping_once(self, batch: Tensor) -> None:
        loss = self.model(batch).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(list(self.parameters), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulating(self, batch: Tensor) -> None:
        self.number += 1
        loss = self.model(batch).square().mean()
        loss.backward()
        if self.number % 2:
            self.optimizer.step()
            torch.ones(1)


def test_steps_that_are_alike_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script()
    script.run(script.alike)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "branching",
            "calls abs of the shape (4, 2) where square of the shape (4, 2) was",
        ),
        ("clipping_once", "was called the first time"),
        ("accumulating", "was called the first time"),
    ],
)
def test_a_step_that_changes_is_told_once_with_its_line(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    script.run(getattr(script, name))
    told = capsys.readouterr().err
    assert words in told
    assert told.count("warning[present-step-changed]") == 1
    assert "at test_present_step_watch.py:" in told


def test_a_batch_of_another_shape_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script()
    script.run(script.alike, [torch.ones(4, 2), torch.ones(3, 2)])
    assert "square of the shape (3, 2) where square of the shape (4, 2)" in capsys.readouterr().err


class OnMachine(PresentScript):
    """The training run of the other tests, which begins to stream in its first step."""

    kind = "CSX"


def test_steps_of_a_model_that_begins_to_stream_are_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OnMachine(adamw, clip).train()
    assert capsys.readouterr().err == ""


def test_on_the_cpu_a_step_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script("CPU")
    script.run(script.branching)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("loss_of", [nn.CrossEntropyLoss(), nn.NLLLoss()])
def test_batches_of_int32_stay_so_and_losses_take_them_as_labels(loss_of: Any) -> None:
    script, seen = Script(), list[torch.dtype]()

    def step(labels: Tensor) -> None:
        seen.append(labels.dtype)
        loss_of(script.model(torch.ones(1, 2)), labels)

    script.run(step, [torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)])
    assert seen == [torch.int32, torch.int64]
    with pytest.raises(RuntimeError, match="Int"):
        loss_of(torch.ones(1, 2), torch.zeros(1, dtype=torch.int32))


class Passing(TorchFunctionMode):
    """A mode of a script."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("mode", "inside"), [(nullcontext, type(None)), (Passing, Passing)])
def test_nothing_is_watched_inside_the_model(mode: Any, inside: type) -> None:
    script, innermost = Script(), list[type]()
    script.model.register_forward_hook(lambda *_: innermost.append(type(current_function_mode())))

    def step(batch: Tensor) -> None:
        with mode():
            script.model(batch)
        innermost.append(type(current_function_mode()))

    script.run(step)
    assert innermost == [inside, StepWatch] * 3


class Asked(cstorch.optim.SGD):
    """Notes what watches its steps, which may fail."""

    innermost: Final = list[type]()
    fails = False

    def step(self, closure: Any = None) -> Any:
        self.innermost.append(type(current_function_mode()))
        if self.fails:
            raise ZeroDivisionError
        return super().step(closure)


def test_nothing_is_watched_inside_an_optimizer_also_behind_a_step_that_failed() -> None:
    script = Script()
    script.optimizer = optimizer = Asked(script.model.parameters(), lr=0.1)
    step = cstorch.trace(script.alike)
    for number, batch in enumerate(executor_of((torch.ones(4, 2),) * 3)):
        optimizer.fails = number == 1
        with pytest.raises(ZeroDivisionError) if optimizer.fails else nullcontext():
            step(batch)
        assert current_function_mode() is None
    assert len(optimizer.innermost) >= 3
    assert set(optimizer.innermost) == {type(None)}
