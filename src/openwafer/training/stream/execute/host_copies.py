"""Copies in host memory of tensors that wait on the device for their backward."""

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary, ref

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.utils.weak import TensorWeakRef

from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.saved_weights import Geometry, whole_storage
from openwafer.training.stream.execute.snapshot import version_of

# Smaller storages stay on the device: their transfer costs more than their bytes.
MIN_OFFLOAD_BYTES: Final = 4096


class OffloadedStorage:
    """One storage in host memory, brought back on first use."""

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self._device = device
        whole = whole_storage(tensor)
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
class OffloadedTensor:
    storage: OffloadedStorage
    seen: Geometry

    def restored(self) -> torch.Tensor:
        """The tensor, on the device."""
        return self.seen.view_of(self.storage.restore())


class HostCopies:
    """Storages that one move brings to host memory, each once, whatever frames hold it.

    Attributes:
        taken: the storages that were copied, with their sizes, until somebody clears the list.
    """

    def __init__(self, device: Device) -> None:
        self.taken: list[tuple[ref[torch.UntypedStorage], int]] = []
        self._device = device
        self._copies: WeakKeyDictionary[torch.UntypedStorage, OffloadedStorage] = (
            WeakKeyDictionary()
        )

    def take(self, tensor: torch.Tensor) -> OffloadedTensor | None:
        """The copy of a tensor; ``None`` where its storage is too small to be moved."""
        storage = tensor.untyped_storage()
        if storage.nbytes() < MIN_OFFLOAD_BYTES:
            return None
        copy = self._copies.get(storage)
        if copy is None:
            copy = self._copies[storage] = OffloadedStorage(tensor, self._device)
            self.taken.append((ref(storage), storage.nbytes()))
        return OffloadedTensor(copy, Geometry.of(tensor))


class MovedInput:
    """A tensor as long as somebody else has it, and then its copy.

    Args:
        tensor: may move, see :meth:`may_move`.
        copy: of its values.
    """

    def __init__(self, tensor: torch.Tensor, copy: OffloadedTensor) -> None:
        self._here, self._copy = TensorWeakRef(tensor), copy
        self._version, self._requires_grad = version_of(tensor), tensor.requires_grad

    @staticmethod
    def may_move(tensor: torch.Tensor, device: Device) -> bool:
        """Whether an operator of the pass has made it, and a copy of its bits tells all of it.

        What the caller gives, such as the batch, is nobody's activation: no graph counts it.
        """
        return (
            type(tensor) is torch.Tensor
            and tensor.grad_fn is not None
            and tensor.layout is torch.strided
            and tensor.device.type == device.torch_device.type
            and not tensor.is_inference()
            and unpack_dual(tensor).tangent is None
        )

    @property
    def version(self) -> int:
        """Of the tensor, now or when it was moved."""
        here = self._here()
        return self._version if here is None else version_of(here)

    def tensor(self) -> torch.Tensor:
        """The tensor, on the device."""
        here = self._here()
        return self._copy.restored().requires_grad_(self._requires_grad) if here is None else here


class KnownCopy:
    """A storage's copy, and the tensor whose version counter tells whether it still holds.

    Tensors of one storage may have counters of their own, as pieces by ``unsafe_chunk`` and
    ``tensor.data`` have: an equal version of another tensor's counter says nothing. A view has the
    counter of its base.
    """

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self.storage = OffloadedStorage(tensor, device)
        self._counted, self._version = TensorWeakRef(counted_by(tensor)), tensor._version

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the storage is known to be as it was copied."""
        return self._counted() is counted_by(tensor) and self._version == tensor._version


def counted_by(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with whose version counter a tensor's writes are counted."""
    return tensor if tensor._base is None else tensor._base
