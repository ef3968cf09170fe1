"""Random loops over state_dicts, their hooks, and the memory of weights, gradients and states."""

import copy
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.training.fuzz.random_training import BACKWARDS, ENDS, Case, Loop, cases


def _casts(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    for name, value in list(state.items()):
        if name.startswith(prefix) and value.is_floating_point():
            state[name] = value.detach().to(torch.bfloat16)


def _adds(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    for name, value in list(state.items()):
        if name.startswith(prefix) and value.dim() == 2:
            state[name + "_T"] = value.detach().t().contiguous()


def _renames(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> Any:
    return {f"x.{name}" if name.startswith(prefix) else name: v for name, v in state.items()}


def _writes(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    for name, value in state.items():
        if name.startswith(prefix) and value.is_floating_point():
            value.detach().mul_(0.99)


def _norms(module: nn.Module, _prefix: str, _keeps_vars: bool) -> None:
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            parameter.clamp_(-0.9, 0.9)


CHANGES: tuple[Callable[[Tensor], object], ...] = (
    lambda value: value.mul_(0.9),
    lambda value: value.copy_(value * 0.5),
    lambda value: value.view(-1)[:3].fill_(0.25),
    lambda value: value.detach().flatten()[0:1].neg_(),
    lambda value: value.numpy().__imul__(0.75),
)


@dataclass
class StatesLoop(Loop):
    """A loop that saves, loads, holds and writes."""

    held: list[Tensor] = field(default_factory=list)
    saved: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.choices = random.Random(7)

    def end(self) -> None:
        for tensor in self.held:
            self.seen.append(tensor.detach().clone())
            tensor.detach().mul_(0.5)

    def _state(self) -> dict[str, Any]:
        part = self.choices.choice(list(self.model.modules()))
        return part.state_dict(prefix=self.choices.choice(["", "a."]))

    def _entry(self) -> Tensor:
        state = self.model.state_dict()
        # Hooks may have cast them all.
        names = [n for n, v in state.items() if v.dtype is torch.float32 and v.is_contiguous()]
        return state[self.choices.choice(sorted(names))] if names else torch.ones(4)

    def _optimizer_states(self) -> list[dict[str, Any]]:
        # Torch has them in the order in which they began.
        states = self.optimizer.state_dict()["state"]
        return [states[number] for number in sorted(states)]

    def _parameter(self) -> nn.Parameter:
        return self.choices.choice([p for p in self.model.parameters() if p.requires_grad])

    def hook_public(self) -> None:
        module = self.choices.choice(list(self.model.modules()))
        module.register_state_dict_post_hook(self.choices.choice([_casts, _adds, _writes]))

    def hook_private(self) -> None:
        register = self.model._register_state_dict_hook  # noqa: SLF001 - torch's own way to rename
        register(_renames)  # type: ignore[no-untyped-call]

    def hook_before(self) -> None:
        module = self.choices.choice(list(self.model.modules()))
        module.register_state_dict_pre_hook(_norms)

    def see_state(self) -> None:
        self.seen += [value.detach().clone() for value in self._state().values()]

    def write_state(self) -> None:
        self.choices.choice(CHANGES)(self._entry())

    def write_whole_state(self) -> None:
        for value in self.model.state_dict().values():
            if value.is_floating_point():
                value.mul_(0.98)

    def hold_state(self) -> None:
        self.held.append(self._entry())

    def write_held(self) -> None:
        if self.held:
            self.choices.choice(CHANGES)(self.choices.choice(self.held))

    def see_held(self) -> None:
        self.seen += [tensor.detach().clone() for tensor in self.held]

    def drop_held(self) -> None:
        self.held.clear()

    def keep_copy(self) -> None:
        self.saved.append(copy.deepcopy(self.model.state_dict()))

    def load_copy(self) -> None:
        if self.saved:
            self.model.load_state_dict(self.saved.pop(), strict=False)

    def save_file(self) -> None:
        file = io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], file)
        file.seek(0)
        model, optimizer = torch.load(file, weights_only=True)
        self.model.load_state_dict(model, strict=False)
        self.optimizer.load_state_dict(optimizer)

    def write_optimizer(self) -> None:
        for states in self._optimizer_states():
            for name, value in states.items():
                if isinstance(value, Tensor) and name != "step":
                    value.mul_(0.9)

    def hold_optimizer(self) -> None:
        for states in self._optimizer_states():
            self.held += [v for n, v in states.items() if isinstance(v, Tensor) and n != "step"][:1]

    def give_data(self) -> None:
        parameter = self._parameter()
        given = parameter.data.clone() * 0.9
        parameter.data = given
        given.mul_(1.1)
        self.held += [given] * self.choices.randrange(2)

    def give_gradient(self) -> None:
        parameter = self._parameter()
        given = torch.ones_like(parameter.data)
        parameter.grad = given
        given.mul_(0.1)
        self.held += [given] * self.choices.randrange(2)


HOOKS = ("hook_public", "hook_private", "hook_before")
LINES = (
    *("see_state", "write_state", "write_whole_state", "hold_state", "write_held", "see_held"),
    *("drop_held", "keep_copy", "load_copy", "save_file", "write_optimizer", "hold_optimizer"),
    *("give_data", "give_gradient", "clip", "evaluate", "read_norms", "read_gradients"),
)


@st.composite
def states_steps(draw: st.DrawFn) -> tuple[str, ...]:
    """The lines of one step."""
    lines = st.lists(st.sampled_from(LINES), max_size=3)
    hooks = draw(st.lists(st.sampled_from(HOOKS), max_size=1))
    backward = draw(st.sampled_from(BACKWARDS))
    return (*hooks, *draw(lines), backward, *draw(lines), *draw(st.sampled_from(ENDS)))


@st.composite
def states_cases(draw: st.DrawFn) -> Case:
    """A case of few steps; the first is plain, so that there are states."""
    case = draw(cases())
    steps = draw(st.lists(states_steps(), min_size=1, max_size=3))
    return replace(case, loop=replace(case.loop, steps=(("backward", "step", "zero"), *steps)))
