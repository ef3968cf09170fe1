"""Any optimizer's own step, taken on one parameter at a time in the memory of the store.

The step runs on an optimizer of the same class that holds one parameter: the store's weight, with
the gradient, and the state that the store keeps. So the arithmetic is the optimizer's, whoever
wrote it. Whether that is the same as one step on all parameters is what :mod:`.trial` finds out.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import laid_out_like
from openwafer.training.store.update_rules.optimizers import Lamb, Lion, parameters_of
from openwafer.training.store.update_rules.rules import NUMBER_DTYPES, Cutting, StateSpec
from openwafer.training.store.update_rules.update_pass import AVERAGE, LOW_BITS, TIE_BITS
from openwafer.training.torch_private import FakeTensor

MASTER: Final = "master"
"""The state in which an optimizer holds the fp32 master of a bf16 weight."""
_RESERVED: Final = frozenset({AVERAGE, LOW_BITS, TIE_BITS, MASTER})
# Classes that update each parameter by itself, and read nothing but its gradient and their options.
SEPARABLE: Final[Mapping[type[Optimizer], Cutting]] = MappingProxyType(
    {
        torch.optim.Adadelta: Cutting.ALWAYS,
        torch.optim.Adagrad: Cutting.ALWAYS,
        torch.optim.Adamax: Cutting.ALWAYS,
        torch.optim.ASGD: Cutting.ALWAYS,
        torch.optim.NAdam: Cutting.ALWAYS,
        torch.optim.RAdam: Cutting.ALWAYS,
        torch.optim.RMSprop: Cutting.ALWAYS,
        torch.optim.Rprop: Cutting.ALWAYS,
        Lion: Cutting.ALWAYS,
        # Norms, and products of whole matrices.
        Lamb: Cutting.NEVER,
        torch.optim.Adafactor: Cutting.NEVER,
        torch.optim.Muon: Cutting.NEVER,
    }
)
STEP: Final = "step"
PREINITIALIZE: Final = "preinitialize"
"""The method by which optimizers of compiled steps make all states before the first step."""
# What a GradScaler writes on an optimizer for the time of a step, and the loop's caller undoes.
_SCALING: Final = ("grad_scale", "found_inf")
_HOME: Final = "home"  # where a streamed parameter is; set by the stream, not by its user

KnownStates = MutableMapping[tuple[int, tuple[int, ...], torch.dtype], tuple[StateSpec, ...]]


class LoneParameter(nn.Parameter):
    """A weight of the store as a parameter, without what its user has written on the model's."""

    foreign_attributes: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self.foreign_attributes:
            raise error(
                "optimizer-unsupported",
                f"the optimizer's step reads the attribute '{name}' of a parameter, which the "
                "weights in the parameter store do not have",
                help="make parameter groups of the parameters that differ, and read the group",
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


@dataclass(frozen=True)
class Snapshot:
    """An optimizer as it stands at one step, less its parameters and their states.

    Attributes:
        kind: its class.
        attributes: its attributes beside parameter groups and states.
        groups: hyper-parameters of its parameter groups.
        foreign_attributes: names of the attributes that its user has given its parameters.
    """

    kind: type[Optimizer]
    attributes: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    foreign_attributes: frozenset[str]

    @classmethod
    def of(cls, optimizer: Optimizer) -> "Snapshot":
        """Copies of everything, so that nobody can change it any more."""
        written = [vars(p) for p in parameters_of(optimizer)]
        return cls(
            type(optimizer),
            copy.deepcopy(own_attributes(optimizer)),
            tuple(copy.deepcopy(hyper_parameters(group)) for group in optimizer.param_groups),
            frozenset().union(*written) - {_HOME},
        )

    def over(self, params: Mapping[int, Sequence[nn.Parameter]]) -> Optimizer:
        """An optimizer over other parameters, by number of their group, without hooks."""
        # A foreign step may write to what it finds.
        copied: Callable[[Any], Any] = dict if self.kind in SEPARABLE else copy.deepcopy
        groups = [
            {**copied(self.groups[number]), "params": list(held)} for number, held in params.items()
        ]
        made = self.kind.__new__(self.kind)
        state: dict[nn.Parameter, dict[str, Any]] = defaultdict(dict)
        attributes = copied(self.attributes)
        Optimizer.__setstate__(made, {**attributes, "state": state, "param_groups": groups})
        return made


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer has beside groups, states, hooks and wrappers around its methods."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups", *_SCALING)
        and not name.startswith("_optimizer_")
        and not hasattr(Optimizer, name)
        and value is not optimizer
    }


