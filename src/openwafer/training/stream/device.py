"""The device that computes: its memory and the link to the store.

Two real devices share one protocol. :class:`CpuDevice` is a part of host memory with a metered cap
and, for measurements, a link of a stated rate; :class:`~openwafer.training.stream.cuda_device
.CudaDevice` is a GPU with pinned rings and copy streams.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from openwafer.training.stream.meter import MemoryMeter


class Transfer(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """Return once work submitted from here on sees the copied bytes."""


class Device(Protocol):
    """Memory, link and streams of the machine that computes.

    Attributes:
        torch_device: where tensors are made.
        is_asynchronous: whether copies run beside compute, so that host work belongs on a thread.
        budget_bytes: cap on the bytes it may hold; ``None`` is no cap.
    """

    torch_device: torch.device
    is_asynchronous: bool
    budget_bytes: int | None

    def active(self) -> AbstractContextManager[object]:
        """Context in which tensors made by the calling thread belong to the device."""

    def host_section(self) -> AbstractContextManager[object]:
        """Context, inside :meth:`active`, in which tensors made belong to the host."""

    def upload(self, slot: torch.Tensor, source: torch.Tensor) -> Transfer:
        """Begin to copy host bytes ``source`` into ``slot`` (both uint8 [bytes])."""

    def download(self, source: torch.Tensor, destination: torch.Tensor) -> Transfer:
        """Begin to copy a device tensor into host memory of the same shape and dtype."""

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes held since :meth:`reset_peak`."""

    def reset_peak(self) -> None:
        """Start a new peak."""

    def synchronize(self) -> None:
        """Wait for all work submitted."""


class _Done:
    def wait(self) -> None:
        """Nothing to wait for."""


class _OnThread:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class CpuDevice:
    """Host memory as a device: every byte metered, an optional cap, an optional slow link.

    Args:
        budget_bytes: cap; passing it is the error ``device-budget-exceeded``.
        link_bytes_per_second: rate of the link, in each direction; ``None`` copies at once, in the
            calling thread.
    """

    def __init__(
        self, budget_bytes: int | None = None, link_bytes_per_second: float | None = None
    ) -> None:
        self.torch_device = torch.device("cpu")
        self.budget_bytes = budget_bytes
        self.is_asynchronous = link_bytes_per_second is not None
        self.meter = MemoryMeter(budget_bytes)
        self._rate = link_bytes_per_second
        self._links: dict[str, ThreadPoolExecutor] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """See :class:`Device`."""
        with self.meter:
            yield

    def host_section(self) -> AbstractContextManager[object]:
        """See :class:`Device`."""
        return self.meter.paused()

    def upload(self, slot: torch.Tensor, source: torch.Tensor) -> Transfer:
        """See :class:`Device`."""
        return self._copy("in", slot, source)

    def download(self, source: torch.Tensor, destination: torch.Tensor) -> Transfer:
        """See :class:`Device`."""
        return self._copy("out", destination, source)

    def _copy(self, direction: str, destination: torch.Tensor, source: torch.Tensor) -> Transfer:
        if self._rate is None:
            with torch.no_grad(), self.meter.paused():
                destination.copy_(source)
            return _Done()
        link = self._links.get(direction)
        if link is None:
            link = ThreadPoolExecutor(1, thread_name_prefix=f"link-{direction}")
            self._links[direction] = link
        return _OnThread(link.submit(self._copy_slowly, destination, source, self._rate))

    @staticmethod
    def _copy_slowly(destination: torch.Tensor, source: torch.Tensor, rate: float) -> None:
        start = time.perf_counter()
        with torch.no_grad():
            destination.copy_(source)
        left = source.numel() * source.element_size() / rate - (time.perf_counter() - start)
        if left > 0:
            time.sleep(left)

    @property
    def used_bytes(self) -> int:
        """See :class:`Device`."""
        return self.meter.used_bytes

    @property
    def peak_bytes(self) -> int:
        """See :class:`Device`."""
        return self.meter.peak_bytes

    def reset_peak(self) -> None:
        """See :class:`Device`."""
        self.meter.reset_peak()

    def synchronize(self) -> None:
        """See :class:`Device`."""
