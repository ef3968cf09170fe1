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
8-11                                                        extents, innermost first
12-15                                                       strides in words, signed
=====  =======================  ==========================  ===============================

A circular buffer is a mem1d whose word 6 is the number of elements behind which it begins again.
A mem4d access begins at its base; the step from one element to the next is the stride of the
outermost dimension that moves, so strides count from the last element of the inner ones, as CSL
writes them.
"""

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Final

DSD_WORDS: Final = 8
DSD4_WORDS: Final = 16

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
    """Elements of a mem1d, fabin or fabout."""
    return words[WORD_EXTENT] | words[WORD_EXTENT + 1] << 16
