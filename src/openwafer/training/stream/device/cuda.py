"""A GPU as the device: torch's caching allocator, and a copy stream in each direction.

Compute runs on the stream that is current where the model is called; autograd returns to it in
the backward pass, in threads of its own. A copy runs on the stream of its direction, behind an
event of the compute that it depends on, and compute waits for a copy by an event in turn, so the
host never waits for the GPU on behalf of weights.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch.nn.functional import linear

from openwafer.diagnostics import error
from openwafer.training.store.layout import flat, laid_out_like
from openwafer.training.store.pages import HostBuffer
from openwafer.training.stream.device.device import HostTransfer, Submitted, Transfer
from openwafer.training.stream.device.layer_backend import TORCH
from openwafer.training.torch_private import clear_cublas_workspaces

SUCCESS: Final = 0
# Registered for every CUDA context of the process (cudaHostRegisterPortable).
PORTABLE: Final = 1


@dataclass(frozen=True)
class Piece:
    """A run of a copy's bytes, from ``start`` to ``end``, and the chunk that it passes through."""

    chunk: int
    start: int
    end: int


@dataclass(frozen=True)
class RingShape:
    """A ring of ``num_chunks`` chunks of ``chunk_bytes`` bytes."""

    chunk_bytes: int
    num_chunks: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks."""
        return self.chunk_bytes * self.num_chunks

    def pieces(self, num_bytes: int, first_chunk: int) -> Iterator[Piece]:
        """Cut a copy of ``num_bytes`` into pieces for the chunks from ``first_chunk`` on."""
        for number, start in enumerate(range(0, num_bytes, self.chunk_bytes)):
            end = min(start + self.chunk_bytes, num_bytes)
            yield Piece((first_chunk + number) % self.num_chunks, start, end)


class PinnedRing:
    """Chunks of page-locked memory, used in turn by the copies on one stream.

    A copy overlaps compute only when the host side of it is page-locked. What lies in the store is
    ordinary memory, as much as there is; so copies pass through a few chunks. torch rounds
    page-locked tensors up to a power of two, so the ring is a mapping of its own.

    Raises:
        OpenwaferError: ``pinned-memory-refused`` when CUDA does not register the memory.
    """

    def __init__(self, shape: RingShape) -> None:
        self.shape = shape
        self._buffer = HostBuffer(shape.num_bytes)
        self._chunks = torch.split(self._buffer.tensor, shape.chunk_bytes)
        # Waiting for these puts the thread to sleep instead of spinning.
        self._copied = [torch.cuda.Event(blocking=True) for _ in self._chunks]
        self._next_chunk = 0
        _register(self._buffer)
        # The mapping must outlive its registration; at exit both go with the process.
        weakref.finalize(self, _unregister, self._buffer, self._copied).atexit = False

    def pieces(self, num_bytes: int) -> Iterator[Piece]:
        """The pieces of the next copy, in order."""
        for piece in self.shape.pieces(num_bytes, self._next_chunk):
            self._next_chunk = (piece.chunk + 1) % self.shape.num_chunks
            yield piece

    def claim(self, piece: Piece) -> torch.Tensor:
        """The memory for a piece, uint8 [bytes], once the last copy through its chunk has ended."""
        # An event that was never recorded is over.
        self._copied[piece.chunk].synchronize()
        return self._chunks[piece.chunk].narrow(0, 0, piece.end - piece.start)

    def note_copy(self, piece: Piece, stream: torch.cuda.Stream) -> None:
        """A copy from or to the piece's chunk has been submitted to the stream."""
        self._copied[piece.chunk].record(stream)


def _register(buffer: HostBuffer) -> None:
    address = buffer.tensor.data_ptr()
    code = int(torch.cuda.cudart().cudaHostRegister(address, buffer.num_bytes, PORTABLE))
    if code != SUCCESS:
        raise error(
            "pinned-memory-refused",
            f"CUDA did not page-lock {buffer.num_bytes:,} bytes of host memory (error {code})",
            help="free host memory, or raise the container's limit on locked memory",
        )


def _unregister(buffer: HostBuffer, copied: Sequence[torch.cuda.Event]) -> None:
    for event in copied:
        event.synchronize()
    torch.cuda.cudart().cudaHostUnregister(buffer.tensor.data_ptr())


RING: Final = RingShape(chunk_bytes=8 << 20, num_chunks=4)
# The allocator takes memory in segments; one of its small and one of its large ones, of 2 and
# 20 MiB, may be next to empty.
SEGMENT_BYTES: Final = 22 << 20


