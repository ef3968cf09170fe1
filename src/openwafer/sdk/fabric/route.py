"""A color's configuration at one router as one 64-bit word.

Positions 0 to 3 of the switch hold what they transmit to and receive from in full; a position that
changes one of the two has the other from the position before it.

======  =========================================================
bits    meaning
======  =========================================================
0-39    by position: 5 bits transmit, 5 bits receive
40-41   current position
42-44   positions 1-3 are valid
45      ring mode
46-47   pop mode
48, 49  swap for traffic that crosses east-west, north-south
50      torn down
51-56   number of the filter among the PE's + 1
57-62   positions 1-3: it changes transmit, it changes receive
======  =========================================================
"""

from typing import Final

from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.program.routing import ColorConfig, SwitchPosition

RAMP_BIT: Final = 16
DIRECTIONS_MASK: Final = 31
RECEIVE_SHIFT: Final = 5
"""From the bits of what a position transmits to, to those of what it receives from."""
POSITION_SHIFT: Final = 40
VALID_SHIFT: Final = 42
RING_BIT: Final = 1 << 45
POP_SHIFT: Final = 46
SWAP_X_BIT: Final = 1 << 48
SWAP_Y_BIT: Final = 1 << 49
TORN_BIT: Final = 1 << 50
FILTER_SHIFT: Final = 51
FILTER_MASK: Final = 63
CHANGES_SHIFT: Final = 57


def pack_route(config: ColorConfig, filter_number: int = -1) -> int:
    """The word of a configuration; `filter_number` counts the PE's filters."""
    word = config.tx | config.rx << 5
    word |= SWAP_X_BIT * config.swap_x | SWAP_Y_BIT * config.swap_y | TORN_BIT * config.is_torn_down
    word |= (filter_number + 1) << FILTER_SHIFT
    switches = config.switches
    if switches is None:
        return word
    word |= switches.current << POSITION_SHIFT | RING_BIT * switches.is_ring
    word |= int(switches.pop_mode) << POP_SHIFT
    for number, position in enumerate(switches.positions, start=1):
        word = _with_position(word, number, position)
    return int(derived(word))


def _with_position(word: int, number: int, position: SwitchPosition) -> int:
    changes = (position.tx is not None) | (position.rx is not None) << 1
    if not changes:
        return word
    both = (position.tx or 0) | (position.rx or 0) << 5
    word |= 1 << (VALID_SHIFT + number - 1)
    word |= changes << (CHANGES_SHIFT + 2 * (number - 1))
    return word | both << (10 * number)


@compiled
def position_of(word: int) -> int:
    """Current position of the switch."""
    return (word >> POSITION_SHIFT) & 3


@compiled
def transmits(word: int) -> int:
    """Mask of directions that the current position sends to."""
    return (word >> (10 * position_of(word))) & DIRECTIONS_MASK


@compiled
def receives(word: int) -> int:
    """Mask of directions that the current position takes from."""
    return (word >> (10 * position_of(word) + 5)) & DIRECTIONS_MASK


@compiled
def with_field(word: int, shift: int, mask: int, value: int) -> int:
    """The word with one field replaced."""
    return (word & ~(mask << shift)) | ((value & mask) << shift)


def derived(word: int) -> int:
    """Fill what positions 1 to 3 have from the position before them."""
    for number in range(1, 4):
        changes = (word >> (CHANGES_SHIFT + 2 * (number - 1))) & 3
        kept = (0 if changes & 1 else 31) | (0 if changes & 2 else 31 << 5)
        before = (word >> (10 * (number - 1))) & kept
        word = (word & ~(kept << (10 * number))) | before << (10 * number)
    return word


derive = compiled(derived)


@compiled
def advanced(word: int) -> int:
    """The word after a switch advance."""
    position = position_of(word)
    if position < 3 and (word >> (VALID_SHIFT + position)) & 1:
        return with_field(word, POSITION_SHIFT, 3, position + 1)
    if word & RING_BIT:
        return with_field(word, POSITION_SHIFT, 3, 0)
    return word
