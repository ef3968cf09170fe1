"""What becomes of the activations a layer saves for its backward pass.

One :class:`Frame` stands for one call of a layer by one micro-batch. Its saved-tensor hooks see
every tensor that autograd saves: weights are replaced by handles, activations are kept, offloaded
to host memory, or dropped and recomputed. The autograd graph is always that of the plain call, so
sums run in the plain order and gradients keep their bits.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from openwafer.diagnostics import error
from openwafer.training.metrics.plan_record import Activations
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.weights import DeviceWeights, WeightHandle
from openwafer.training.stream.execute.random_state import RandomState

# Smaller storages stay on the device: their transfer costs more than their bytes.
MIN_OFFLOAD_BYTES: Final = 4096


class _AllCollectedError(Exception):
    """Ends a recomputation once every tensor that the backward pass wants is there."""


@dataclass(frozen=True)
class Call:
    """A layer call that can be run again.

    Attributes:
        layer: name, for messages.
        function: the layer's own forward.
        args, kwargs: its arguments.
        buffers: the layer's buffers that its forward changes.
    """

    layer: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    buffers: tuple[torch.Tensor, ...] = ()


class Frame:
    """The saved tensors of one layer call.

    Args:
        weights: tells weights from activations.
        ensure: brings a record to the device; called before a weight is used in backward.
    """

    def __init__(self, weights: DeviceWeights, ensure: Callable[[str], None]) -> None:
        self._weights = weights
        self._ensure = ensure

    def hooks(self) -> AbstractContextManager[Any]:
        """Context under which the layer's forward runs."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> object:
        handle = self._weights.handle(tensor)
        return self._pack_activation(tensor) if handle is None else handle

    def _unpack(self, packed: object) -> torch.Tensor:
        if isinstance(packed, WeightHandle):
            self._ensure(packed.record)
            return self._weights.resolve(packed)
        return self._unpack_activation(packed)

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        return tensor

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        assert isinstance(packed, torch.Tensor)
        return packed


class _OffloadedStorage:
    """One storage in host memory, brought back on first use."""

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self._device = device
        whole = _whole_storage(tensor)
        with device.host_section():
            self._host = torch.empty(whole.shape, dtype=whole.dtype)
        self._saved = device.download(whole, self._host, device.submitted())
        self._restored: torch.Tensor | None = None

    def restore(self) -> torch.Tensor:
        if self._restored is None:
            self._saved.wait()
            self._restored = torch.empty_like(self._host, device=self._device.torch_device)
            self._device.upload(self._restored, self._host, self._device.submitted()).wait()
        return self._restored


@dataclass(frozen=True, slots=True)
class _OffloadedTensor:
    storage: _OffloadedStorage
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class OffloadFrame(Frame):
    """Copies saved activations to host memory, each storage once."""

    def __init__(self, weights: DeviceWeights, ensure: Callable[[str], None]) -> None:
        super().__init__(weights, ensure)
        # Weak keys: a new storage may live where a freed one did.
        self._storages: WeakKeyDictionary[torch.UntypedStorage, tuple[_OffloadedStorage, int]] = (
            WeakKeyDictionary()
        )

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        storage = tensor.untyped_storage()
        if storage.nbytes() < MIN_OFFLOAD_BYTES:
            return tensor
        known = self._storages.get(storage)
        if known is None or known[1] != tensor._version:
            known = (_OffloadedStorage(tensor, self._weights.device), tensor._version)
            self._storages[storage] = known
        return _OffloadedTensor(
            known[0], tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
        )

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        if not isinstance(packed, _OffloadedTensor):
            return super()._unpack_activation(packed)
        flat = packed.storage.restore().view(packed.dtype)
        return flat.as_strided(packed.size, packed.stride, packed.offset)


