"""What a loop finds in parameters, gradients and states whose values are in the store: tensors.

A :class:`StoredTensor` has a shape and no memory. An operator that uses one is given the values,
and what it writes goes back; an operator that only changes the geometry returns another one of the
same backing. So code that was written for ordinary tensors, torch's own included, reads and changes
weights, gradients and optimizer states that are not there, with the bits it would get from memory.

An operator that uses a released parameter is given a stored tensor in its place. While autograd
records, that tensor is the output of a node that hands its gradient to the parameter, so that a
loss over weights adds to their gradients where it would in a plain loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.model_checks import gradient_hook
from openwafer.training.store.layout import flat
from openwafer.training.torch_private import (
    DisableTorchFunctionSubclass,
    has_compatible_shallow_copy_type,
    make_wrapper_subclass,
    pytree,
)

K = TypeVar("K")


@dataclass(frozen=True)
class Values:
    """How the values of a backing are reached.

    Attributes:
        read: returns a copy, of the shape, strides and dtype of the backing.
        write: takes other values of that shape and dtype.
        scale: multiplies them by a number without reading them, or returns False.
        memory: returns memory that they are kept equal to, or ``None`` where there is none.
        pointed: the same for who asks for an address or a storage, and not for a copy.
    """

    read: Callable[[], torch.Tensor]
    write: Callable[[torch.Tensor], None]
    scale: Callable[[float], bool] = lambda factor: False
    memory: Callable[[], torch.Tensor | None] = lambda: None
    pointed: Callable[[], torch.Tensor | None] = lambda: None


class Backing:
    """What a plain loop would hold as one tensor, and what its views share.

    Args:
        name: what errors call it.
        like: has its shape, strides and dtype, and perhaps no memory.
        device: where a plain loop would have it.
        values: where they are until the loop puts another tensor in the place of this one.
    """

    def __init__(self, name: str, like: torch.Tensor, device: torch.device, values: Values) -> None:
        self.name = name
        self.shape, self.strides, self.dtype = like.shape, like.stride(), like.dtype
        self.device = device
        self._values = values
        self._own: torch.Tensor | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the values are in the store, and not in a tensor that nobody else has."""
        return self._own is None

    def tensor(self) -> torch.Tensor:
        """The values, dense; a change of them is to be told to :meth:`changed`."""
        return self._values.read() if self._own is None else self._own

    def changed(self, tensor: torch.Tensor) -> None:
        """Take the values of a tensor that :meth:`tensor` returned and that was written to."""
        if self._own is None:
            self._values.write(tensor)

    def scale(self, factor: float) -> bool:
        """Multiply the values without reading them; whether that was possible."""
        return self._own is None and self._values.scale(factor)

    def memory(self) -> torch.Tensor | None:
        """The values in memory to which the loop may point; see :class:`Values`."""
        return self._values.memory() if self._own is None else self._own

    def pointed(self) -> torch.Tensor | None:
        """The values in memory of which somebody wants the address; see :class:`Values`."""
        return self._values.pointed() if self._own is None else self._own

    def leave(self, tensor: torch.Tensor | None = None) -> None:
        """Let the values be those of a tensor; without one, a copy of what they are now."""
        self._own = self.tensor() if tensor is None else tensor

    def whole(self) -> "StoredTensor":
        """All of it, as a tensor that may be written to."""
        return StoredTensor(self, self.geometry())

    def geometry(self) -> torch.Tensor:
        """A tensor without memory of its shape, strides and dtype."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


class HeldBackings(WeakValueDictionary[K, Backing]):
    """Those that somebody holds, by name."""

    def made(self, key: K, make: Callable[[], Backing]) -> Backing:
        """The one of a name, made where nobody holds it."""
        backing = self.get(key)
        if backing is None:
            backing = self[key] = make()
        return backing

    def leave(self, key: K) -> None:
        """Let who holds one keep its values; that name is another's from now on."""
        backing = self.pop(key, None)
        if backing is not None:
            backing.leave()


