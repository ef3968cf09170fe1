"""Counts the bytes of all tensor storages on a device that has no allocator of its own."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from openwafer.diagnostics import error
from openwafer.training.dispatch_modes import Unguarded
from openwafer.training.torch_private import TorchDispatchMode

Call: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def call_operator(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator as it is."""
    return operator(*args, **kwargs)


class _Paused:
    """See :meth:`MemoryMeter.paused`; a generator in its place takes as long as a small copy."""

    __slots__ = ("_meter", "_was_paused")

    def __init__(self, meter: "MemoryMeter") -> None:
        self._meter, self._was_paused = meter, False

    def __enter__(self) -> None:
        self._was_paused, self._meter.is_paused = self._meter.is_paused, True

    def __exit__(self, *_: object) -> None:
        self._meter.is_paused = self._was_paused


class MemoryMeter(Unguarded, TorchDispatchMode):
    """Meter of the storages created or touched by operators while the mode is active.

    A storage counts from the first operator that returns a tensor on it until its last tensor
    dies, so views count once and freed activations stop counting at once. Works for real tensors
    and for fake ones alike, which is how a plan predicts the peak before anything is allocated.

    Attributes:
        used_bytes: bytes alive now.
        peak_bytes: the largest ``used_bytes`` since :meth:`reset_peak`.
        budget_bytes: the cap; passing it raises ``device-budget-exceeded``. ``None`` is no cap.
        call: calls an operator with its arguments.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.is_paused = False
        self.call: Call = call_operator
        self._num_bytes: dict[weakref.ref[torch.UntypedStorage], int] = {}
        # A storage may die in any thread, in this one while it counts another.
        self._lock = threading.RLock()

    def reset_peak(self) -> None:
        """Start a new peak from the bytes alive now."""
        self.peak_bytes = self.used_bytes

    def paused(self) -> AbstractContextManager[None]:
        """While open, what operators return lies in host memory and does not count."""
        return _Paused(self)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that no operator under this mode has returned, such as an input."""
        if tensor.layout is not torch.strided:
            raise error(
                "sparse-gradient",
                f"an operator returned a tensor of layout {tensor.layout}, and the parameter store "
                "keeps dense gradients",
                help="build embeddings with sparse=False",
            )
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._forget)
        num_bytes = storage.nbytes()
        if num_bytes == 0 or reference in self._num_bytes:
            return
        self._num_bytes[reference] = num_bytes
        with self._lock:
            self.used_bytes += num_bytes
        self._see_peak(tensor)

    def _see_peak(self, tensor: torch.Tensor) -> None:
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
            if self.budget_bytes is not None and self.used_bytes > self.budget_bytes:
                self._refuse(tensor)

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a part of a storage that stays here, of which other parts may be of no use."""
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._forget)
        with self._lock:
            self._num_bytes[reference] = self._num_bytes.get(reference, 0) + tensor.nbytes
            self.used_bytes += tensor.nbytes
        self._see_peak(tensor)

    def give_up(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage no more, though it lives on."""
        reference = weakref.ref(tensor.untyped_storage())
        num_bytes = self._num_bytes.pop(reference, 0)
        with self._lock:
            self.used_bytes -= num_bytes

    def counts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is among those that count."""
        return weakref.ref(tensor.untyped_storage()) in self._num_bytes

    def _forget(self, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        num_bytes = self._num_bytes.pop(reference)
        with self._lock:
            self.used_bytes -= num_bytes

    def _refuse(self, tensor: torch.Tensor) -> None:
        raise error(
            "device-budget-exceeded",
            f"the device holds {self.used_bytes:,} bytes, over its budget of "
            f"{self.budget_bytes:,} bytes",
            notes=(f"the allocation that passed it: {tuple(tensor.shape)} {tensor.dtype}",),
            help="raise the device budget, or lower the micro-batch size or the sequence length",
        )

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = self.call(func, args, kwargs or {})
        if self.is_paused:
            return out
        if isinstance(out, torch.Tensor):
            self.count(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                if isinstance(item, torch.Tensor):
                    self.count(item)
        return out
