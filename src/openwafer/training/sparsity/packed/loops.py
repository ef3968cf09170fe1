"""The loops that pack and unpack, compiled.

Those that unpack fill `row_starts` and `columns`, which has a place more than there are kept
positions: they write before they know whether a position is kept, since a branch that follows
random bits costs ten times as much. They return -1, or the row whose bytes no pattern can have.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.training.sparsity.compiled import compiled


@compiled
def pack_bits(
    row_starts: NDArray[np.int64], columns: NDArray[Any], width: int, packed: NDArray[np.uint8]
) -> None:
    """Set the bit of each kept position; `packed` comes as zeros."""
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            bit = row * width + np.int64(columns[place])
            packed[bit >> 3] |= np.uint8(1 << (bit & 7))


@compiled
def unpack_bits(
    packed: NDArray[np.uint8], width: int, row_starts: NDArray[np.int64], columns: NDArray[Any]
) -> None:
    """Columns of the set bits, of which there are as many as kept positions."""
    place = 0
    bit = 0
    for row in range(row_starts.size - 1):
        for column in range(width):
            columns[place] = column
            place += (packed[bit >> 3] >> (bit & 7)) & 1
            bit += 1
        row_starts[row + 1] = place


@compiled
def pack_offsets(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    block: int,
    counts: NDArray[np.uint8],
    offsets: NDArray[np.uint8],
) -> None:
    """Columns counted by block (`[rows, blocks]`, comes as zeros), and their places in it."""
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            column = np.uint32(columns[place])
            number = column // np.uint32(block)
            counts[row, number] += np.uint8(1)
            offsets[place] = column - number * np.uint32(block)


@compiled
def unpack_offsets(
    counts: NDArray[np.uint8],
    offsets: NDArray[np.uint8],
    widths: tuple[int, int],
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from counts by block and places in the block; widths of a block and of a row."""
    block, width = widths
    place = 0
    for row in range(counts.shape[0]):
        for number in range(counts.shape[1]):
            count = np.int64(counts[row, number])
            if place + count > offsets.size:
                return row
            for _ in range(count):
                offset = np.int64(offsets[place])
                if offset >= block or number * block + offset >= width:
                    return row
                columns[place] = number * block + offset
                place += 1
        row_starts[row + 1] = place
    return -1 if place == offsets.size else counts.shape[0] - 1


@compiled
def pack_deltas(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    counts: NDArray[Any],
    deltas: NDArray[Any],
) -> None:
    """Columns of each row counted, and each one's distance from the one before it."""
    for row in range(row_starts.size - 1):
        counts[row] = row_starts[row + 1] - row_starts[row]
        before = np.int64(0)
        for place in range(row_starts[row], row_starts[row + 1]):
            column = np.int64(columns[place])
            deltas[place] = column - before
            before = column


@compiled
def unpack_deltas(
    counts: NDArray[Any],
    deltas: NDArray[Any],
    width: int,
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from their distances."""
    place = 0
    for row in range(counts.size):
        column = np.int64(0)
        count = np.int64(counts[row])
        if place + count > deltas.size:
            return row
        for _ in range(count):
            column += np.int64(deltas[place])
            if column >= width:
                return row
            columns[place] = column
            place += 1
        row_starts[row + 1] = place
    return -1 if place == deltas.size else counts.size - 1


@compiled
def pack_groups(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    code_of: NDArray[np.int64],
    shape: tuple[int, int, int],
    packed: NDArray[np.uint8],
) -> int:
    """Code after code of each group's choice; `code_of` tells it by the bits of the choice.

    `shape` is groups in a row, columns in a group, bits of a code; `packed` comes as zeros, with
    three bytes more than the codes need. Returns the first row in which a choice has no code.
    """
    groups, group, bits = shape
    at = 0
    for row in range(row_starts.size - 1):
        place = row_starts[row]
        for number in range(groups):
            choice = np.int64(0)
            while place < row_starts[row + 1] and columns[place] < (number + 1) * group:
                choice |= 1 << (np.int64(columns[place]) - number * group)
                place += 1
            if code_of[choice] < 0:
                return row
            code = code_of[choice] << (at & 7)
            for byte in range(3):
                packed[(at >> 3) + byte] |= np.uint8((code >> (8 * byte)) & 255)
            at += bits
    return -1


@compiled
def unpack_groups(
    packed: NDArray[np.uint8],
    choices: NDArray[np.int64],
    shape: tuple[int, int, int],
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from codes; `choices` tells by the code which bits are the kept ones."""
    groups, group, bits = shape
    at = 0
    place = 0
    for row in range(row_starts.size - 1):
        for number in range(groups):
            code = np.int64(0)
            for byte in range(3):
                code |= np.int64(packed[(at >> 3) + byte]) << (8 * byte)
            code = (code >> (at & 7)) & ((1 << bits) - 1)
            if code >= choices.size:
                return row
            for column in range(group):
                columns[place] = number * group + column
                place += (choices[code] >> column) & 1
            at += bits
        row_starts[row + 1] = place
    return -1
