"""An exception at any stage of a step that a loop catches leaves what it leaves in a plain loop."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from openwafer.diagnostics import OpenwaferError
from tests.tables import some
from tests.training.stream.foreign_loops import Loop, are_equal, outcome, some_in_a_row

Stage = Callable[[Loop], Any]


class StoppedError(Exception):
    """What a hook raises."""


class Once:
    """A hook that raises when it is called for the `number`-th time."""

    def __init__(self, number: int = 1) -> None:
        self.left = number

    def __call__(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoppedError


def attempted(call: Callable[[], Any]) -> Any:
    """The call's result, when it is called again after an exception."""
    try:
        return call()
    except StoppedError:
        return call()


def in_a_forward(loop: Loop) -> None:
    loop.model.get_submodule("layers.1").register_forward_pre_hook(Once())
    attempted(lambda: loop.loss(3)).backward()
    loop.step()


def after_a_layer(loop: Loop) -> None:
    loop.model.get_submodule("layers.1").register_forward_hook(Once())
    attempted(lambda: loop.loss(3)).backward()
    loop.step()


def gradients(parameters: list[nn.Parameter]) -> list[Tensor | None]:
    found = [parameter.grad for parameter in parameters]
    return [None if gradient is None else gradient.clone() for gradient in found]


def after_a_layer_and_reads_gradients(loop: Loop) -> list[Tensor | None]:
    loop.backward(3)
    loop.model.get_submodule("layers.2").register_forward_hook(Once())
    with suppress(StoppedError):
        loop.loss(4)
    read = gradients(loop.parameters)
    loop.step()
    return read


def between_forward_and_backward(loop: Loop) -> None:
    def lines() -> Tensor:
        loss = loop.loss(3)
        raises()
        return loss

    raises = Once()
    attempted(lines).backward()
    loop.step()


def in_a_tensor_hook(loop: Loop) -> None:
    loop.parameters[3].register_hook(Once())
    attempted(lambda: loop.backward(3))
    loop.step()


def in_a_tensor_hook_and_zeroed(loop: Loop) -> None:
    def lines() -> None:
        loop.optimizer.zero_grad()
        loop.backward(3)

    loop.parameters[3].register_hook(Once())
    attempted(lines)
    loop.step()


def in_a_backward_hook(loop: Loop) -> None:
    loop.model.get_submodule("layers.1").register_full_backward_hook(Once())
    attempted(lambda: loop.backward(3))
    loop.step()


def in_a_backward_pre_hook(loop: Loop) -> None:
    loop.model.get_submodule("layers.2").register_full_backward_pre_hook(Once())
    attempted(lambda: loop.backward(3))
    loop.step()


def in_a_backward_and_reads_gradients(loop: Loop) -> list[Tensor | None]:
    loop.backward(4)
    loop.parameters[3].register_hook(Once())
    with suppress(StoppedError):
        loop.backward(3)
    # First those of the layer whose backward has failed.
    read = gradients(loop.parameters[4:])
    loop.step()
    return read


def in_a_backward_and_shrinks_weights(loop: Loop) -> None:
    loop.parameters[3].register_hook(Once())
    with suppress(StoppedError):
        loop.backward(3)
    with torch.no_grad():
        for parameter in loop.parameters:
            parameter.mul_(0.9)
    loop.step()


def between_backwards_without_forwards(loop: Loop) -> None:
    loop.backward(3)
    loop.parameters[3].register_hook(Once())
    with suppress(StoppedError):
        loop.backward(4)
    torch.stack([parameter.square().sum() for parameter in loop.parameters]).sum().backward()
    loop.step()


def in_the_second_backward(loop: Loop) -> None:
    loop.parameters[1].register_hook(Once(2))
    loop.backward(3)
    attempted(lambda: loop.backward(4))
    loop.step()


