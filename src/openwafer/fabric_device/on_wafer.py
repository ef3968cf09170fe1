"""Tensors whose values are on the wafer until torch's code reads them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from openwafer.fabric_device.arrangement import Arrangement, arranged
from openwafer.fabric_device.selection import joined, placed, selected
from openwafer.fabric_device.wafer import Held, Wafer
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Activation
from openwafer.training.torch_private import DisableTorchFunctionSubclass, pytree

aten = torch.ops.aten
_REORDERED: Final = "operand whose features or tokens are repeated, left out or in another order"


class OnWafer(torch.Tensor):
    """A tensor of float32 whose values are on a wafer: features of tokens, or some of them.

    Views stay there, and so do sums and products of two, what is put together of features of
    several, values of ReLU, SiLU and GELU (that of a tanh), and gradients of all these. Attention
    and cross-entropy are computed there. Any other operator has the values copied off, once, and
    computes on the host.

    Attributes:
        rest: the activation.
        plain: the tensor in host memory that has its values once they were read.
    """

    rest: Held
    plain: torch.Tensor

    @classmethod
    def of(cls, rest: Held, shape: Sequence[int] | Arrangement) -> "OnWafer":
        """The tensor of an activation.

        Args:
            rest: the activation.
            shape: of the tensor, or how it lies.
        """
        if isinstance(shape, Arrangement):
            return cls.seeing(rest, shape.seen(rest.plain))
        return cls.seeing(rest, rest.plain.view(torch.Size(shape)))

    @classmethod
    def seeing(cls, rest: Held, plain: torch.Tensor) -> "OnWafer":
        """A view of an activation's room in host memory."""
        tensor = plain.as_subclass(cls)
        tensor.rest, tensor.plain = rest, plain
        return tensor

    @property
    def arrangement(self) -> Arrangement | None:
        """How it lies; None where it leaves out tokens, or repeats something."""
        return arranged(self.plain, self.rest.num_features)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        first = next((one for one in args if isinstance(one, OnWafer)), None)
        computed = None if first is None else first.rest.wafer.functions.get(func)
        with DisableTorchFunctionSubclass():
            # What autograd has a node of its own for.
            made = computed(*args, **named) if computed is not None else None
            if made is not None:
                return made
            if first is not None and func in _OF_MEMORY and not first.requires_grad:
                args = (_read(first, func.__name__), *args[1:])
            return func(*args, **named)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        local, named = _LOCAL.get(func), kwargs or {}
        if local is not None:
            made = local(*args, **named)
            if made is not None:
                return made
        if func in _VIEWS:
            source = args[0]
            seen = func(source.plain, *args[1:], **named)
            return pytree.tree_map(lambda one: cls.seeing(source.rest, one), seen)
        name = getattr(func, "__name__", str(func)).split(".")[0]

        def read(value: Any) -> Any:
            return _read(value, name) if isinstance(value, OnWafer) else value

        args, kwargs = pytree.tree_map(read, (tuple(args), named))
        return func(*args, **kwargs)


def kept(wafer: Wafer, *activations: Activation) -> tuple[OnWafer, ...]:
    """Tensors without values that stand for what a forward keeps beside its operands.

    They are to be saved for the backward, which takes what is kept from those that it is given: a
    layer that is computed again has kept it elsewhere, and the first room is given back.
    """
    without = (replace(one, features=0) for one in activations)
    rests = [Held(wafer, one, has_zeros=False) for one in without]
    return tuple(OnWafer.of(rest, rest.plain.shape) for rest in rests)


def _read(tensor: OnWafer, name: str) -> torch.Tensor:
    tensor.rest.read(name)
    return tensor.plain


def at_rest(value: torch.Tensor, wafer: Wafer, arrangement: Arrangement) -> Held:
    """Values on this wafer, that lie so; they are put there if they are elsewhere, or otherwise."""
    shape = arrangement.shape
    if isinstance(value, OnWafer):
        rest = value.rest
        found = arranged(value.plain.expand(shape), rest.num_features)
        if rest.wafer is wafer and found is not None and found.is_like(arrangement):
            return selected(rest, found.features)
        if not rest.is_given:
            rest.read("another wafer" if rest.wafer is not wafer else _REORDERED)
        value = value.plain
    plain = torch.empty(arrangement.num_tokens, len(arrangement.features))
    arrangement.seen(plain).copy_(value.detach().expand(shape))
    return wafer.rest(plain)


def rested(value: torch.Tensor, wafer: Wafer) -> Held:
    """A tensor (..., features) on this wafer."""
    return at_rest(value, wafer, Arrangement.plain(value.shape))


def gradient_rested(
    value: torch.Tensor, wafer: Wafer, arrangement: Arrangement | None = None
) -> Held:
    """The same of a gradient, whose padded tokens are to be zeros, whoever made it."""
    rest = at_rest(value, wafer, arrangement or Arrangement.plain(value.shape))
    if rest.has_zeros or not wafer.resident.plan.is_padded:
        return rest
    rest.read("padding")
    return wafer.rest(rest.plain)


def _both(
    function: Callable[..., Activation], has_zeros: Callable[[tuple[bool, bool]], bool]
) -> Callable[..., OnWafer | None]:
    """A function of two activations, or of one and numbers, and whether it keeps padded zeros."""

    def local(a: Any, b: Any, *, alpha: float = 1) -> OnWafer | None:
        if not (_is_operand(a) and _is_operand(b)) or alpha != 1:
            return None
        shape = torch.broadcast_shapes(a.shape, b.shape)
        # Values that the host has are what is put beside the others.
        whole = [one for one in (a, b) if isinstance(one, OnWafer) and one.shape == shape]
        whole.sort(key=lambda one: one.rest.is_given)
        lies = whole[0].arrangement if whole else None
        if lies is None:
            return None
        wafer = whole[0].rest.wafer
        x, y = (at_rest(one, wafer, lies) for one in (a, b))
        made = function(wafer.resident, x.activation, y.activation)
        return OnWafer.of(wafer.made(made, has_zeros=has_zeros((x.has_zeros, y.has_zeros))), lies)

    return local