def hyper_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def make_first_states(optimizer: Optimizer) -> None:
    """Give parameters with a gradient the states that torch's Adagrad makes of them.

    It makes them when it is constructed, and in torch 2.11 at no other time.
    """
    if not isinstance(optimizer, torch.optim.Adagrad):
        return
    filled = optimizer.defaults["initial_accumulator_value"]
    for group in optimizer.param_groups:
        for one in group["params"]:
            if one.grad is not None and not optimizer.state.get(one):
                options = {"initial_accumulator_value": filled, "fused": group["fused"]}
                optimizer.state[one] = torch.optim.Adagrad([one], **options).state[one]


def _preinitialize(optimizer: Optimizer) -> None:
    """Give parameters with a gradient the states that such an optimizer makes of all at once."""
    preinitialize = getattr(type(optimizer), PREINITIALIZE, None)
    held = {one: dict(state) for one, state in optimizer.state.items() if state}
    trained = [p for p in parameters_of(optimizer) if p.grad is not None]
    bare = [one for one in trained if one not in held]
    if preinitialize is None or not bare:
        return
    preinitialize(optimizer)
    made = {one: optimizer.state[one] for one in bare}
    optimizer.state.clear()
    optimizer.state.update(held | made)


def take_step(optimizer: Optimizer) -> None:
    """The step itself, without the hooks that torch calls around it."""
    step = type(optimizer).step
    inner = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
    make_first_states(optimizer)
    _preinitialize(optimizer)
    with torch.no_grad():
        inner(optimizer)


@dataclass(frozen=True)
class _Stepped:
    """The tensors that a step leaves: those it was given, changed, or others."""

    weight: torch.Tensor
    gradient: torch.Tensor | None
    state: dict[str, Any]