class StoredTensor(torch.Tensor):
    """A view of a backing; see the module.

    Args:
        backing: where its values are.
        geometry: a tensor on the meta device: shape, strides, offset and dtype.
        is_in_graph: whether it stands for a leaf that requires a gradient, in operators that
            autograd records; like the leaf, it is not written to.
    """

    backing: Backing
    is_in_graph: bool
    # Lives as long as the tensor, of which somebody may have the address.
    memory: torch.Tensor | None

    def __new__(
        cls, backing: Backing, geometry: torch.Tensor, *, is_in_graph: bool = False
    ) -> Self:
        """A tensor without memory."""
        made = make_wrapper_subclass(
            cls,
            geometry.size(),
            strides=geometry.stride(),
            storage_offset=geometry.storage_offset(),
            dtype=geometry.dtype,
            device=backing.device,
        )
        made.backing, made.is_in_graph, made.memory = backing, is_in_graph, None
        return made

    # As an ordinary parameter has it.
    __torch_function__ = nn.Parameter.__torch_function__

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator; see the module."""
        if func is torch.ops.aten.mul_.Tensor and _is_scaled(args[0], args[1]):
            return args[0]
        if func.is_view or func is torch.ops.aten.detach.default:
            return _view(func, args, kwargs or {})
        if "_foreach_" in func.name():
            return _one_by_one(func, args, kwargs or {})
        return _compute(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.backing.name}, in the parameter store: {_values_of(self)!r}"

    def numpy(self, *, force: bool = False) -> Any:
        """The values; those that have no memory are a copy, read-only, as writes would be lost."""
        memory = self._in_memory()
        if memory is not None:
            return memory.requires_grad_(self.requires_grad).numpy(force=force)
        array: np.ndarray[Any, Any] = _values_of(self).numpy(force=force)
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        """The values as numbers in lists."""
        return _values_of(self).tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        memory = self._in_memory()
        return (_values_of(self) if memory is None else memory).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        # Tensors that share memory share it in their copies.
        if id(self.backing) not in memo:
            memo[id(self.backing)] = flat(self.backing.tensor()).clone()
        memo[id(self)] = copied = _laid_out(memo[id(self.backing)], self)
        return copied

    def _in_memory(self) -> torch.Tensor | None:
        """The values in memory of their own, to which writes are writes to the values."""
        if self.memory is None:
            self.memory = self.backing.memory()
        return None if self.memory is None else _laid_out(flat(self.memory), self)

    def _pointed_to(self) -> torch.Tensor:
        memory = self._in_memory()
        if memory is None:
            self.memory = self.backing.pointed()
            memory = self._in_memory()
        if memory is None:
            raise without_memory(self.backing.name)
        return memory

    def data_ptr(self) -> int:
        """Address of the values, for as long as somebody holds this tensor."""
        return self._pointed_to().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Memory of the values."""
        return self._pointed_to().untyped_storage()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._pointed_to().__dlpack__(**kwargs)

    def _without_memory(self, *_: object, **__: object) -> NoReturn:
        raise without_memory(self.backing.name)

    storage = share_memory_ = resize_ = set_ = pin_memory = _without_memory


def _laid_out(memory: torch.Tensor, tensor: StoredTensor) -> torch.Tensor:
    """The view of a backing's values that a tensor is."""
    elements = memory.view(tensor.dtype)
    # What the loop gave may lie behind other values in its memory.
    offset = elements.storage_offset() + tensor.storage_offset()
    return elements.as_strided(tensor.size(), tensor.stride(), offset)


def without_memory(name: str) -> Exception:
    """The error of who asks for the memory of values that have none."""
    return error(
        "streamed-without-memory",
        f"{name} is in the parameter store, and has no memory of its own to point to or to share",
        help="take a copy with .clone() first, or call streamed.close()",
    )


def _is_scaled(tensor: torch.Tensor, factor: object) -> bool:
    """Whether a multiplication of a whole backing by a number could be left to the backing."""
    if isinstance(factor, torch.Tensor):
        factor = None if factor.dim() or isinstance(factor, StoredTensor) else factor.item()
    return (
        isinstance(tensor, StoredTensor)
        and tensor.numel() == tensor.backing.shape.numel()
        and tensor.dtype is tensor.backing.dtype
        and tensor.dtype.is_floating_point
        and isinstance(factor, (int, float))
        and tensor.backing.scale(float(factor))
    )


def _view(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor = next(leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, StoredTensor))
    meta = pytree.tree_map_only(StoredTensor, _geometry, args)
    return pytree.tree_map_only(
        torch.Tensor,
        lambda geometry: StoredTensor(tensor.backing, geometry, is_in_graph=tensor.is_in_graph),
        func(*meta, **kwargs),
    )


