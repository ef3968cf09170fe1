"""Tries on small tensors whether an optimizer may update one parameter at a time.

A foreign step may take a norm over all gradients, draw random numbers, count the parameters it
meets. So before anything is laid out for it, an optimizer of its class and options takes some steps
over small random tensors, once over all of them and once as the parameter store would do it: in
another order, each parameter by itself, while the loop's own optimizer steps without gradients.
Both must end with the same bits in weights, states, parameter groups and attributes.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.store.update_rules.own_step import (
    KnownStates,
    OwnStepRule,
    Snapshot,
    hyper_parameters,
    own_attributes,
    take_step,
    unsupported,
)

# Of gradients, by step: a norm over all of them is clipped to whatever bound in some.
SCALES: Final = (1.0, 1e-3, 1.0, 0.0, 1e2, 1.0, 1e4, 1e-3, 1.0, 1e10, 1.0, 1.0)
MISSED_LATER: Final = 7
LEARNING_RATE: Final = 0.03  # a warm-up begins at 0, by which nothing could be seen
MAX_SIZE: Final = 6
MAX_PARAMETERS: Final = 16  # of a group

Kind = tuple[tuple[int, ...], torch.dtype]
_PLAIN: Final = (type(None), str, bytes, bool, int, float, complex, torch.dtype, torch.device)


def require_separable(optimizer: Optimizer, *, keeps_masters: bool) -> bool:
    """Raise `optimizer-unsupported` unless parameters can be updated one at a time.

    Reads the optimizer and leaves it, and every random generator of torch, as they are. Returns
    whether a step writes to the gradients.
    """
    kind = type(optimizer)
    if _needs_closure(kind):
        raise unsupported(
            kind, "its step calls a closure, again and again, over all parameters at once"
        )
    _require_no_parameters(optimizer)
    with torch.random.fork_rng(devices=()):
        trial = _Trial(_learning(Snapshot.of(optimizer)), _kinds(optimizer, keeps_masters))
        for number, scale in enumerate(SCALES):
            trial.step(number, scale)
    return trial.writes_gradients


def _needs_closure(kind: type[Optimizer]) -> bool:
    _, *others = inspect.signature(kind.step).parameters.values()
    fixed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(other.default is other.empty and other.kind in fixed for other in others)


def _require_no_parameters(optimizer: Optimizer) -> None:
    """An attribute that knows the model's parameters would not know those of the store."""
    held = {id(p) for p in parameters_of(optimizer)}
    for name, value in own_attributes(optimizer).items():
        for leaf in map(_owner, _leaves(value)):
            is_known = id(leaf) in held or (isinstance(leaf, int) and leaf in held)
            if is_known or isinstance(leaf, nn.Parameter | nn.Module | Optimizer):
                raise unsupported(
                    type(optimizer),
                    f"its attribute '{name}' holds {'a parameter' if is_known else _type(leaf)}, "
                    "so that its step knows more than the parameter it updates",
                )


def _owner(value: object) -> object:
    """That of a method, which holds it."""
    return value.__self__ if isinstance(value, MethodType) else value


def _type(value: object) -> str:
    return f"a {type(value).__name__}"


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, *_leaves(item))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _kinds(optimizer: Optimizer, keeps_masters: bool) -> list[list[Kind]]:
    """Shapes and dtypes for the trial, by group: those there are, and small."""
    found = [
        [_small(parameter, keeps_masters) for parameter in group["params"][:MAX_PARAMETERS]]
        for group in optimizer.param_groups
    ]
    # One tensor alone would show nothing.
    return [kinds * 2 if len(kinds) == 1 else kinds for kinds in found]


def _small(parameter: torch.Tensor, keeps_masters: bool) -> Kind:
    dtype = parameter.dtype
    shape = tuple(min(size, MAX_SIZE) for size in parameter.shape)
    return shape, torch.float32 if keeps_masters and dtype is torch.bfloat16 else dtype


def _learning(snapshot: Snapshot) -> Snapshot:
    groups = [
        {**group, "lr": _rate_like(group["lr"])} if group.get("lr") is not None else group
        for group in snapshot.groups
    ]
    return replace(snapshot, groups=tuple(groups))


def _rate_like(rate: Any) -> Any:
    is_tensor = isinstance(rate, torch.Tensor)
    return torch.full_like(rate, LEARNING_RATE) if is_tensor else LEARNING_RATE


@dataclass
class _Stored:
    """One parameter as the store has it."""

    group: int
    weight: torch.Tensor
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    num_updates: int = 0