class _Upload:
    """A copy to the GPU, on its way once a thread of the host has submitted all of it."""

    def __init__(self, submitted: Future[torch.cuda.Event], torch_device: torch.device) -> None:
        self._submitted = submitted
        self._torch_device = torch_device

    def wait(self) -> None:
        """See :class:`~openwafer.training.stream.device.device.Transfer`."""
        torch.cuda.current_stream(self._torch_device).wait_event(self._submitted.result())

    def wait_until_read(self) -> None:
        """See :class:`~openwafer.training.stream.device.device.Transfer`."""
        self._submitted.result()


class CopyLane:
    """One direction of the link: a stream, the ring it copies through, the thread that feeds it.

    Copies are made one after the other. Where they go is dense.
    """

    def __init__(self, name: str, torch_device: torch.device, shape: RingShape = RING) -> None:
        self._stream = torch.cuda.Stream(torch_device)
        self._ring = PinnedRing(shape)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"copy-{name}")

    def upload(
        self, destination: torch.Tensor, source: torch.Tensor, after: Submitted
    ) -> Future[torch.cuda.Event]:
        """Begin to copy to the GPU; the event comes behind the copy, the source is read by then."""
        return self._thread.submit(self._upload, _flat_bytes(destination), source, after)

    def download(
        self, source: torch.Tensor, destination: torch.Tensor, after: Submitted
    ) -> Future[None]:
        """Begin to copy from the GPU; the future ends when the bytes are in the destination."""
        # Out of the list, the source is let go before anybody learns that the copy has ended.
        return self._thread.submit(self._download, [source], destination, after)

    def _upload(
        self, target: torch.Tensor, source: torch.Tensor, after: Submitted
    ) -> torch.cuda.Event:
        origin = _flat_bytes(source)
        with self._behind(after):
            for piece in self._ring.pieces(origin.numel()):
                staged = self._ring.claim(piece)
                staged.copy_(origin[piece.start : piece.end])
                target[piece.start : piece.end].copy_(staged, non_blocking=True)
                self._ring.note_copy(piece, self._stream)
            return _recorded(self._stream)

    def _download(
        self, held: list[torch.Tensor], destination: torch.Tensor, after: Submitted
    ) -> None:
        under_way: deque[Piece] = deque()
        target = _flat_bytes(destination)
        with self._behind(after):
            # Held to the end: a copy in other strides still reads it when this has been submitted.
            source = held.pop()
            origin = _flat_bytes(laid_out_like(source, destination))
            for piece in self._ring.pieces(origin.numel()):
                if len(under_way) == self._ring.shape.num_chunks:
                    self._land(under_way.popleft(), target)
                staged = self._ring.claim(piece)
                staged.copy_(origin[piece.start : piece.end], non_blocking=True)
                self._ring.note_copy(piece, self._stream)
                under_way.append(piece)
            for piece in under_way:
                self._land(piece, target)

    def _land(self, piece: Piece, target: torch.Tensor) -> None:
        target[piece.start : piece.end].copy_(self._ring.claim(piece))

    @contextmanager
    def _behind(self, after: Submitted) -> Iterator[None]:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            try:
                yield
            except BaseException:
                # Nothing writes to memory that is somebody else's once this is told.
                self._stream.synchronize()
                raise