def _is_operand(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _one(function: Callable[..., Activation]) -> Callable[..., OnWafer | None]:
    """A function of each value."""

    def local(x: OnWafer) -> OnWafer | None:
        lies = x.arrangement
        if lies is None:
            return None
        wafer, given = x.rest.wafer, selected(x.rest, lies.features)
        return OnWafer.of(wafer.made(function(wafer.resident, given.activation)), lies)

    return local


def _delta(function: Callable[..., Activation]) -> Callable[..., OnWafer | None]:
    """The gradient of such a function, from that of its result and from what the forward kept."""

    def local(dy: Any, kept: Any) -> OnWafer | None:
        lies = kept.arrangement if isinstance(kept, OnWafer) else None
        if lies is None:
            return None
        wafer, x = kept.rest.wafer, selected(kept.rest, lies.features)
        given = at_rest(dy, wafer, lies)
        dx = function(wafer.resident, x.activation, given.activation)
        return OnWafer.of(wafer.made(dx, has_zeros=given.has_zeros), lies)

    return local


def _relu_delta(dy: Any, y: Any, threshold: float) -> OnWafer | None:
    return _delta(Resident.relu_delta)(dy, y) if threshold == 0 else None


def _gelu(x: OnWafer, *, approximate: str = "none") -> OnWafer | None:
    return _one(Resident.gelu)(x) if approximate == "tanh" else None


def _gelu_delta(dy: Any, x: Any, *, approximate: str = "none") -> OnWafer | None:
    return _delta(Resident.gelu_delta)(dy, x) if approximate == "tanh" else None


def _negative(x: OnWafer) -> OnWafer | None:
    lies = x.arrangement
    if lies is None:
        return None
    count = len(lies.features)
    made = placed(x.rest, lies.features, tuple(range(count)), count, -1.0)
    return OnWafer.of(made, lies)


def _joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> OnWafer | None:
    """Features of several side by side, along one of the dims of features."""
    first = next(one for one in tensors if isinstance(one, OnWafer))
    lies, wafer = first.arrangement, first.rest.wafer
    dim %= first.ndim
    if lies is None or not all(map(_is_operand, tensors)) or first.shape[dim] == 1:
        return None
    if lies.strides[dim] >= len(lies.features):
        return None
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    whole = _widened(lies, torch.Size(shape), dim)
    places, parts, begin = whole.seen(_numbers(whole)), [], 0
    for tensor in tensors:
        size = tensor.shape[dim]
        own = Arrangement(
            tuple(range(len(whole.features) * size // shape[dim])),
            tensor.shape,
            _widened(lies, tensor.shape, dim).strides,
        )
        rest, features = _source(tensor, wafer, own)
        taken = torch.zeros(own.num_tokens, len(own.features), dtype=torch.int64)
        own.seen(taken).copy_(places.narrow(dim, begin, size))
        parts.append((rest, features, tuple(taken[0].tolist())))
        begin += size
    return OnWafer.of(joined(parts, len(whole.features), wafer), whole)


def _source(tensor: torch.Tensor, wafer: Wafer, lies: Arrangement) -> tuple[Held, tuple[int, ...]]:
    """An activation, and which of its features are those of a tensor that lies so."""
    if isinstance(tensor, OnWafer) and tensor.rest.wafer is wafer:
        found = tensor.arrangement
        if found is not None and found.is_like(lies):
            return tensor.rest, found.features
    return at_rest(tensor, wafer, lies), lies.features


def _widened(lies: Arrangement, shape: torch.Size, dim: int) -> Arrangement:
    """The same order of dims, of which one has another size."""
    order = sorted(
        (i for i, size in enumerate(lies.shape) if size > 1), key=lies.strides.__getitem__
    )
    strides, step = [1] * len(shape), 1
    for one in order:
        strides[one], step = step, step * shape[one]
    count = len(lies.features) * shape[dim] // lies.shape[dim]
    return Arrangement(tuple(range(count)), shape, tuple(strides))


def _numbers(lies: Arrangement) -> torch.Tensor:
    """Of each element the number of its feature: (tokens, features)."""
    return torch.arange(len(lies.features)).repeat(lies.num_tokens, 1)


def _sum_of_one(x: OnWafer, dims: Sequence[int], keepdim: bool = False, **_: Any) -> OnWafer | None:
    """A sum along dims of size 1, as autograd takes it where shapes were made equal."""
    if not dims or any(x.shape[dim] != 1 for dim in dims):
        return None
    return OnWafer.seeing(x.rest, x.plain if keepdim else x.plain.squeeze(tuple(dims)))


_LOCAL: Final[Mapping[Any, Callable[..., OnWafer | None]]] = {
    aten.add.Tensor: _both(Resident.add, all),
    aten.mul.Tensor: _both(Resident.multiply, any),
    aten.neg.default: _negative,
    aten.cat.default: _joined,
    aten.sum.dim_IntList: _sum_of_one,
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
        aten.squeeze.dims,
        aten.detach.default,
        aten.alias.default,
        aten.transpose.int,
        aten.permute.default,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
    )
)
_OF_MEMORY: Final = frozenset((torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__))
"""What looks at a tensor's memory without an operator."""
