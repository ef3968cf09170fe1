"""Directions, edges, routing positions and colors, under the vendor's names."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import NUM_COLORS


class Route(Enum):
    """A direction of a router's link."""

    RAMP = "RAMP"
    EAST = "EAST"
    WEST = "WEST"
    NORTH = "NORTH"
    SOUTH = "SOUTH"

    @property
    def opposite(self) -> "Route":
        """The neighbour's name of the same link."""
        return _OPPOSITE[self]

    @property
    def step(self) -> tuple[int, int]:
        """Columns and rows to the neighbour."""
        return _STEPS[self]


_OPPOSITE: Final = {
    Route.RAMP: Route.RAMP,
    Route.EAST: Route.WEST,
    Route.WEST: Route.EAST,
    Route.NORTH: Route.SOUTH,
    Route.SOUTH: Route.NORTH,
}
_STEPS: Final = {
    Route.RAMP: (0, 0),
    Route.EAST: (1, 0),
    Route.WEST: (-1, 0),
    Route.NORTH: (0, -1),
    Route.SOUTH: (0, 1),
}


class Edge(Enum):
    """An edge of a region."""

    TOP = Route.NORTH
    BOTTOM = Route.SOUTH
    LEFT = Route.WEST
    RIGHT = Route.EAST

    @property
    def outside(self) -> Route:
        """Direction out of the region."""
        return self.value


@dataclass(frozen=True)
class Position:
    """One position of a switch, or the route of a color without one."""

    inputs: tuple[Route, ...] = ()
    outputs: tuple[Route, ...] = ()


class RoutingPosition:
    """Builds a position; every method gives the object back."""

    def __init__(self) -> None:
        self.position = Position()

    def set_input(self, routes: Sequence[Route]) -> Self:
        """Replace where wavelets come from."""
        self.position = Position(tuple(routes), self.position.outputs)
        return self

    def set_output(self, routes: Sequence[Route]) -> Self:
        """Replace where wavelets go."""
        self.position = Position(self.position.inputs, tuple(routes))
        return self

    def add_input(self, route: Route) -> Self:
        """Let wavelets also come from there."""
        return self.set_input([*self.position.inputs, route])

    def add_output(self, route: Route) -> Self:
        """Let wavelets also go there."""
        return self.set_output([*self.position.outputs, route])

    def get_input(self) -> list[Route]:
        """Where wavelets come from."""
        return list(self.position.inputs)

    def get_output(self) -> list[Route]:
        """Where wavelets go."""
        return list(self.position.outputs)


@dataclass(frozen=True)
class EdgeRouteInfo:
    """Positions of the PEs of one edge."""

    edge: Edge
    positions: tuple[Position, ...]


def get_edge_routing(edge: Edge, routes: Sequence[RoutingPosition]) -> EdgeRouteInfo:
    """Return positions for an edge."""
    return EdgeRouteInfo(edge, positions_of(routes))


def positions_of(routes: Sequence[RoutingPosition]) -> tuple[Position, ...]:
    """Return the finished positions. Raises OpenwaferError when there are none, or too many."""
    if not 1 <= len(routes) <= 4:
        raise error("layout-positions", f"a color has 1 to 4 routing positions, got {len(routes)}")
    return tuple(route.position for route in routes)


class Color:
    """A color; without a value the compiler chooses one.

    Two objects are two colors, also when their names are equal.
    """

    def __init__(self, name: str, value: int | None = None, region: str = "") -> None:
        if value is not None and not 0 <= value < NUM_COLORS:
            raise error("layout-color", f"color {name} is {value}; colors go from 0 to 23")
        self._name = name
        self._value = value
        self._region = region

    def get_value(self) -> int | None:
        """The number given, None when the compiler chooses."""
        return self._value

    def get_local_param_name(self) -> str:
        """The name."""
        return self._name

    def get_global_name(self) -> str:
        """The name behind that of the region it belongs to."""
        return f"{self._region}_{self._name}" if self._region else self._name