class RecomputeFrame(Frame):
    """Drops saved activations and runs the layer again when the backward pass wants them."""

    def __init__(self, weights: DeviceWeights, ensure: Callable[[str], None], call: Call) -> None:
        super().__init__(weights, ensure)
        self._call: Call | None = call
        self._layer = call.layer
        self._num_collected = 0
        self._shapes: list[tuple[torch.Size, torch.dtype]] = []
        self._collected: dict[int, torch.Tensor] = {}
        self._random = RandomState.now(weights.device.torch_device)
        self._autocast = _autocast_settings()
        self._buffers = [buffer.clone() for buffer in call.buffers]
        self._versions = [tensor._version for tensor in _tensors((call.args, call.kwargs))]

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        self._shapes.append((tensor.size(), tensor.dtype))
        return len(self._shapes) - 1

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        assert isinstance(packed, int)
        if self._call is not None:
            call, self._call = self._call, None
            self._recompute(call)
        tensor = self._collected.pop(packed, None)
        if tensor is None:
            raise error(
                "recompute-twice",
                "the backward pass ran a second time through a recomputed layer",
                help="call backward once a forward pass, or keep this layer's activations",
            )
        return tensor

    def _recompute(self, call: Call) -> None:
        self._check_inputs(call)
        args, kwargs = pytree.tree_map_only(torch.Tensor, _detached, (call.args, call.kwargs))
        after = RandomState.now(self._weights.device.torch_device)
        current = [buffer.clone() for buffer in call.buffers]
        _restore(call.buffers, self._buffers)
        self._random.restore()
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                for context in self._autocast:
                    stack.enter_context(context())
                stack.enter_context(saved_tensors_hooks(self._collect, self._unpack))
                call.function(*args, **kwargs)
        except _AllCollectedError:
            pass
        finally:
            after.restore()
            _restore(call.buffers, current)
        if self._num_collected != len(self._shapes):
            raise self._differs(f"saved {self._num_collected} tensors")

    def _collect(self, tensor: torch.Tensor) -> object:
        handle = self._weights.handle(tensor)
        if handle is not None:
            return handle
        index = self._num_collected
        self._num_collected += 1
        if index >= len(self._shapes) or self._shapes[index] != (tensor.size(), tensor.dtype):
            shown = f"{tuple(tensor.size())} {tensor.dtype}"
            raise self._differs(f"saved {shown} as tensor {index}")
        self._collected[index] = tensor.detach()
        if self._num_collected == len(self._shapes):
            raise _AllCollectedError
        return index

    def _check_inputs(self, call: Call) -> None:
        versions = [tensor._version for tensor in _tensors((call.args, call.kwargs))]
        if versions != self._versions:
            raise error(
                "recompute-input-changed",
                f"an input of layer {call.layer!r} was written in place after its forward",
                help="keep this layer's activations: activations: {" + call.layer + ": keep}",
            )

    def _differs(self, found: str) -> Exception:
        return error(
            "recompute-differs",
            f"the recomputation of layer {self._layer!r} does not repeat its forward: it {found}, "
            f"the forward saved {len(self._shapes)} tensors",
            help="keep the activations of a layer whose forward depends on hidden state; a model "
            "that caches keys and values takes use_cache=False in training",
        )


def frame_for(
    policy: Activations, weights: DeviceWeights, ensure: Callable[[str], None], call: Call
) -> Frame:
    """The frame that treats a layer call by ``policy``."""
    match policy:
        case Activations.KEEP:
            return Frame(weights, ensure)
        case Activations.OFFLOAD:
            return OffloadFrame(weights, ensure)
        case Activations.RECOMPUTE:
            return RecomputeFrame(weights, ensure, call)


def changed_buffers(
    buffers: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """Indices of the buffers that differ from their values before.

    Values and not versions are compared: batch normalisation changes its running statistics
    without counting up their versions.
    """
    return tuple(
        index
        for index, (buffer, value) in enumerate(zip(buffers, before, strict=True))
        if not torch.equal(buffer, value)
    )


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage below a tensor, as one flat tensor of its dtype, without a copy."""
    num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((num_elements,), (1,), 0)


def _restore(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


def _autocast_settings() -> tuple[Callable[[], AbstractContextManager[Any]], ...]:
    """Contexts that set autocast as it is set now, for the host and the present accelerator."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def context(kind: str) -> Callable[[], AbstractContextManager[Any]]:
        is_enabled = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind)
        return lambda: torch.autocast(kind, dtype=dtype, enabled=is_enabled)

    return tuple(context(kind) for kind in kinds)