class _Trial:
    def __init__(self, snapshot: Snapshot, kinds: Sequence[Sequence[Kind]]) -> None:
        self._kind = snapshot.kind
        self._foreign_attributes = snapshot.foreign_attributes
        self._known: KnownStates = {}
        self.writes_gradients = False
        self._source = torch.Generator().manual_seed(20)
        drawn = {
            number: [self._draw(shape, dtype) for shape, dtype in group]
            for number, group in enumerate(kinds)
        }
        self._plain = self._over(snapshot, drawn)
        # Steps without gradients, as the loop's own does while its model is streamed.
        self._live = self._over(snapshot, drawn)
        self._stored = [
            _Stored(n, weight.clone()) for n, group in drawn.items() for weight in group
        ]

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=self._source).to(dtype)

    @staticmethod
    def _over(snapshot: Snapshot, drawn: Mapping[int, Sequence[torch.Tensor]]) -> Optimizer:
        return snapshot.over(
            {n: [nn.Parameter(weight.clone()) for weight in group] for n, group in drawn.items()}
        )

    def step(self, number: int, scale: float) -> None:
        gradients = [
            self._draw(tuple(one.weight.shape), one.weight.dtype) * scale for one in self._stored
        ]
        # One parameter misses the first step, and one another. In the others all take part.
        missed = {0: 0, MISSED_LATER: len(gradients) - 1}.get(number)
        has_gradient = [index != missed for index in range(len(gradients))]
        for parameter, gradient, has in zip(
            parameters_of(self._plain), gradients, has_gradient, strict=True
        ):
            parameter.grad = gradient.clone() if has else None
        before = torch.get_rng_state()
        self._take(self._plain)
        self._note_gradients(gradients, has_gradient)
        if not torch.equal(before, torch.get_rng_state()):
            raise self._refusal("its step draws random numbers, whose order would be another")
        self._step_apart(gradients, has_gradient)
        self._compare()

    def _note_gradients(self, given: Sequence[torch.Tensor], has_gradient: Sequence[bool]) -> None:
        for parameter, gradient, has in zip(
            parameters_of(self._plain), given, has_gradient, strict=True
        ):
            if has is (parameter.grad is None):
                raise self._refusal("its step takes gradients away, or makes some")
            if has and not _same(parameter.grad, gradient):
                self.writes_gradients = True

    def _take(self, optimizer: Optimizer) -> None:
        try:
            take_step(optimizer)
        except Exception as cause:
            if "NoneType" in str(cause) and any(p.grad is None for p in parameters_of(optimizer)):
                raise self._refusal(
                    "its step fails where a parameter has no gradient, as one may that a backward "
                    f"did not reach ({cause})",
                    help_text="let the step pass over parameters whose grad is None, as the "
                    "optimizers of torch do",
                ) from cause
            why = "its step on small tensors without states fails with "
            raise self._refusal(f"{why}{type(cause).__name__}: {cause}") from cause

    def _step_apart(self, gradients: Sequence[torch.Tensor], has_gradient: Sequence[bool]) -> None:
        attributes = self._foreign_attributes
        snapshot = replace(Snapshot.of(self._live), foreign_attributes=attributes)
        self._take(self._live)
        for index in reversed(range(len(gradients))):
            if has_gradient[index]:
                stored = self._stored[index]
                rule = OwnStepRule(snapshot, stored.group, known=self._known)
                try:
                    _update(rule, stored, gradients[index])
                except OpenwaferError:
                    raise
                except Exception as cause:
                    why = "its step fails on one parameter by itself with "
                    raise self._refusal(f"{why}{type(cause).__name__}: {cause}") from cause

    def _compare(self) -> None:
        twins = zip(
            parameters_of(self._plain), parameters_of(self._live), self._stored, strict=True
        )
        for plain, live, stored in twins:
            if self._live.state.get(live):
                raise self._refusal("its step makes states for parameters without a gradient")
            if not _same(plain.detach(), stored.weight):
                raise self._apart("the weights of small tensors")
            self._compare_states(self._plain.state.get(plain, {}), plain, stored)
        if not self._plain.state.keys() <= set(parameters_of(self._plain)):
            raise self._refusal("it has states that are no parameter's")
        groups = [[hyper_parameters(g) for g in o.param_groups] for o in (self._plain, self._live)]
        for name in sorted({name for group in groups[0] for name in group}):
            if not _same(*([group.get(name) for group in each] for each in groups)):
                raise self._apart(f"'{name}' in its parameter groups")
        for name, value in own_attributes(self._plain).items():
            if not _same(value, own_attributes(self._live).get(name)):
                raise self._apart(f"its attribute '{name}'")

    def _compare_states(
        self, state: Mapping[str, Any], parameter: nn.Parameter, stored: _Stored
    ) -> None:
        lent = {
            tensor.untyped_storage().data_ptr()
            for tensor in (parameter, parameter.grad)
            if tensor is not None and tensor.numel()
        }
        for name, value in state.items():
            kept = stored.states[name]
            expected = (
                value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=kept.dtype)
            )
            if expected.untyped_storage().data_ptr() in lent:
                raise self._refusal(f"its state '{name}' is the memory of a weight or a gradient")
            if not _same(expected, kept):
                raise self._apart(f"the state '{name}' of small tensors")

    def _apart(self, what: str) -> OpenwaferError:
        return self._refusal(
            f"a step on all parameters at once changes {what} otherwise than a step on each by "
            "itself"
        )

    def _refusal(self, why: str, *, help_text: str | None = None) -> OpenwaferError:
        return unsupported(self._kind, why, help_text=help_text)


def _update(rule: OwnStepRule, stored: _Stored, gradient: torch.Tensor) -> None:
    specs = rule.states(tuple(stored.weight.shape), stored.weight.dtype)
    if not stored.num_updates:
        stored.states = {spec.name: torch.zeros(spec.shape, dtype=spec.dtype) for spec in specs}
    rule.apply(stored.weight, gradient, stored.states, stored.num_updates)
    stored.num_updates += 1


def _same(left: Any, right: Any) -> bool:
    """Whether two values are alike to the bit."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        is_alike = (left.shape, left.dtype) == (right.shape, right.dtype)
        return is_alike and torch.equal(_bytes(left), _bytes(right))
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, _PLAIN):
        return bool(left == right) or (left != left and right != right)
    return not hasattr(left, "__dict__") or _same(vars(left), vars(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
