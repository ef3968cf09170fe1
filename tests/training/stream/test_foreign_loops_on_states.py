"""What loops do with state_dicts and with memory of weights: the bits of the plain loop."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from openwafer.training.frontends import stream_weights
from tests.training.stream.both_loops import STREAMED
from tests.training.stream.foreign_loops import (
    CAP,
    SIZE,
    Lines,
    Loop,
    Small,
    are_equal,
    new_loop,
    on_both_tiers,
    outcome,
    some_in_a_row,
)

WEIGHT = "layers.1.0.weight"


def copied(state: dict[str, Any]) -> list[Tensor]:
    return [value.detach().clone() for value in state.values()]


def renamed(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> Any:
    return {f"{prefix}x.{name}": value for name, value in state.items()}


def in_bf16(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: object) -> None:
    for name, value in list(state.items()):
        state[name] = value.detach().bfloat16()


def transposed(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    state[prefix + "weight_T"] = state[prefix + "weight"].t().contiguous()


class Saved(Small):
    """Has hooks of its own when it is wrapped: a private one, and public ones of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[Tensor] = []
        self._register_state_dict_hook(renamed)  # type: ignore[no-untyped-call]
        self.inlet.register_state_dict_post_hook(transposed)
        self.inlet.register_state_dict_pre_hook(
            lambda module, prefix, keeps: self.norms.append(self.inlet.weight.norm())
        )


def saves_by_hooks_of_the_model(loop: Loop) -> Any:
    return copied(loop.model.state_dict()), loop.model.get_submodule("inlet").state_dict()


def saves_by_hooks_of_the_loop(loop: Loop) -> Any:
    loop.model.register_state_dict_post_hook(in_bf16)
    loop.model.get_submodule("layers.0.0").register_state_dict_post_hook(transposed)
    return copied(loop.model.state_dict()), copied(loop.model.get_submodule("layers").state_dict())


def saves_with_a_prefix(loop: Loop) -> Any:
    state = loop.model.get_submodule("layers").state_dict(prefix="a.")
    assert "a.0.0.weight" in state
    return copied(state), copied(loop.model.state_dict(keep_vars=True))


def writes_into_a_state(loop: Loop) -> None:
    for value in loop.model.state_dict().values():
        value.mul_(0.9)
    loop.model.get_submodule("layers").state_dict()["1.0.bias"][3:] = 0.5


def averages_into_a_state(loop: Loop) -> None:
    average = copy.deepcopy(loop.model.state_dict())
    for name, value in loop.model.state_dict().items():
        average[name].mul_(0.5).add_(value, alpha=0.25)
        value.copy_(average[name])


def holds_a_state(loop: Loop) -> Any:
    held, taken = loop.model.state_dict(), copy.deepcopy(loop.model.state_dict())
    loop.train(2)
    return copied(held), copied(taken)


def holds_states_of_the_optimizer(loop: Loop) -> Any:
    held = loop.optimizer.state_dict()["state"][1]["exp_avg"]
    held.mul_(0.5)
    loop.train(1)
    return held


def saves_and_loads_files(loop: Loop) -> Any:
    file = io.BytesIO()
    torch.save([loop.model.state_dict(), loop.optimizer.state_dict()], file)
    loop.train(1)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    loop.model.load_state_dict(states[0])
    loop.optimizer.load_state_dict(states[1])
    loaded: dict[str, Tensor] = load(save(loop.model.state_dict()))
    return [loaded[name] for name in sorted(loaded)]


def writes_into_numpy(loop: Loop) -> Any:
    parameter = loop.model.get_parameter(WEIGHT)
    parameter.detach().numpy()[3] = 0.25
    held = loop.model.state_dict()[WEIGHT].numpy()
    loop.train(1)
    with pytest.raises(RuntimeError, match="that requires grad"):
        parameter.numpy()
    return torch.from_numpy(held.copy()), torch.tensor(parameter.tolist())


def drops_data_that_it_wrote(loop: Loop) -> Any:
    parameter = loop.model.get_parameter(WEIGHT)
    given = parameter.data * 0.5
    parameter.data = given
    given.neg_()
    del given
    loop.train(1)
    return parameter.data.clone()


def drops_a_gradient_that_it_wrote(loop: Loop) -> Any:
    parameter = loop.model.get_parameter(WEIGHT)
    given = torch.ones(SIZE, SIZE)
    parameter.grad = given
    given.mul_(3)
    del given
    loop.backward(4)
    assert parameter.grad is not None
    return parameter.grad.clone()


def trains_in_flat_buffers(loop: Loop) -> Any:
    sizes = [p.numel() for p in loop.parameters]
    weights, gradients = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    for p, w, g in zip(loop.parameters, weights.split(sizes), gradients.split(sizes), strict=True):
        p.data, p.grad = w.view_as(p).copy_(p.data), g.view_as(p)
    seen = []
    for step in range(3):
        loop.backward(step)
        nn.utils.clip_grad_norm_(loop.parameters, 0.1)
        gradients.mul_(0.5)
        loop.optimizer.step()
        seen += [gradients.clone(), weights.mul_(0.99).clone(), loop.parameters[1].data.t().clone()]
        gradients.zero_()
    return seen


def keeps_gradients_that_are_zeroed(loop: Loop) -> Any:
    loop.backward(3)
    held = [p.grad for p in loop.parameters]
    seen = []
    for step in range(2):
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none=False)
        loop.backward(step)
        seen += [gradient.clone() for gradient in held if gradient is not None]
    return seen


LINES: list[Lines] = [
    *(saves_by_hooks_of_the_model, saves_by_hooks_of_the_loop, saves_with_a_prefix),
    *(writes_into_a_state, averages_into_a_state, holds_a_state, holds_states_of_the_optimizer),
    *(saves_and_loads_files, writes_into_numpy, drops_data_that_it_wrote),
    *(drops_a_gradient_that_it_wrote, keeps_gradients_that_are_zeroed, trains_in_flat_buffers),
]


# The first has a model of its own.
@pytest.mark.parametrize(
    ("lines", "is_on_disk"), [*on_both_tiers(LINES[:1]), *some_in_a_row(LINES[1:])]
)
def test_a_loop_sees_and_leaves_what_it_does_plainly(
    lines: Lines, is_on_disk: bool, tmp_path: Path
) -> None:
    build = Saved if lines is saves_by_hooks_of_the_model else Small
    found = outcome(lines, build=build, folder=tmp_path / "store" if is_on_disk else None)
    assert are_equal(found, outcome(lines, build=build, streams=False))


def test_a_gradient_of_the_loops_own_is_clipped_where_it_lies() -> None:
    loop = new_loop()
    with stream_weights(loop.model, loop.optimizer, device_memory=CAP, options=STREAMED) as stream:
        loop.train(1)
        given = loop.parameters[1].grad = torch.ones(SIZE, SIZE)
        loop.backward(1)
        before, norm = given.clone(), stream.clip_grad_norm_(0.1)
        assert torch.equal(given, before * (0.1 / (norm + 1e-6)))


def test_what_a_loop_holds_is_the_models_after_the_close() -> None:
    loop = new_loop()
    with stream_weights(loop.model, loop.optimizer, device_memory=CAP, options=STREAMED):
        loop.train(1)
        given = loop.parameters[1].grad = torch.ones(SIZE, SIZE)
        held = loop.model.state_dict()[WEIGHT]
    held.fill_(2.0)
    assert loop.parameters[1].grad is not None
    assert loop.parameters[1].grad.data_ptr() == given.data_ptr()
    assert torch.equal(loop.model.get_parameter(WEIGHT), held)
