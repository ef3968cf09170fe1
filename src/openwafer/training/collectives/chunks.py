"""Threads beside compute's own pass tensors between ranks in chunks.

A rank passes a chunk on while it waits for the next one.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Final

from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import Group

CHUNK_BYTES: Final = 1 << 20
"""The longest one, and where nobody has measured how fast they pass."""
LEAST_CHUNK_BYTES: Final = 1 << 16
CHUNK_SECONDS: Final = 0.02
"""On its way over a link: some hundred times what a message costs beside its bytes, and little
enough for a rank to have passed on most of a record before its last chunk comes."""


def chunk_bytes_at(bytes_per_second: float) -> int:
    """The length of chunks on links of that rate: a power of two."""
    fitting = 1 << max(int(CHUNK_SECONDS * bytes_per_second), 1).bit_length() - 1
    return min(max(fitting, LEAST_CHUNK_BYTES), CHUNK_BYTES)


def chunks_of(tensor: Tensor, chunk_bytes: int) -> Sequence[Tensor]:
    """Parts of a contiguous tensor, in its memory: none longer, only the last one shorter."""
    size = max(chunk_bytes // tensor.element_size(), 1)
    chunks: Sequence[Tensor] = tensor.reshape(-1).split(size)
    return chunks


def receive_chunks(
    group: Group, chunks: Sequence[Tensor], source: int, tag: int, what: str
) -> Iterator[Tensor]:
    """Ask for all chunks of a tensor at once, here and now; each is given when it has come.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    coming = [group.receive(one, source, tag, what) for one in chunks]

    def given() -> Iterator[Tensor]:
        for chunk, pending in zip(chunks, coming, strict=True):
            pending.wait()
            yield chunk

    return given()


def run_beside(
    task: Callable[[], None], name: str, ended: Callable[[BaseException | None], None]
) -> None:
    """Begin a task in a thread of that name, and tell there, at its end, what it has raised."""

    def run() -> None:
        failure: BaseException | None = None
        try:
            task()
        except OpenwaferError as found:
            failure = found
        finally:
            ended(failure or sys.exception())

    # A message that never comes cannot be called off: it must not keep the process.
    Thread(target=run, name=name, daemon=True).start()
