"""Watches what a model's code does in a dry run that a streamed step could not do, or not undo."""

import dis
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.device.device import MemoryMeter
from openwafer.training.stream.device.saved_weights import Geometry
from openwafer.training.stream.device.weights import DeviceWeights, WeightUses
from openwafer.training.stream.execute.host_copies import counted_by
from openwafer.training.stream.execute.reach import ATOMS, functions_reached
from openwafer.training.stream.execute.snapshot import (
    LayerState,
    Snapshot,
    reached_from,
    version_of,
)
from openwafer.training.stream.plan.operators import (
    ASK_DEVICE,
    CountingMeter,
)
from openwafer.training.stream.schedule import Visit
from openwafer.training.torch_private import (
    DisableTorchFunction,
    pytree,
    tensors_in,
)


@cache
def _computes(operator: Any) -> bool:
    return operator.namespace != "prim" and not operator.is_view


@cache
def _writes(operator: Any) -> bool:
    return bool(operator._schema.is_mutable)  # noqa: SLF001 - torch has no other way to it


def _writes_foreign(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator writes to a tensor that is not fake; inputs alone are taken as fake."""
    if not _writes(operator):
        return False
    schema = operator._schema  # noqa: SLF001 - torch has no other way to it
    written = {
        argument.name: index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    values = [
        args[index] if index < len(args) else kwargs.get(name) for name, index in written.items()
    ]
    return any(type(tensor) is torch.Tensor for tensor in tensors_in(values))


class WatchingMeter(CountingMeter):
    """A meter that also notes uses of weights that are not on the device, and writes to others.

    Attributes:
        host_peak_bytes: see :attr:`DryRun.host_bytes`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.host_peak_bytes = 0
        self._aside = MemoryMeter()
        self.weights: DeviceWeights | None = None
        self.misused: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.offset: dict[str, None] = {}
        self.uncounted = UncountedWrites()
        # Called where an operator on fake tensors writes to one that is not.
        self.on_foreign_write: Callable[[], None] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASK_DEVICE:
            return args[0].fake_device
        # Modes that watch functions have seen this one's; to them each shape read here is another.
        with DisableTorchFunction():
            return self._watched(func, types, args, kwargs)

    def _watched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.weights is not None and not self.is_paused and _computes(func):
            for tensor in tensors_in([*args, *(kwargs or {}).values()]):
                name = self.weights.released_parameter(tensor)
                if name is not None:
                    self.misused[name] = None
            if _writes(func):
                self._note_writes(self.weights, func, args, kwargs or {})
        if self.weights is not None and func is torch.ops.aten.as_strided.default:
            self._note_offset(self.weights, *args, **(kwargs or {}))
        if self.on_foreign_write is not None and _writes_foreign(func, args, kwargs or {}):
            self.on_foreign_write()
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._note_host_bytes(out if self.is_paused and _computes(func) else None)
        return out

    def _note_host_bytes(self, put_aside: object) -> None:
        for tensor in () if put_aside is None else tensors_in([put_aside]):
            if not self.counts(tensor):
                self._aside.count(tensor)
        if self.used_bytes + self._aside.used_bytes <= self.host_peak_bytes:
            return
        held = self._aside.used_bytes
        if self.weights is not None and self.weights.device.torch_device.type == "cpu":
            held += self.used_bytes - self.weights.lent_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, held)

    def _note_offset(
        self,
        weights: DeviceWeights,
        tensor: torch.Tensor,
        _size: object,
        _stride: object,
        storage_offset: int | None = None,
    ) -> None:
        """A weight that shares its storage is not where it would be in one of its own."""
        # What is as large as its storage is a slot, whose views this program takes.
        is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        name = None if storage_offset is None or is_whole else weights.bound_parameter(tensor)
        if name is not None and weights.offset_bytes(name):
            self.offset[name] = None

    def _note_writes(self, weights: DeviceWeights, func: Any, args: Any, kwargs: Any) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            if argument.is_write:
                if isinstance(value, torch.Tensor):
                    self.uncounted.note_write(value)
                for tensor in tensors_in([value, *kwargs.values()]):
                    name = weights.bound_parameter(tensor)
                    if name is not None:
                        self.written[name] = None


_GRADIENT: Final[Any] = torch.Tensor.grad
_OF_GRADIENT: Final = (_GRADIENT.__get__, _GRADIENT.__set__)


