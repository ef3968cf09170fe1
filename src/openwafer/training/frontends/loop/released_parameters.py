"""Parameters whose weights are away in the parameter store, and that are used all the same.

An operator that uses a released parameter is given a :class:`StoredTensor` in its place. While
autograd records, that tensor is the output of a node that hands its gradient to the parameter, so
that a loss over weights adds to their gradients where it would in a plain loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.model_checks import gradient_hook
from openwafer.training.frontends.loop.stored_tensor import Backing, StoredTensor, without_memory
from openwafer.training.torch_private import (
    DisableTorchFunctionSubclass,
    has_compatible_shallow_copy_type,
    pytree,
)

_READABLE: Final = (
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad"),
    *("grad", "grad_fn", "is_leaf", "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized"),
    *("is_nested", "is_mkldnn", "output_nr", "retains_grad", "_version", "_backward_hooks"),
    *("_post_accumulate_grad_hooks", "is_xla", "is_mps", "is_xpu", "is_sparse_csr"),
)
_WRITABLE: Final = (
    *("data", "grad", "requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
_CALLABLE: Final = (
    *("size", "dim", "numel", "nelement", "ndimension", "element_size", "get_device"),
    *("is_floating_point", "is_complex", "requires_grad_", "register_hook", "is_shared"),
    *("is_inference", "is_conj", "is_neg", "retain_grad"),
)
NEEDS_NO_WEIGHTS: Final = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _READABLE]
    + [getattr(torch.Tensor, name).__set__ for name in _WRITABLE]
    + [getattr(torch.Tensor, name) for name in _CALLABLE]
    + [torch.is_floating_point, torch.is_complex, torch.numel]
    + [has_compatible_shallow_copy_type]
)
# What released parameters do not show of the tensors that they stand for.
_OF_GEOMETRY: Final = frozenset(
    getattr(torch.Tensor, name)
    for name in ("stride", "is_contiguous", "storage_offset", "dim_order")
)
_LEAVES_GRAPH: Final = frozenset([torch.Tensor.detach, torch.detach])
# What a stored tensor has for a method that torch runs in C, without asking it.
_OF_STORED: Final = {
    getattr(torch.Tensor, name): getattr(StoredTensor, name)
    for name in ("numpy", "__array__", "tolist", "__dlpack__")
}
_NEEDS_MEMORY: Final = frozenset(
    getattr(torch.Tensor, name)
    for name in ("data_ptr", "storage", "untyped_storage", "share_memory_", "set_", "resize_")
)


@dataclass(frozen=True)
class Home:
    """Where a parameter's weights and gradient are when it is released.

    Attributes:
        name: of the parameter.
        weights: the backing of its weights.
        copy_weights: gives it other values, as ``load_state_dict`` does.
        replace_weights: gives it another tensor.
        gradient: its gradient, or ``None``.
        set_gradient: gives it another, or none.
        differentiated: told that a gradient comes from outside its layer, as no plan knows.
        copied: the error of who copies it.
    """

    name: str
    weights: Callable[[str], Backing]
    copy_weights: Callable[[str, torch.Tensor], None]
    replace_weights: Callable[[str, torch.Tensor], None]
    gradient: Callable[[str], torch.Tensor | None]
    set_gradient: Callable[[str, torch.Tensor | None], None]
    differentiated: Callable[[str], None]
    copied: Callable[[], OpenwaferError]


class ReleasedParameter(nn.Parameter):
    """A parameter that knows its shape, and finds its weights and its gradient in the store."""

    home: Home

    @property
    def data(self) -> torch.Tensor:
        return self.home.weights(self.home.name).whole()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value is not self:
            self.home.replace_weights(self.home.name, value)

    @property
    def grad(self) -> torch.Tensor | None:
        return self.home.gradient(self.home.name)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self.home.set_gradient(self.home.name, value)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.home.name}: {tuple(self.shape)} {self.dtype}, in the parameter store"

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self.home.copied()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self.home.copied()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in NEEDS_NO_WEIGHTS:
            # What runs for an ordinary parameter.
            return nn.Parameter.__torch_function__(func, types, args, kwargs)
        if func in _OF_GEOMETRY:
            return func(_backing_of(args[0]).geometry(), *args[1:], **kwargs)
        if func in _NEEDS_MEMORY:
            raise without_memory(f"the weight {args[0].home.name!r}")
        if func is torch.Tensor.register_post_accumulate_grad_hook:
            raise gradient_hook(args[0].home.name)
        if func is torch.autograd.grad:
            return _differentiate(*args, **kwargs)
        if func in (torch.Tensor.backward, torch.autograd.backward):
            raise _backward_of_inputs()
        if func is torch.Tensor.copy_ and isinstance(args[0], cls) and not torch.is_grad_enabled():
            args[0].home.copy_weights(args[0].home.name, _without_released(args[1]))
            return args[0]
        return _call(func, args, kwargs)


class _Read(torch.autograd.Function):
    """Stands between a parameter and what is computed of its weights outside its layer."""

    @staticmethod
    def forward(ctx: Any, parameter: ReleasedParameter) -> torch.Tensor:
        ctx.home = parameter.home
        return _stored(parameter, is_in_graph=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        ctx.home.differentiated(ctx.home.name)
        return gradient


def _stored(parameter: ReleasedParameter, *, is_in_graph: bool) -> StoredTensor:
    backing = _backing_of(parameter)
    return StoredTensor(backing, backing.geometry(), is_in_graph=is_in_graph)


def _backing_of(parameter: ReleasedParameter) -> Backing:
    return parameter.home.weights(parameter.home.name)


def _call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    # What initialises weights is asked before it says that nothing is to be recorded.
    is_recorded = (
        func not in _LEAVES_GRAPH and getattr(func, "__module__", None) != nn.init.__name__
    )
    records = torch.is_grad_enabled() and is_recorded
    given: dict[int, ReleasedParameter] = {}

    def stand_in(parameter: ReleasedParameter) -> torch.Tensor:
        if records and parameter.requires_grad:
            made: torch.Tensor = _Read.apply(parameter)  # type: ignore[no-untyped-call]
        else:
            made = _stored(parameter, is_in_graph=False)
        given[id(made)] = parameter
        return made

    real_args, real_kwargs = pytree.tree_map_only(
        ReleasedParameter, stand_in, (tuple(args), dict(kwargs))
    )
    out = _OF_STORED.get(func, func)(*real_args, **real_kwargs)
    return pytree.tree_map_only(torch.Tensor, lambda leaf: given.get(id(leaf), leaf), out)


def _without_released(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone() if isinstance(value, (ReleasedParameter, StoredTensor)) else value


def _differentiate(
    outputs: Any, inputs: Any, *args: Any, materialize_grads: bool = False, **kwargs: Any
) -> tuple[torch.Tensor | None, ...]:
    """``torch.autograd.grad``, which would look for weights in the parameters."""
    wanted: list[Any] = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    with DisableTorchFunctionSubclass():
        edges: list[Any] = [
            get_gradient_edge(one) if isinstance(one, ReleasedParameter) else one for one in wanted
        ]
    if not materialize_grads:
        return torch.autograd.grad(outputs, edges, *args, **kwargs)
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(
        outputs, edges, *args, **{**kwargs, "allow_unused": True}
    )
    return tuple(
        torch.zeros(one.shape, dtype=one.dtype, device=one.device) if gradient is None else gradient
        for one, gradient in zip(wanted, found, strict=True)
    )


def _backward_of_inputs() -> OpenwaferError:
    return error(
        "backward-inputs",
        "backward(inputs=...) names streamed weights, and would leave no gradients in them",
        help="take torch.autograd.grad(loss, weights) and set their .grad, or call backward() "
        "without inputs",
    )


def home_of(parameter: nn.Parameter, home: Home | None) -> None:
    """Tell a parameter where its weights are when they are away; ``None`` ends that."""
    if home is None:
        parameter.__dict__.pop("home", None)
    else:
        parameter.home = home  # type: ignore[attr-defined]