class CudaDevice:
    """A GPU; see :class:`~openwafer.training.stream.device.device.Device`.

    Args:
        torch_device: a CUDA device that is there.
        budget_bytes: cap on what torch's allocator may take from the GPU during a step. Passing it
            is the error ``device-budget-exceeded``, or without a budget ``device-memory-full``.
    """

    def __init__(self, torch_device: torch.device, budget_bytes: int | None = None) -> None:
        # The device of a tensor has a number, whether or not the one asked for has.
        self.torch_device = torch.empty(0, device=torch_device).device
        self.budget_bytes = budget_bytes
        self.is_asynchronous = True
        self.backend = TORCH
        self.overhead_bytes = SEGMENT_BYTES + library_bytes(self.torch_device)
        self.link_bytes_per_second: float | None = None
        self.memory_bytes = torch.cuda.get_device_properties(self.torch_device).total_memory
        # Page-locking opens a context on the current device, where there is none.
        with torch.cuda.device(self.torch_device):
            self._lane_in = CopyLane("in", self.torch_device)
            self._lane_out = CopyLane("out", self.torch_device)
        self._last_download: Transfer | None = None

    @contextmanager
    def active(self, *, is_watched: bool = False) -> Iterator[None]:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        budget = self.memory_bytes if self.budget_bytes is None else self.budget_bytes
        share = min(budget / self.memory_bytes, 1.0)
        with torch.cuda.device(self.torch_device):
            # The process's own, or that of another model's pass.
            before = torch.cuda.get_per_process_memory_fraction(self.torch_device)
            torch.cuda.set_per_process_memory_fraction(min(share, before), self.torch_device)
            try:
                yield
            except torch.OutOfMemoryError as cause:
                raise self._full(cause) from cause
            finally:
                torch.cuda.set_per_process_memory_fraction(before, self.torch_device)

    def _full(self, cause: torch.OutOfMemoryError) -> Exception:
        code, cap = "device-memory-full", f"all {self.memory_bytes:,} bytes of it"
        if self.budget_bytes is not None:
            code, cap = "device-budget-exceeded", f"its budget of {self.budget_bytes:,} bytes"
        reserved = torch.cuda.memory_reserved(self.torch_device)
        return error(
            code,
            f"{self.torch_device} holds {self.used_bytes:,} bytes in {reserved:,} bytes of "
            f"segments, and one more tensor would pass {cap}",
            notes=(str(cause).partition("\n")[0],),
            help="raise the device budget, lower the micro-batch size or the sequence length, or "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )

    def forward_only(self) -> AbstractContextManager[object]:
        """See ``Device``. A cap of the process would be one of the loop's own tensors, too."""
        return nullcontext()

    def watch(self, held: Iterable[torch.Tensor] = ()) -> None:
        """See ``Device``. The allocator knows its bytes at all times."""

    def watch_room(self) -> Callable[[], bool]:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        return lambda: True

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """See ``Device``. The allocator counts them."""

    def host_section(self) -> AbstractContextManager[object]:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        return nullcontext()

    def submitted(self) -> Submitted:
        """See :class:`~openwafer.training.stream.device.device.Device`.

        Raises:
            OpenwaferError: ``device-graph``; here, because uploads are begun by other threads,
                whose streams nobody captures.
        """
        if torch.cuda.is_current_stream_capturing():
            raise error(
                "device-graph",
                "a CUDA graph is being captured of a model whose weights are streamed, and a graph "
                "that is replayed finds other weights where it was captured with these",
                help="capture what has no streamed layer in it, or give the model a device memory "
                "in which it is resident",
            )
        return _recorded(torch.cuda.current_stream(self.torch_device))

    def upload(self, destination: torch.Tensor, source: torch.Tensor, after: Submitted) -> Transfer:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        return _Upload(self._lane_in.upload(destination, source, after), self.torch_device)

    def download(
        self, source: torch.Tensor, destination: torch.Tensor, after: Submitted
    ) -> Transfer:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        if self._last_download is not None:
            self._last_download.wait()
        self._last_download = HostTransfer(self._lane_out.download(source, destination, after))
        return self._last_download

    def give_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        on_host = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.download(tensor, on_host, self.submitted()).wait()
        return on_host

    @property
    def used_bytes(self) -> int:
        """See ``Device``. Those of all the process."""
        return torch.cuda.memory_allocated(self.torch_device)

    @property
    def peak_bytes(self) -> int:
        """See ``Device``. Those of all the process."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    @property
    def flops(self) -> None:
        """See ``Device``. Nothing counts them here."""
        return None

    def reset_peak(self) -> None:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def synchronize(self) -> None:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        torch.cuda.synchronize(self.torch_device)


@cache
def library_bytes(torch_device: torch.device) -> int:
    """Device bytes that cuBLAS keeps once there were products: a workspace a thread.

    Forward and backward run in threads of their own, so both are run.
    """
    clear_cublas_workspaces()
    before = torch.cuda.memory_allocated(torch_device)
    # A device may be made for a forward under no_grad().
    with torch.inference_mode(mode=False), torch.enable_grad():
        for dtype in (torch.float32, torch.bfloat16):
            _multiply(torch_device, dtype)
    return torch.cuda.memory_allocated(torch_device) - before


def _multiply(torch_device: torch.device, dtype: torch.dtype) -> None:
    weight = torch.ones(64, 64, dtype=dtype, device=torch_device, requires_grad=True)
    linear(weight, weight, weight[0]).sum().backward()
    torch.cuda.synchronize(torch_device)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return flat(tensor.detach()).view(torch.uint8)