@dataclass(frozen=True)
class OwnStepRule:
    """The step of an optimizer that this program need not know.

    Attributes:
        snapshot: the optimizer at that step.
        group: number of the parameter group.
        writes_gradients: whether the gradient is to be what the step has made of it.
        known: what the rule keeps for each parameter that it has met.
    """

    snapshot: Snapshot
    group: int
    writes_gradients: bool = False
    known: KnownStates = field(default_factory=dict, compare=False, repr=False)

    @property
    def cutting(self) -> Cutting:
        """Who knows what a foreign step sums over."""
        return SEPARABLE.get(self.snapshot.kind, Cutting.NEVER)

    @property
    def counts(self) -> bool:
        """Others may count in a way of their own, so that the store keeps what they have."""
        return self.snapshot.kind is torch.optim.Adafactor

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """What the first step makes. Raises `optimizer-unsupported` for what no array can hold."""
        key = (self.group, shape, dtype)
        if key not in self.known:
            self.known[key] = self._found(shape, dtype)
        return self.known[key]

    def _found(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        if self.cutting is Cutting.ALWAYS:
            specs = self._made_for(torch.zeros(2, dtype=dtype))
            return tuple(replace(spec, shape=shape if spec.shape else ()) for spec in specs)
        try:
            return self._made_for(torch.empty(shape, dtype=dtype, device="meta"))
        except (RuntimeError, TypeError, ValueError):
            # The step looks at values, so that it takes a parameter that has some.
            return self._made_for(torch.zeros(shape, dtype=dtype))

    def _made_for(self, weight: torch.Tensor) -> tuple[StateSpec, ...]:
        state = self._stepped(weight, torch.ones_like(weight), {}).state
        return tuple(_spec_of(self.snapshot.kind, name, value) for name, value in state.items())

    def _stepped(
        self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> "_Stepped":
        parameter = LoneParameter(weight)
        parameter.foreign_attributes = self.snapshot.foreign_attributes
        parameter.grad = gradient
        optimizer = self.snapshot.over({self.group: [parameter]})
        if state:
            optimizer.state[parameter] = state
        take_step(optimizer)
        left = optimizer.state.get(parameter, {})
        if self.counts:
            del left[STEP]
        return _Stepped(parameter.detach(), parameter.grad, left)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and states in place; at 0 updates the step makes its own first states.

        The gradient stays, unless `writes_gradients`.
        """
        # Of tensors without values, nothing can be read: a first step needs none.
        if isinstance(weight, FakeTensor):
            self._stepped(weight, gradient.clone(), {})
            return
        specs = self.states(tuple(weight.shape), weight.dtype)
        before = {spec.name: spec.read(states[spec.name]) for spec in specs if num_updates}
        if self.counts and num_updates:
            before[STEP] = torch.tensor(float(num_updates))
        is_safe = self.snapshot.kind in SEPARABLE
        stepped = self._stepped(weight, gradient if is_safe else gradient.clone(), before)
        state = stepped.state
        _require_same_names(self.snapshot.kind, state, specs)
        for spec in specs:
            if not spec.fits(state[spec.name]):
                raise _changed(self.snapshot.kind, spec, state[spec.name])
            if state[spec.name] is not states[spec.name]:
                self._check_strides(spec, state[spec.name], states[spec.name])
                spec.write(states[spec.name], state[spec.name])
        if stepped.weight.data_ptr() != weight.data_ptr():
            weight.copy_(stepped.weight)
        if self.writes_gradients and stepped.gradient is not None:
            gradient.copy_(stepped.gradient)

    def _check_strides(self, spec: StateSpec, made: Any, kept: torch.Tensor) -> None:
        if spec.is_number or laid_out_like(made, kept) is made:
            return
        raise error(
            "optimizer-state-strided",
            f"the state '{spec.name}' of {self.snapshot.kind.__name__} has the strides "
            f"{made.stride()} after this step, and the parameter store keeps {kept.stride()}: "
            "what is computed of it next could have other bits",
            help="let the step make it with torch.zeros_like(parameter), or contiguous where its "
            "shape is another",
        )


def _spec_of(kind: type[Optimizer], name: object, value: object) -> StateSpec:
    if not isinstance(name, str) or name in _RESERVED:
        raise unsupported(kind, f"its state {name!r} has a name that the store needs for itself")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return StateSpec(name, tuple(value.shape), value.dtype)
    if type(value) in NUMBER_DTYPES:
        return StateSpec(name, (), NUMBER_DTYPES[type(value)], is_number=True)
    raise unsupported(
        kind, f"its state '{name}' is of {type(value).__name__}, neither a tensor nor a number"
    )


def _require_same_names(
    kind: type[Optimizer], state: Mapping[str, object], specs: Sequence[StateSpec]
) -> None:
    planned = [spec.name for spec in specs]
    if sorted(state) != sorted(planned):
        raise error(
            "optimizer-state-changed",
            f"{kind.__name__} has the states {', '.join(sorted(state))} after this step, and "
            f"{', '.join(sorted(planned)) or 'none'} when the parameter store was laid out",
            help="keep the options by which it decides on states as they were at the first step",
        )


def _changed(kind: type[Optimizer], spec: StateSpec, value: object) -> OpenwaferError:
    found = type(value).__name__
    if isinstance(value, torch.Tensor):
        found = f"{tuple(value.shape)} {value.dtype}"
    return error(
        "optimizer-state-changed",
        f"the state '{spec.name}' of {kind.__name__} is {found} after this step, and the "
        f"parameter store was laid out for {spec.shape} {spec.dtype}",
        help="keep the options by which it decides on states as they were at the first step",
    )


def unsupported(kind: type[Optimizer], why: str, *, help_text: str | None = None) -> OpenwaferError:
    """The error of an optimizer that cannot update one parameter at a time."""
    return error(
        "optimizer-unsupported",
        f"{kind.__module__}.{kind.__qualname__} cannot update streamed weights: {why}",
        help=help_text
        or "use an optimizer whose step treats each parameter by itself, such as AdamW, or give "
        "the model the memory to stay whole",
    )