class SavedWeights(TorchFunctionMode):
    """Refuses a backward that reads or writes ``.grad`` of a weight that it had saved.

    In a plain loop that tensor is the parameter. Here it is another tensor of the same values, as
    it is under any saved-tensor hooks, and a gradient that is written to it is lost.
    """

    def __init__(self, weights: DeviceWeights, visits: Sequence[Visit]) -> None:
        super().__init__()
        self._weights = weights
        records = chain.from_iterable(visit.records for visit in visits)
        self._num_calls = Counter(chain.from_iterable(map(weights.names, records)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OF_GRADIENT:
            name = self._weights.bound_parameter(args[0])
            is_parameter = isinstance(args[0], nn.Parameter)
            is_given = func == _GRADIENT.__set__ and args[1] is not None
            if name is not None and is_parameter and is_given and self._num_calls[name] > 1:
                raise error(
                    "gradient-of-calls",
                    f"a backward gives {name!r} its .grad, and its layer is called more than once "
                    "in a forward: the gradient of each call leaves for the store by itself",
                    help="return the gradient from backward, or keep the layer's weights in a "
                    "tensor of your own, such as weight.main_grad",
                )
            if name is not None and not is_parameter:
                raise error(
                    "saved-weight-gradient",
                    f"a backward uses .grad of the saved weight {name!r}, which is not the "
                    "parameter here: a gradient written to it would be lost",
                    help="return the gradient from backward; to add it up elsewhere, keep the "
                    "parameter, ctx.weight = weight, and use a tensor of your own, such as "
                    "weight.main_grad",
                )
        return func(*args, **(kwargs or {}))


class NotedUses(WeightUses):
    """Notes what a step's code does with weights, which the step is then refused for."""

    def __init__(self, meter: WatchingMeter, pinned: Sequence[str]) -> None:
        self._meter, self._pinned = meter, pinned

    def written(self, name: str) -> None:
        """See :class:`WeightUses`."""
        self._meter.written[name] = None

    def kept(self, names: Sequence[str]) -> None:
        """See :class:`WeightUses`."""
        self._meter.misused.update(dict.fromkeys(n for n in names if n not in self._pinned))

    def saved(self, layer: str, tensor: torch.Tensor) -> None:
        """See :class:`WeightUses`."""
        self._meter.uncounted.note_saved(layer, tensor)


UNCOUNTED: Final = "it writes to what it has saved in a way that torch does not count (tensor.data)"
"""Why such a layer cannot run again."""


class _Saved(NamedTuple):
    layer: str
    storage: weakref.ref[torch.UntypedStorage]
    counted: TensorWeakRef
    seen: Geometry


class UncountedWrites:
    """Knows what layers have saved, and sees writes to it that nobody counts.

    Attributes:
        layers: whose activations are right only where they are kept.
    """

    def __init__(self) -> None:
        self.layers: dict[str, None] = {}
        self._saved: dict[int, list[_Saved]] = {}

    def note_saved(self, layer: str, tensor: torch.Tensor) -> None:
        """A layer that does not keep what it saves has saved this."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        saved = _Saved(
            layer, weakref.ref(storage), TensorWeakRef(counted_by(tensor)), Geometry.of(tensor)
        )
        self._saved.setdefault(storage._cdata, []).append(saved)

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator is about to write to this."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        for saved in self._saved.get(storage._cdata, ()):
            is_counted = saved.counted() is counted_by(tensor)
            if saved.storage() is storage and not is_counted and _overlap(saved.seen, tensor):
                self.layers[saved.layer] = None


def _overlap(seen: Geometry, tensor: torch.Tensor) -> bool:
    # Nothing is read or written there: it is memory that the system has not given out.
    room = np.empty(tensor.untyped_storage().nbytes(), np.uint8)
    one, other = (_laid_out(room, each) for each in (seen, Geometry.of(tensor)))
    return np.shares_memory(one, other)


def _laid_out(room: NDArray[np.uint8], seen: Geometry) -> NDArray[np.void]:
    item = seen.dtype.itemsize
    strides = tuple(stride * item for stride in seen.stride)
    return np.ndarray(seen.size, np.dtype(f"V{item}"), room.data, seen.offset * item, strides)


MAX_SHOWN: Final = 3


class ForwardWatch:
    """Looks at every layer call of a forward, from before it to behind it.

    Args:
        modules: the layers by name.
        states: what may change, since a recomputation restores it.
        unmetered: makes a context in which tensors do not count as the step's.

    Attributes:
        reasons: why a layer cannot be recomputed, by name.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        states: Mapping[str, LayerState],
        unmetered: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.reasons: dict[str, str] = {}
        self._modules = modules
        self._states = states
        self._unmetered = unmetered
        self._around: dict[str, Snapshot] = {}
        self._inputs: list[tuple[str, weakref.ref[torch.Tensor], int]] = []
        self._running: str | None = None

    @contextmanager
    def around(self, layer: str, args: Any, kwargs: Any) -> Iterator[None]:
        """Context of one call of a layer."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        versions = [version_of(tensor) for tensor in tensors]
        with self._unmetered():
            own = self._states[layer].now().targets()
            around, passed = self._snapshot(layer), reached_from(_objects(leaves))
        self._running = layer
        try:
            yield
        finally:
            self._running = None
        changed = [*around.changed(own), *(f"its argument {name}" for name in passed.changed(own))]
        if versions != [version_of(tensor) for tensor in tensors]:
            changed.append("an input, in place")
        if changed:
            self.note(layer, f"its forward changes {', '.join(changed[:MAX_SHOWN])}")
        self._inputs += [(layer, weakref.ref(tensor), version_of(tensor)) for tensor in tensors]

    def _snapshot(self, layer: str) -> Snapshot:
        known = self._around.get(layer)
        if known is None or known.changed():
            known = reached_from(self._modules[layer].named_modules())
            self._around[layer] = known
        return known

    def note(self, layer: str, reason: str) -> None:
        """Keep the first reason found for a layer."""
        self.reasons.setdefault(layer, reason)

    def note_write(self) -> None:
        """The running layer writes to a tensor that is not of this model."""
        if self._running is not None:
            self.note(self._running, "its forward writes to a tensor outside the model")

    def end_forward(self) -> None:
        """Note the layers whose inputs were written after their calls."""
        for layer, reference, version in self._inputs:
            tensor = reference()
            if tensor is not None and version_of(tensor) != version:
                self.note(layer, "an input is written in place after its forward")
        self._inputs.clear()


def _objects(leaves: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Of the arguments, what is neither a plain value nor a tensor."""
    for leaf in leaves:
        if type(leaf) not in ATOMS and not isinstance(leaf, torch.Tensor):
            yield type(leaf).__name__, leaf


ALL_ATTRIBUTES = frozenset({"__dict__", "vars"})


class Derived:
    """Calls operators, and knows which tensors come from some others or from random numbers.

    Args:
        call: calls an operator.
        sources: the others, in containers.
    """

    def __init__(self, call: Callable[..., Any], sources: object) -> None:
        self._call = call
        self._storages: set[weakref.ref[torch.UntypedStorage]] = set()
        self._add(sources)

    def __call__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""
        found = self._call(operator, args, kwargs)
        is_drawn = torch.Tag.nondeterministic_seeded in operator.tags
        if is_drawn or self.has((args, kwargs)):
            self._add(found)
            if operator._schema.is_mutable:  # noqa: SLF001 - torch has no other way to it
                self._add(args)
        return found

    def _add(self, values: object) -> None:
        self._storages.update(map(weakref.ref, _storages(values)))

    def has(self, value: object) -> bool:
        """Whether a tensor in a value comes from the others."""
        return any(weakref.ref(storage) in self._storages for storage in _storages(value))


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()


def harmless_names(
    first: Iterable[tuple[str, object]],
    later: Snapshot,
    model: nn.Module,
    comes_from_data: Callable[[object], bool],
) -> Iterator[str]:
    """Names of the changes that each system may have for itself.

    Args:
        first: names and values of what the first forwards have changed.
        later: the state behind these, before other forwards, which have run.
        model: whose forwards they are.
        comes_from_data: whether a value may be another one on another system.
    """
    again = set(later.changed())
    unread = _names_unread(model)
    for name, value in first:
        is_once = name not in again and not comes_from_data(value)
        if is_once or name.rpartition(".")[2] in unread:
            yield name


def _names_unread(model: nn.Module) -> set[str]:
    """Attributes that a model's code writes and never reads, of whatever object."""
    codes = [function.__code__ for function in functions_reached(model)]
    written, read = set[str](), set[str]()
    for name, is_written in (one for code in codes for one in _names_used(code)):
        (written if is_written else read).add(name)
    if read & ALL_ATTRIBUTES:
        return set()
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(kind).values():
            if isinstance(function, FunctionType):
                read.update(
                    name for name, is_written in _names_used(function.__code__) if not is_written
                )
    return written - read


def _names_used(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Names in a function's code, each with whether it is that of an attribute that is set."""
    for instruction in dis.get_instructions(code):
        if isinstance(instruction.argval, str):
            # Constants, too: getattr takes them.
            yield instruction.argval, instruction.opname == "STORE_ATTR"
        elif isinstance(instruction.argval, CodeType):
            yield from _names_used(instruction.argval)


@contextmanager
def walked_backward(*, is_fake: bool) -> Iterator[None]:
    """Context of the backward of a walk.

    Args:
        is_fake: whether tensors have no values, which may be what code stumbles over: the step is
            walked with values then.

    Raises:
        OpenwaferError: ``backward-raises``.
    """
    try:
        yield
    except OpenwaferError:
        raise
    except Exception as cause:
        if is_fake:
            raise RuntimeError("a backward fails on tensors without values") from cause
        raise error(
            "backward-raises",
            f"the backward of this step raises {cause!r}, and no plan can tell what it needs "
            "behind that",
            help="let the first step end; what is to raise in it may be a hook of a module or of a "
            "parameter",
        ) from cause


def let_hooks_raise(model: nn.Module, *, is_fake: bool) -> None:
    """Let a walk go on behind backward hooks of modules that raise.

    Args:
        model: a copy.
        is_fake: see :func:`walked_backward`.
    """
    for module in model.modules():
        for hooks in (module._backward_hooks, module._backward_pre_hooks):  # noqa: SLF001 - none public
            hooks.update({key: partial(_call, hook, is_fake) for key, hook in hooks.items()})


def _call(hook: Callable[..., Any], is_fake: bool, *args: Any) -> Any:
    try:
        return hook(*args)
    except OpenwaferError:
        raise
    except Exception:
        if is_fake:
            raise
        return None
