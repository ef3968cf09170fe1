"""From connections to numbers and routes: colors get values, ports get paths between them."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import NUM_COLORS, Generation
from openwafer.sdk.compat.layout.region import Place, PortHandle
from openwafer.sdk.compat.layout.routes import Color, Position, Route

HOST_INPUT = 22
HOST_OUTPUT = 23
"""Colors between the host and the PEs of its streams; no router carries them."""

# On WSE-2 a color and a local task of the same number share one bit: programs number their tasks
# from 8 on, so those colors come last.
_PREFERRED = (*range(8), *range(16, HOST_INPUT), *range(8, 16))
_MOVES = (Route.EAST, Route.WEST, Route.SOUTH, Route.NORTH)


class ColorValues:
    """Colors that are connected are one; each such class gets a value of its own."""

    def __init__(self) -> None:
        self._parents: dict[Color, Color] = {}

    def add(self, color: Color) -> Color:
        """Return the color that stands for its class."""
        parent = self._parents.setdefault(color, color)
        return color if parent is color else self.add(parent)

    def join(self, one: Color, other: Color) -> None:
        """Make two colors one. Raises OpenwaferError when they have different values."""
        one, other = self.add(one), self.add(other)
        if one is other:
            return
        if other.get_value() is not None:
            if one.get_value() not in (None, other.get_value()):
                raise error(
                    "layout-color",
                    f"{one.get_global_name()} is color {one.get_value()} and "
                    f"{other.get_global_name()} is {other.get_value()}; a connection needs one",
                )
            one, other = other, one
        self._parents[other] = one

    def assign(self, switched: Iterable[Color], generation: Generation) -> dict[Color, int]:
        """Return a value for each color; those of `switched` get one that may have switches.

        They choose before the others, and among themselves in the order in which they were added.
        """
        needs_switch = {self.add(color) for color in switched}
        classes = sorted(
            dict.fromkeys(self.add(color) for color in self._parents),
            key=lambda color: (color.get_value() is None, color not in needs_switch),
        )
        values: dict[Color, int] = {}
        for color in classes:
            taken = set(values.values())
            free = [value for value in _PREFERRED if value not in taken]
            if color in needs_switch:
                free = [value for value in free if value in generation.switch_colors]
            values[color] = self._choose(color, free)
        return {color: values[self.add(color)] for color in self._parents}

    def _choose(self, color: Color, free: list[int]) -> int:
        value = color.get_value()
        if value is not None:
            return value
        if not free:
            raise error("layout-colors", f"the layout needs more than {NUM_COLORS - 2} colors")
        return free[0]


@dataclass
class Grid:
    """Tiles between regions, and the routes that run over them.

    Attributes:
        size: columns and rows.
        occupied: tiles of regions.
        routes: by tile and color.
    """

    size: tuple[int, int]
    occupied: frozenset[Place]
    routes: dict[Place, dict[int, Position]] = field(default_factory=dict)

    def connect(self, tx: PortHandle, rx: PortHandle, value: int) -> None:
        """Lay a path for each pair of PEs of two ports. Raises OpenwaferError where none fits."""
        starts, ends = tx.places(), rx.places()
        if len(starts) != len(ends) or tx.data_size != rx.data_size:
            raise error(
                "layout-connect",
                f"{tx.name} has {len(starts)} PEs and {tx.data_size} wavelets, "
                f"{rx.name} {len(ends)} and {rx.data_size}",
            )
        out, back = tx.edge.outside, rx.edge.outside
        for start, end in zip(starts, ends, strict=True):
            if _move(start, out) == end and out is back.opposite:
                continue
            path = self._find(_move(start, out), frozenset((_move(end, back),)), value)
            if path is None:
                raise error("layout-connect", f"there is no way from {tx.name} to {rx.name}")
            self._lay(path, out, back.opposite, value)

    def reach(self, port: PortHandle, value: int, taken: frozenset[Place]) -> Place:
        """Lay a path between a port of one PE and the nearest free tile, and return the tile.

        There, the path ends at the core: that of a PE which forwards for the host.
        """
        places = port.places()
        if len(places) != 1:
            raise error("layout-stream", f"{port.name} has {len(places)} PEs; a stream needs one")
        outside = port.edge.outside
        first = _move(places[0], outside)
        free = frozenset(place for place in self._tiles() if place not in taken)
        path = self._find(first, free, value)
        if path is None:
            raise error("layout-stream", f"there is no free tile that {port.name} can reach")
        if port.is_input:
            self._lay(path[::-1], Route.RAMP, outside.opposite, value)
        else:
            self._lay(path, outside, Route.RAMP, value)
        return path[-1]

    def _tiles(self) -> Iterator[Place]:
        for y in range(self.size[1]):
            for x in range(self.size[0]):
                if (x, y) not in self.occupied:
                    yield x, y

    def _find(self, start: Place, ends: frozenset[Place], value: int) -> list[Place] | None:
        """Shortest path over free tiles that do not carry the color yet, both ends included."""
        if not self._is_free(start, value):
            return None
        came_from: dict[Place, Place | None] = {start: None}
        queue = deque([start])
        while queue:
            tile = queue.popleft()
            if tile in ends:
                return _trace(tile, came_from)
            for move in _MOVES:
                neighbour = _move(tile, move)
                if neighbour not in came_from and self._is_free(neighbour, value):
                    came_from[neighbour] = tile
                    queue.append(neighbour)
        return None

    def _is_free(self, tile: Place, value: int) -> bool:
        is_inside = 0 <= tile[0] < self.size[0] and 0 <= tile[1] < self.size[1]
        return is_inside and tile not in self.occupied and value not in self.routes.get(tile, {})

    def _lay(self, path: list[Place], entry: Route, leave: Route, value: int) -> None:
        """Route a color along tiles; `entry` and `leave` are directions of travel."""
        moves = [
            next(move for move in _MOVES if _move(one, move) == other)
            for one, other in pairwise(path)
        ]
        travel = [entry, *moves, leave]
        for tile, arriving, leaving in zip(path, travel[:-1], travel[1:], strict=True):
            position = Position((arriving.opposite,), (leaving,))
            self.routes.setdefault(tile, {})[value] = position


def _move(place: Place, direction: Route) -> Place:
    return place[0] + direction.step[0], place[1] + direction.step[1]


def _trace(tile: Place, came_from: dict[Place, Place | None]) -> list[Place]:
    path = [tile]
    while (previous := came_from[path[-1]]) is not None:
        path.append(previous)
    return path[::-1]