def _geometry(tensor: StoredTensor) -> torch.Tensor:
    num_bytes = tensor.backing.shape.numel() * tensor.backing.dtype.itemsize
    base = torch.empty(num_bytes // tensor.dtype.itemsize, dtype=tensor.dtype, device="meta")
    return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _one_by_one(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator over lists, one index after the other: no two values need to be there."""
    length = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    outs = []
    for index in range(length):
        single = [[arg[index]] if isinstance(arg, (list, tuple)) else arg for arg in args]
        outs.append(_compute(func, single, kwargs))
    return None if outs[0] is None else [out[0] for out in outs]


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    leaves = pytree.arg_tree_leaves(*args, **kwargs)
    backings = {leaf.backing for leaf in leaves if isinstance(leaf, StoredTensor)}
    values = {backing: flat(backing.tensor()) for backing in backings}
    given: dict[int, StoredTensor] = {}

    def view(tensor: StoredTensor) -> torch.Tensor:
        made = _laid_out(values[tensor.backing], tensor)
        given[id(made)] = tensor
        return made

    real_args, real_kwargs = pytree.tree_map_only(StoredTensor, view, (tuple(args), dict(kwargs)))
    written = dict.fromkeys(_written(func, args, kwargs))
    for tensor in written:
        _check_writable(tensor)
    out = func(*real_args, **real_kwargs)
    for backing in dict.fromkeys(tensor.backing for tensor in written):
        backing.changed(values[backing].as_strided(backing.shape, backing.strides))
    return pytree.tree_map_only(torch.Tensor, lambda leaf: given.get(id(leaf), leaf), out)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[StoredTensor]:
    """The arguments that an operator writes to."""
    return [
        leaf
        for index, argument in enumerate(func._schema.arguments)  # noqa: SLF001 - no public name
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in pytree.tree_leaves(
            args[index] if index < len(args) else kwargs.get(argument.name)
        )
        if isinstance(leaf, StoredTensor)
    ]


def _check_writable(tensor: StoredTensor) -> None:
    if tensor.is_in_graph:
        raise error(
            "streamed-leaf-written",
            f"{tensor.backing.name} requires a gradient, and is written in place while autograd "
            "records",
            help="write under torch.no_grad(), or to parameter.data",
        )


def _values_of(tensor: StoredTensor) -> torch.Tensor:
    return tensor.detach().clone()


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


class WeightsHome(ABC):
    """Where the weights of released parameters are."""

    @abstractmethod
    def get(self, name: str) -> Backing:
        """The weights of a parameter."""

    @abstractmethod
    def write(self, name: str, value: torch.Tensor) -> None:
        """Give a parameter other weights, as ``load_state_dict`` does."""

    @abstractmethod
    def replace(self, name: str, value: torch.Tensor) -> None:
        """``parameter.data = value``."""


class GradientsHome(ABC):
    """Where the gradients of released parameters are.

    Attributes:
        looks_empty: whether code runs that is to find none, as an optimizer's step.
    """

    looks_empty: bool

    @abstractmethod
    def get(self, name: str) -> StoredTensor | None:
        """``parameter.grad``."""

    @abstractmethod
    def put(self, name: str, gradient: torch.Tensor | None) -> None:
        """``parameter.grad = gradient``."""

    @abstractmethod
    def clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """See :meth:`StreamedLoop.clip_grad_norm_`."""

    @abstractmethod
    def note_outside(self, name: str) -> None:
        """A gradient comes from outside its layer, as no plan knows."""


@dataclass(frozen=True)
class Home:
    """Where a parameter's weights and gradient are when it is released.

    Attributes:
        name: of the parameter.
        weights, gradients: of the model.
        copied: the error of who copies the parameter.
    """

    name: str
    weights: WeightsHome
    gradients: GradientsHome
    copied: Callable[[], OpenwaferError]

    @property
    def backing(self) -> Backing:
        """Of the weights."""
        return self.weights.get(self.name)


class ReleasedParameter(nn.Parameter):
    """A parameter that knows its shape, and finds its weights and its gradient in the store."""

    home: Home

    @property
    def data(self) -> torch.Tensor:
        return self.home.backing.whole()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value is not self:
            self.home.weights.replace(self.home.name, value)

    @property
    def grad(self) -> torch.Tensor | None:
        return self.home.gradients.get(self.home.name)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self.home.gradients.put(self.home.name, value)

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
            return func(args[0].home.backing.geometry(), *args[1:], **kwargs)
        if func in _NEEDS_MEMORY:
            raise without_memory(f"the weight {args[0].home.name!r}")
        if func is torch.Tensor.register_post_accumulate_grad_hook:
            raise gradient_hook(args[0].home.name)
        if func is torch.autograd.grad:
            return _differentiate(*args, **kwargs)
        if func in (torch.Tensor.backward, torch.autograd.backward):
            raise _backward_of_inputs()
        if func is torch.Tensor.copy_ and isinstance(args[0], cls) and not torch.is_grad_enabled():
            args[0].home.weights.write(args[0].home.name, _without_released(args[1]))
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
        ctx.home.gradients.note_outside(ctx.home.name)
        return gradient


def _stored(parameter: ReleasedParameter, *, is_in_graph: bool) -> StoredTensor:
    backing = parameter.home.backing
    return StoredTensor(backing, backing.geometry(), is_in_graph=is_in_graph)


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
