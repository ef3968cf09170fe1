"""The same gradients through a torch optimizer and through its rules, for comparison by bits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch.optim import Optimizer

from openwafer.training.store.update_rules import (
    ParamUpdate,
    UpdateRule,
    build_optimizer,
    from_torch,
    update_parameter,
)
from openwafer.training.store.update_rules.translation import Translator
from openwafer.training.store.update_rules.update_pass import state_specs

Factory = Callable[[Sequence[torch.nn.Parameter]], Optimizer]

# A scalar, vector tails of every kind, and one tensor that takes torch's threaded path and is cut.
SHAPES = ((), (1,), (17,), (63, 5), (3, 4, 5), (211, 317))


@dataclass
class StoredParam:
    """What the store keeps for one parameter."""

    weight: torch.Tensor
    states: dict[str, torch.Tensor]
    num_updates: int = 0


@dataclass
class SideBySide:
    """A resident loop and the store's copy of its parameters."""

    optimizer: Optimizer
    run_elements: int = 1 << 14
    stored: dict[torch.nn.Parameter, StoredParam] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.translator = Translator(self.optimizer)
        rules = self.translator.rules()
        for rule, group in zip(rules, self.optimizer.param_groups, strict=True):
            for parameter in group["params"]:
                specs = state_specs(rule, tuple(parameter.shape), parameter.dtype)
                states = {s.name: torch.full(s.shape, s.fill, dtype=s.dtype) for s in specs}
                self.stored[parameter] = StoredParam(parameter.detach().clone(), states)

    def step(
        self, gradients: Mapping[torch.nn.Parameter, torch.Tensor], scale: float = 1.0
    ) -> None:
        """One step on both sides, which only reads gradients; those without one skip it."""
        rules = self.translator.rules()
        for parameter in self.stored:
            # Autograd, too, gives a gradient the strides of its parameter.
            gradient = gradients.get(parameter)
            parameter.grad = None if gradient is None else (gradient * scale).contiguous()
        self.optimizer.step()
        for rule, group in zip(rules, self.optimizer.param_groups, strict=True):
            params = [parameter for parameter in group["params"] if parameter in gradients]
            for parameter in params:
                before = gradients[parameter].clone()
                update = self._update(parameter, gradients[parameter])
                update_parameter(rule, update, gradient_scale=scale, run_elements=self.run_elements)
                self.stored[parameter].num_updates += 1
                if not self.translator.writes_gradients:
                    assert torch.equal(gradients[parameter], before)

    def _update(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> ParamUpdate:
        stored = self.stored[parameter]
        return ParamUpdate(stored.weight, gradient, stored.states, stored.num_updates)

    def differences(self) -> list[str]:
        """Every array whose bits are not those of the optimizer."""
        return [
            f"{name} of {tuple(parameter.shape)}"
            for parameter, stored in self.stored.items()
            for name, ours, theirs in self._pairs(parameter, stored)
            if not torch.equal(ours, theirs)
        ]

    def _pairs(
        self, parameter: torch.nn.Parameter, stored: StoredParam
    ) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        yield "weight", stored.weight, parameter.detach()
        for name, state in stored.states.items():
            found = self.optimizer.state[parameter].get(name, torch.zeros_like(state))
            is_number = not isinstance(found, torch.Tensor)
            yield name, state, torch.tensor(found, dtype=state.dtype) if is_number else found


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> list[torch.nn.Parameter]:
    """Parameters with normal values from one seed."""
    source = torch.Generator().manual_seed(7)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=source, dtype=dtype)) for shape in shapes
    ]


def gradients_of(
    params: Sequence[torch.nn.Parameter], step: int
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Gradients of a step, over many magnitudes."""
    return {p: _gradient(tuple(p.shape), p.dtype, step) for p in params}


@cache
def _gradient(shape: tuple[int, ...], dtype: torch.dtype, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 + step)
    values = torch.randn(shape, generator=source)
    magnitudes = 10 ** (6 * torch.rand(shape, generator=source) - 5)
    return (values * magnitudes).to(dtype)


def run_side_by_side(
    factory: Factory,
    params: Sequence[torch.nn.Parameter],
    *,
    num_steps: int = 10,
    scale: float = 1.0,
) -> list[str]:
    """Differences after some steps."""
    both = SideBySide(factory(params))
    for step in range(num_steps):
        both.step(gradients_of(params, step), scale)
    return both.differences()


def build_rule(name: str, options: Mapping[str, object] | None = None) -> UpdateRule:
    """The rule of an optimizer by name, under `options`."""
    return from_torch(build_optimizer(name, [torch.empty(1, 1)], options))[0]
