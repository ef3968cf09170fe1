"""Tensors whose values are on the wafer until torch's code reads them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from openwafer.fabric_device.wafer import Resting, Wafer
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Activation
from openwafer.training.torch_private import pytree

aten = torch.ops.aten


class OnWafer(torch.Tensor):
    """A tensor (..., features) of float32 whose values are on a wafer.

    Views of the same features stay there, and so do sums and products of two, values of ReLU, SiLU
    and GELU (that of a tanh), and their gradients. Any other operator has the values copied off,
    once, and computes on the host.

    Attributes:
        rest: the activation.
        plain: the tensor in host memory that has its values once they were read.
    """

    rest: Resting
    plain: torch.Tensor

    @classmethod
    def of(cls, rest: Resting, plain: torch.Tensor | None = None) -> "OnWafer":
        """The tensor of an activation.

        Args:
            rest: the activation.
            plain: a view of its room in host memory; None is all of it.
        """
        seen = rest.plain if plain is None else plain
        tensor = seen.as_subclass(cls)
        tensor.rest, tensor.plain = rest, seen
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        local = _LOCAL.get(func)
        if local is not None:
            made = local(*args, **(kwargs or {}))
            if made is not None:
                return cls.of(made)
        if func in _VIEWS:
            source = args[0]
            seen = func(source.plain, *args[1:], **(kwargs or {}))
            if seen.is_contiguous() and seen.shape[-1:] == source.shape[-1:]:
                return cls.of(source.rest, seen)
        name = getattr(func, "__name__", str(func)).split(".")[0]

        def read(value: Any) -> Any:
            if not isinstance(value, OnWafer):
                return value
            value.rest.read(name)
            return value.plain

        args, kwargs = pytree.tree_map(read, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)


def rested(value: torch.Tensor, wafer: Wafer) -> Resting:
    """A tensor on this wafer, where it is put if it is elsewhere."""
    if not isinstance(value, OnWafer):
        return wafer.rest(value)
    if value.rest.wafer is wafer:
        return value.rest
    value.rest.read("another wafer")
    return wafer.rest(value.plain)


def gradient_rested(value: torch.Tensor, wafer: Wafer) -> Resting:
    """The same of a gradient, whose padded tokens are to be zeros, whoever made it."""
    rest = rested(value, wafer)
    if rest.has_zeros or not wafer.resident.plan.is_padded:
        return rest
    rest.read("padding")
    return wafer.rest(rest.plain)


def _both(
    function: Callable[..., Activation], has_zeros: Callable[[tuple[bool, bool]], bool]
) -> Callable[..., Resting | None]:
    """A function of two activations of one shape, and whether it keeps padded zeros."""

    def local(a: Any, b: Any, *, alpha: float = 1) -> Resting | None:
        are_there = isinstance(a, OnWafer) and isinstance(b, OnWafer)
        if not are_there or a.shape != b.shape or alpha != 1:
            return None
        x: Resting = a.rest
        y: Resting = b.rest
        if x.wafer is not y.wafer:
            return None
        made = function(x.wafer.resident, x.activation, y.activation)
        return x.wafer.made(made, a.shape, has_zeros=has_zeros((x.has_zeros, y.has_zeros)))

    return local


def _one(function: Callable[..., Activation]) -> Callable[..., Resting | None]:
    """A function of each value."""

    def local(x: OnWafer) -> Resting:
        wafer = x.rest.wafer
        return wafer.made(function(wafer.resident, x.rest.activation), x.shape)

    return local


def _delta(function: Callable[..., Activation]) -> Callable[..., Resting | None]:
    """The gradient of such a function, from that of its result and from what the forward kept."""

    def local(dy: Any, kept: Any) -> Resting | None:
        if not isinstance(kept, OnWafer):
            return None
        wafer = kept.rest.wafer
        given = rested(dy, wafer)
        dx = function(wafer.resident, kept.rest.activation, given.activation)
        return wafer.made(dx, kept.shape, has_zeros=given.has_zeros)

    return local


def _relu_delta(dy: Any, y: Any, threshold: float) -> Resting | None:
    return _delta(Resident.relu_delta)(dy, y) if threshold == 0 else None


def _gelu(x: OnWafer, *, approximate: str = "none") -> Resting | None:
    return _one(Resident.gelu)(x) if approximate == "tanh" else None


def _gelu_delta(dy: Any, x: Any, *, approximate: str = "none") -> Resting | None:
    return _delta(Resident.gelu_delta)(dy, x) if approximate == "tanh" else None


_LOCAL: Final[Mapping[Any, Callable[..., Resting | None]]] = {
    aten.add.Tensor: _both(Resident.add, all),
    aten.mul.Tensor: _both(Resident.multiply, any),
    aten.relu.default: _one(Resident.relu),
    aten.threshold_backward.default: _relu_delta,
    aten.silu.default: _one(Resident.silu),
    aten.silu_backward.default: _delta(Resident.silu_delta),
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_delta,
}
_VIEWS: Final = frozenset(
    (
        aten.view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.detach.default,
        aten.alias.default,
    )
)
