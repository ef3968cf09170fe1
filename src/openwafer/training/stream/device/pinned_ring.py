"""Page-locked host memory of exact size, through which copies to and from a GPU pass.

A copy overlaps compute only when the host side of it is page-locked. What lies in the store is
ordinary memory, as much as there is; so copies pass through a small ring of chunks. torch rounds
page-locked tensors up to a power of two, so the ring is a mapping of its own that is registered
with CUDA.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.diagnostics import error
from openwafer.training.store.pages import HostBuffer

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
