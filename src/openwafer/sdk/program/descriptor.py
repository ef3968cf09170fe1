"""How a DSD lies in memory and in a request: 16-bit words, least significant first.

=====  =======================  ==========================  ===============================
word   mem1d                    fabin, fabout               mem4d (16 words)
=====  =======================  ==========================  ===============================
0      kind, flags              kind, flags                 kind, flags
1      base address in words    color                       base address in words
2, 3   extent                   extent                      number of dimensions, 0
4      stride in words, signed  queue                       0
5      words of an element      words of an element         words of an element
6      0                        control transform           0
7      0                        priority                    0
8-11                                                        extents, innermost first, then 1
12-15                                                       strides in words, signed
=====  =======================  ==========================  ===============================

A circular buffer is a mem1d whose word 6 is the number of elements behind which it begins again.
A mem4d access begins at its base; the step from one element to the next is the stride of the
outermost dimension that moves, so strides count from the last element of the inner ones, as CSL
writes them.
"""

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from math import prod
from typing import Final

DSD_WORDS: Final = 8
DSD4_WORDS: Final = 16
MAX_DIMS: Final = 4
ENDLESS_EXTENT: Final = 0x7FFF
"""What published programs give to operations that pass on whatever comes, without an end."""

WORD_KIND: Final = 0
WORD_BASE: Final = 1
WORD_COLOR: Final = 1
WORD_EXTENT: Final = 2
WORD_STRIDE: Final = 4
WORD_QUEUE: Final = 4
WORD_ELEMENT: Final = 5
WORD_CONTROL_TRANSFORM: Final = 6
WORD_WRAPAROUND: Final = 6
WORD_PRIORITY: Final = 7
WORD_EXTENTS4: Final = 8
WORD_STRIDES4: Final = 12

KIND_MASK: Final = 0x7
NO_QUEUE: Final = 0xFFFF
NO_COLOR: Final = 0xFFFF


class DsdKind(IntEnum):
    """Low bits of word 0."""

    NONE = 0
    MEM1D = 1
    FABIN = 2
    FABOUT = 3
    MEM4D = 4
    CIRCULAR = 5


class DsdFlag(IntFlag):
    """The other bits of word 0."""

    CONTROL = 1 << 3
    """Wavelets leave with their control bit set."""
    SIMD = 1 << 4
    """Two 16-bit elements travel in one wavelet."""
    ADVANCE_SWITCH = 1 << 5
    """A switch-advance control follows the last wavelet."""
    WAVELET_INDEX = 1 << 6
    """The operation's index goes into the high half of a wavelet, or is added to the base."""
    ZERO_FIRST = 1 << 7
    ZERO_SECOND = 1 << 8
    HAS_CONTROL_TRANSFORM = 1 << 9


def extent_of(words: Sequence[int]) -> int:
    """Elements that a descriptor names; a circular buffer comes back to them."""
    if words[WORD_KIND] & KIND_MASK == DsdKind.MEM4D:
        return prod(words[WORD_EXTENTS4 : WORD_EXTENTS4 + MAX_DIMS])
    return words[WORD_EXTENT] | words[WORD_EXTENT + 1] << 16


def reach(words: Sequence[int], num_words: int, length: int) -> tuple[int, int]:
    """Words from the base to the lowest and to the highest of the first elements.

    Args:
        words: of a mem1d or a mem4d.
        num_words: of an element of the operation, which strides count in.
        length: number of elements, at least 1.
    """
    scale = num_words / (words[WORD_ELEMENT] or num_words)
    if words[WORD_KIND] & KIND_MASK != DsdKind.MEM4D:
        return _reach([(length, _signed(words[WORD_STRIDE]) * scale)], length)
    dims, span = [], 0.0
    for dim in range(words[WORD_EXTENT]):
        extent, stride = words[WORD_EXTENTS4 + dim], _signed(words[WORD_STRIDES4 + dim])
        dims.append((extent, stride * scale + span))
        span += (extent - 1) * dims[-1][1]
    return _reach(dims, length)


def _signed(word: int) -> int:
    return word - (word >> 15 << 16)


def _reach(dims: Sequence[tuple[int, float]], length: int) -> tuple[int, int]:
    """Of extents and distances in words, innermost first."""
    if not dims:
        return 0, 0
    *inner, (_, step) = dims
    size = prod(extent for extent, _ in inner)
    turns, last = divmod(length - 1, size)
    low, high = _reach(inner, last + 1)
    ends = [(low + turns * step, high + turns * step)]
    if turns:
        whole = _reach(inner, size)
        ends += [(whole[0] + turn * step, whole[1] + turn * step) for turn in (0, turns - 1)]
    return int(min(low for low, _ in ends)), int(max(high for _, high in ends))
