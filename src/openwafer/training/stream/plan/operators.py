"""Which operators a step calls: kinds of calls that can be counted, and made again to be timed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch

from openwafer.training.sparsity.choice import is_known, trial_of
from openwafer.training.stream.device.device import MemoryMeter
from openwafer.training.stream.flops import flops_of, formula_of
from openwafer.training.torch_private import tensors_in

# Tensors without memory are asked for their device all the time.
ASK_DEVICE: Final = torch.ops.prim.device.default

Allocation: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes the context in which a step allocates."""


def num_spanned(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of the smallest storage that holds a tensor from its start."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


class TensorKind(NamedTuple):
    """All that an operator's time depends on of a tensor; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorKind":
        """The kind of a tensor, which need not have memory."""
        return cls((*tensor.shape,), tensor.stride(), tensor.dtype)

    def make(self, device: torch.device) -> torch.Tensor:
        """A tensor of this kind: zeros, which any index may be, or ones."""
        flat = torch.empty(num_spanned(self.shape, self.stride), dtype=self.dtype, device=device)
        flat.fill_(1 if self.dtype.is_floating_point else 0)
        return flat.as_strided(self.shape, self.stride)


class Operator(NamedTuple):
    """One kind of call of an operator: the function and its arguments, tensors by their kind."""

    function: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Operator":
        """The kind of a call."""
        named = tuple((name, _frozen(value)) for name, value in kwargs.items())
        return cls(function, tuple(map(_frozen, args)), named)

    @property
    def can_be_tried(self) -> bool:
        """Whether a call with made-up tensors does no more than take its time."""
        return bool(self.function.namespace == "aten") or self.has_own_trial

    @property
    def has_own_trial(self) -> bool:
        """Whether trials have arguments of their own, and are short however large the call is."""
        return is_known(self.function)

    @property
    def reads_memory(self) -> bool:
        """Whether it is not a view, and has more than sizes to go by."""
        return not self.function.is_view and any(map(_holds_tensors, self.args))

    def make_trial(self, device: torch.device) -> tuple[Callable[[], object], float]:
        """A call to be timed, and how many such calls take as long as this one."""
        if not self.has_own_trial:
            return self.make_call(device), 1.0
        kinds = tuple(_thawed(value, torch.device("meta")) for value in self.args)
        trial = trial_of(self.function, device, kinds)
        return partial(self.function, *trial.args), trial.times

    def make_call(self, device: torch.device) -> Callable[[], object]:
        """The same call with tensors of its own."""
        args = [_thawed(value, device) for value in self.args]
        kwargs = {name: _thawed(value, device) for name, value in self.kwargs}
        return lambda: self.function(*args, **kwargs)


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorKind.of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return value


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, TensorKind):
        return True
    return isinstance(value, tuple) and any(map(_holds_tensors, value))


def _thawed(value: Any, device: torch.device) -> Any:
    if isinstance(value, TensorKind):
        return value.make(device)
    if isinstance(value, tuple):
        return [_thawed(item, device) for item in value]
    return value


@dataclass
class Calls:
    """The calls of one kind.

    Attributes:
        flops: floating-point operations of one, if it is a matrix product, a convolution or an
            attention.
        num_bytes: of one's tensors, arguments and results.
        dtype: of the first tensor.
        number: how many there are.
    """

    flops: int
    num_bytes: int
    dtype: torch.dtype
    number: int = 0

    @classmethod
    def like(
        cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> "Calls":
        """None yet, of the kind of a call that returned ``out``."""
        tensors = tensors_in([*args, *kwargs.values(), out])
        return cls(
            flops_of(function, args, kwargs, out),
            sum(prod(tensor.shape) * tensor.element_size() for tensor in tensors),
            tensors[0].dtype if tensors else torch.float32,
        )


CallsByKind = Mapping[Operator, Calls]


@dataclass(frozen=True)
class StepCalls:
    """How often a step calls each kind of operator.

    Attributes:
        forward, backward: by pass, recomputation in the backward; all of a step whose passes need
            not be told apart is in ``forward``.
    """

    forward: CallsByKind
    backward: CallsByKind = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of a step's matrix products, convolutions and attentions."""
        return sum(
            calls.number * calls.flops
            for by_kind in (self.forward, self.backward)
            for calls in by_kind.values()
        )


class _Described(NamedTuple):
    """A kind of call, with how its flops are counted, and calls of it of which there are none."""

    formula: Callable[..., int] | None
    kind: Operator
    like: Calls


_DESCRIBED: Final[dict[object, _Described]] = {}


def _described(
    met: object | None, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> _Described:
    """The kind of a call, which ``met`` stands for where it is known."""
    formula = formula_of(function)
    known = None if met is None else _DESCRIBED.get(met)
    if known is None or known.formula is not formula:
        kind = Operator.of(function, args, kwargs)
        known = _Described(formula, kind, Calls.like(function, args, kwargs, out))
        if met is not None:
            _DESCRIBED[met] = known
    return known


class KnownKinds(Protocol):
    """Calls operators on tensors without memory, most of which are of a kind that it has met.

    Attributes:
        met: stands for the kind of the newest call; ``None`` where that is not known.
    """

    met: object | None

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""


class CountingMeter(MemoryMeter):
    """A meter that also counts the operators, those on host memory too.

    A kind's FLOPs are worked out once, and not call by call.

    Attributes:
        operators_hash: of the kinds of all calls since it was set, in their order.
    """

    counts_flops = False

    def __init__(self) -> None:
        super().__init__()
        self.operators_hash = 0
        self._calls: dict[Operator, Calls] = {}
        self._known: KnownKinds | None = None
        # The same by what is known of their kinds, which is found sooner.
        self._calls_met: dict[object, Calls] = {}

    def walks(self, known: KnownKinds | None) -> None:
        """Count a walk on tensors without memory; ``None`` for one on real tensors."""
        if known is not None:
            self._known, self.call = known, known.call

    def take_calls(self) -> CallsByKind:
        """The calls since this was asked last."""
        calls, self._calls, self._calls_met = self._calls, {}, {}
        return calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASK_DEVICE:
            return args[0].fake_device
        out = super().__torch_dispatch__(func, types, args, kwargs)
        met = None if self._known is None else self._known.met
        calls = None if met is None else self._calls_met.get(met)
        if calls is None:
            calls = self._begun(met, func, args, kwargs or {}, out)
        calls.number += 1
        self.operators_hash = hash((self.operators_hash, id(calls)))
        return out

    def _begun(self, met: object | None, *call: Any) -> Calls:
        """The calls of a kind, of which this is the first, or the first that goes by ``met``."""
        described = _described(met, *call)
        calls = self._calls.get(described.kind)
        if calls is None:
            like = described.like
            calls = Calls(like.flops, like.num_bytes, like.dtype)
            self._calls[described.kind] = calls
        if met is not None:
            self._calls_met[met] = calls
        return calls
