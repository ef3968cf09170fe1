"""The vendor's reader of symbols and trace buffers after a run."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from openwafer.diagnostics import error
from openwafer.sdk.compat.finished_runs import last_memory

__all__ = ["debug_util"]

TraceValue: TypeAlias = int | float | bool | str

_BYTE_TAGS: Final = "?bB"
_TIMESTAMP_WORDS: Final = 3


class debug_util:  # noqa: N801 - the vendor's name
    """Reads the memory that the last run of a program ended with.

    Coordinates count from the north-west corner of the whole fabric.
    """

    def __init__(self, bindir: Path | str, cmaddr: str | None = None) -> None:
        if cmaddr:
            raise error("no-system", f"there is no system at {cmaddr}: only the simulator is read")
        self._dump = last_memory(Path(bindir))

    def get_symbol(self, col: int, row: int, symbol: str, dtype: DTypeLike) -> NDArray[Any]:
        """Return the values of a symbol of one PE."""
        offset = self._dump.program.offset
        x, y = col - offset[0], row - offset[1]
        return self._dump.content(x, y, symbol).view(dtype)

    def get_symbol_rect(
        self, rectangle: tuple[tuple[int, int], tuple[int, int]], symbol: str, dtype: DTypeLike
    ) -> NDArray[Any]:
        """Return the values of a symbol of a rectangle of PEs, shape (columns, rows, n)."""
        (col, row), (width, height) = rectangle
        return np.stack(
            [
                np.stack([self.get_symbol(x, y, symbol, dtype) for y in range(row, row + height)])
                for x in range(col, col + width)
            ]
        )

    def read_trace(self, px: int, py: int, name: str) -> list[TraceValue]:
        """Return the values that a PE recorded in the trace buffer of that name."""
        words = self.get_symbol(px, py, f"$$csl_debug.{name}.buffer", np.uint16)
        index = self.get_symbol(px, py, f"$$csl_debug.{name}.buffer_index", np.uint16)
        return list(parse_trace(words[: int(index[0])]))


def parse_trace(words: NDArray[np.uint16]) -> Iterator[TraceValue]:
    """Values of the records: a tag word, its low byte a kind and its high byte a value or size."""
    position = 0
    while position < len(words):
        tag, high = chr(int(words[position]) & 0xFF), int(words[position]) >> 8
        position += 1
        if tag in _BYTE_TAGS:
            yield struct.unpack(tag, bytes([high]))[0]
            continue
        size = _payload_words(tag, high)
        payload = words[position : position + size].tobytes()
        position += size
        yield _payload_value(tag, payload)


def _payload_words(tag: str, high: int) -> int:
    if tag == "t":
        return _TIMESTAMP_WORDS
    if tag == "s":
        return high // 2
    if tag not in "hHeiIf":
        raise error("trace-record", f"a trace record has the unknown kind {tag!r}")
    return struct.calcsize(f"<{tag}") // 2


def _payload_value(tag: str, payload: bytes) -> TraceValue:
    if tag == "t":
        return int.from_bytes(payload, "little")
    if tag == "s":
        return payload.split(b"\0")[0].decode()
    value: TraceValue = struct.unpack(f"<{tag}", payload)[0]
    return value
