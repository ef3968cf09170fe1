"""What a router does with a color."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Direction(IntEnum):
    """A router's links; bit numbers of the masks below and of the color registers."""

    WEST = 0
    EAST = 1
    SOUTH = 2
    NORTH = 3
    RAMP = 4


OPPOSITE = {
    Direction.WEST: Direction.EAST,
    Direction.EAST: Direction.WEST,
    Direction.SOUTH: Direction.NORTH,
    Direction.NORTH: Direction.SOUTH,
    Direction.RAMP: Direction.RAMP,
}
STEPS = {
    Direction.WEST: (-1, 0),
    Direction.EAST: (1, 0),
    Direction.SOUTH: (0, 1),
    Direction.NORTH: (0, -1),
}
"""Columns and rows to the neighbour."""


class PopMode(IntEnum):
    """When a control wavelet loses its first command; codes of the color registers."""

    NO_POP = 0
    ALWAYS_POP = 1
    POP_ON_ADVANCE = 2
    POP_ON_ADVANCE_NOP = 3


@dataclass(frozen=True)
class SwitchPosition:
    """A later position of a switch: what it changes; ``None`` keeps that of the position before."""

    rx: int | None = None
    tx: int | None = None


@dataclass(frozen=True)
class Switches:
    """Positions 1 to 3 behind the base route, which is position 0."""

    positions: tuple[SwitchPosition, ...] = ()
    current: int = 0
    is_ring: bool = False
    pop_mode: PopMode = PopMode.NO_POP


class FilterKind(StrEnum):
    """How a filter counts."""

    COUNTER = "counter"
    SPARSE_COUNTER = "sparse_counter"
    RANGE = "range"


@dataclass(frozen=True)
class Filter:
    """What of a color's traffic reaches the core; fields as CSL names them."""

    kind: FilterKind
    count_data: bool = False
    count_control: bool = False
    init_counter: int = 0
    limit1: int = 0
    limit2: int = 0
    max_counter: int = 0
    filter_control: bool = False
    min_index: int = 0
    max_index: int = 0


@dataclass(frozen=True)
class ColorConfig:
    """Configuration of one color at one router.

    Attributes:
        rx: mask of directions that wavelets come from.
        tx: mask of directions they leave to.
        swap_x: traffic that crosses east or west changes between colors ``c`` and ``c ^ 1``.
        swap_y: the same for north and south.
        is_torn_down: the color starts suspended.
    """

    rx: int
    tx: int
    switches: Switches | None = None
    filter: Filter | None = None
    swap_x: bool = False
    swap_y: bool = False
    is_torn_down: bool = False