def between_clip_and_step(loop: Loop) -> Any:
    def lines() -> Tensor:
        norm = nn.utils.clip_grad_norm_(loop.parameters, 0.01)
        raises()
        return norm

    raises = Once()
    loop.backward(3)
    norm = attempted(lines)
    loop.step()
    return norm


def in_a_hook_before_the_step(loop: Loop) -> None:
    loop.optimizer.register_step_pre_hook(Once())
    loop.backward(3)
    attempted(loop.optimizer.step)
    loop.optimizer.zero_grad()


def in_the_second_hook_before_the_step(loop: Loop) -> None:
    loop.optimizer.register_step_pre_hook(lambda *_: None)
    loop.optimizer.register_step_pre_hook(Once()).remove()
    loop.optimizer.register_step_pre_hook(Once())
    loop.backward(3)
    attempted(loop.optimizer.step)
    loop.optimizer.zero_grad()


def in_a_hook_after_the_step(loop: Loop) -> None:
    loop.optimizer.register_step_post_hook(Once())
    loop.backward(3)
    attempted(loop.optimizer.step)
    loop.optimizer.zero_grad()


def in_a_closure(loop: Loop) -> None:
    def closure() -> Any:
        loop.optimizer.zero_grad()
        loss = loop.loss(3)
        loss.backward()
        raises()
        return loss

    raises = Once()
    attempted(lambda: loop.optimizer.step(closure))
    loop.optimizer.zero_grad()


def in_a_scheduler(loop: Loop) -> None:
    def rate(step: int) -> float:
        if step:
            raises()
        return 0.5**step

    raises = Once()
    scheduler = LambdaLR(loop.optimizer, rate)
    loop.backward(3)
    loop.step()
    attempted(scheduler.step)
    loop.train(2)


def in_a_scaled_step(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loop.optimizer.register_step_pre_hook(Once())
    scaler.scale(loop.loss(3)).backward()
    scaler.unscale_(loop.optimizer)
    attempted(lambda: scaler.step(loop.optimizer))
    scaler.update()
    loop.optimizer.zero_grad()


STAGES: list[Stage] = [
    in_a_forward,
    after_a_layer,
    after_a_layer_and_reads_gradients,
    between_forward_and_backward,
    in_a_tensor_hook,
    in_a_tensor_hook_and_zeroed,
    in_a_backward_hook,
    in_a_backward_pre_hook,
    in_a_backward_and_reads_gradients,
    in_a_backward_and_shrinks_weights,
    between_backwards_without_forwards,
    in_the_second_backward,
    between_clip_and_step,
    in_a_hook_before_the_step,
    in_the_second_hook_before_the_step,
    in_a_hook_after_the_step,
    in_a_closure,
    in_a_scheduler,
    in_a_scaled_step,
]


@pytest.mark.parametrize(("stage", "is_on_disk"), some_in_a_row(STAGES))
def test_a_caught_exception_leaves_what_it_leaves_in_a_plain_loop(
    stage: Stage, is_on_disk: bool, tmp_path: Any
) -> None:
    folder = tmp_path / "store" if is_on_disk else None
    expected = outcome(stage, streams=False)
    assert are_equal(outcome(stage, folder=folder), expected)


@pytest.mark.parametrize(
    "stage", some([in_a_backward_hook, in_a_backward_pre_hook], in_a_backward_pre_hook)
)
def test_a_module_hook_may_raise_in_the_backward_of_the_planned_step(stage: Stage) -> None:
    expected = outcome(stage, streams=False, trains_before=False)
    assert are_equal(outcome(stage, trains_before=False), expected)


class Weighing(nn.Linear):
    """A hook on a tensor of its forward."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        out.register_hook(Once())
        return out


def test_a_planned_step_whose_backward_raises_elsewhere_is_refused() -> None:
    told = "the backward of this step raises StoppedError\\(\\), and no plan can tell what it needs"
    with pytest.raises(OpenwaferError, match=told):
        outcome(Loop.train, build=lambda: Weighing(32, 32), trains_before=False)
