"""Tensors whose values are on the wafer until torch's code reads them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from openwafer.fabric_device.wafer import Resting
from openwafer.training.torch_private import pytree

aten = torch.ops.aten


class OnWafer(torch.Tensor):
    """A tensor (..., features) of float32 whose values are on a wafer.

    Views of the same features stay there, and so do sums of two, rectified values and their
    gradients. Any other operator has the values copied off, once, and computes on the host.

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
        if local is not None and not kwargs:
            made = local(*args)
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


def _add(a: Any, b: Any) -> Resting | None:
    if not (isinstance(a, OnWafer) and isinstance(b, OnWafer) and a.shape == b.shape):
        return None
    wafer = a.rest.wafer
    return wafer.made(wafer.resident.add(a.rest.activation, b.rest.activation), a.shape)


def _relu(x: OnWafer) -> Resting:
    wafer = x.rest.wafer
    return wafer.made(wafer.resident.relu(x.rest.activation), x.shape)


def _relu_delta(dy: Any, y: Any, threshold: float) -> Resting | None:
    if threshold != 0 or not isinstance(y, OnWafer):
        return None
    wafer = y.rest.wafer
    gradient = dy.rest if isinstance(dy, OnWafer) else wafer.rest(dy)
    made = wafer.resident.relu_delta(y.rest.activation, gradient.activation)
    return wafer.made(made, y.shape)


_LOCAL: Final[Mapping[Any, Callable[..., Resting | None]]] = {
    aten.add.Tensor: _add,
    aten.relu.default: _relu,
    aten.threshold_backward.default: _relu_delta,
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
