"""Regions of PEs with the same source file, and their ports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.compat.geometry import IntRectangle, IntVector
from openwafer.sdk.compat.layout.routes import (
    Color,
    Edge,
    EdgeRouteInfo,
    Position,
    RoutingPosition,
    positions_of,
)

_SYMBOL_TYPES = ("int32", "uint32", "float32", "int16", "uint16")
Place = tuple[int, int]


@dataclass(frozen=True)
class PortHandle:
    """One edge of a region that data of a color crosses."""

    name: str
    region: "CodeRegion"
    color: Color
    edge: Edge
    is_input: bool
    data_size: int

    def places(self) -> tuple[Place, ...]:
        """The PEs of the edge on the fabric, from the west or north on."""
        x, y = self.region.origin
        return tuple((x + place[0], y + place[1]) for place in self.region.edge_places(self.edge))


class CodeRegion:
    """A rectangle of PEs; what is said of PE (x, y) counts from the region's north-west PE."""

    def __init__(self, source: str, name: str, width: int, height: int) -> None:
        if width < 1 or height < 1:
            raise error("layout-region", f"region {name} is {width} by {height} PEs")
        self.source = source
        self.name = name
        self.width = width
        self.height = height
        self.origin: Place = (0, 0)
        self.params: dict[Place, dict[str, int | Color]] = {
            (x, y): {} for y in range(height) for x in range(width)
        }
        self.paints: dict[Place, dict[Color, tuple[Position, ...]]] = {
            place: {} for place in self.params
        }
        self.symbols: dict[str, NDArray[Any]] = {}
        self.ports: dict[str, PortHandle] = {}

    def color(self, name: str, value: int | None = None) -> Color:
        """Return a new color of this region."""
        return Color(name, value, self.name)

    def place(self, x: int, y: int) -> None:
        """Put the region's north-west PE there."""
        if x < 0 or y < 0:
            raise error("layout-place", f"region {self.name} is placed at ({x}, {y})")
        self.origin = x, y

    def set_param(self, coord: IntVector, name: str | Color, value: int | Color = 0) -> None:
        """Set a parameter of one PE; a color alone sets the parameter of its name."""
        self._set([(coord.x, coord.y)], name, value)

    def set_param_all(self, name: str | Color, value: int | Color = 0) -> None:
        """Set a parameter of all PEs."""
        self._set(self.params, name, value)

    def set_param_range(
        self, rect: IntRectangle, name: str | Color, value: int | Color = 0
    ) -> None:
        """Set a parameter of a rectangle of PEs."""
        self._set([(point.x, point.y) for point in rect.points()], name, value)

    def paint(self, coord: IntVector, color: Color, routes: Sequence[RoutingPosition]) -> None:
        """Route a color on one PE."""
        self._paint([(coord.x, coord.y)], color, positions_of(routes))

    def paint_range(
        self, rect: IntRectangle, color: Color, routes: Sequence[RoutingPosition]
    ) -> None:
        """Route a color on a rectangle of PEs."""
        self._paint([(point.x, point.y) for point in rect.points()], color, positions_of(routes))

    def paint_all(
        self,
        color: Color,
        routes: Sequence[RoutingPosition],
        edge_routes: Sequence[EdgeRouteInfo] = (),
    ) -> None:
        """Route a color on all PEs, on some edges differently."""
        self._paint(self.params, color, positions_of(routes))
        for info in edge_routes:
            self._paint(self.edge_places(info.edge), color, info.positions)

    def create_input_port(
        self,
        color: Color,
        edge: Edge,
        routes: Sequence[RoutingPosition],
        data_size: int,
        prefix: str = "",
    ) -> PortHandle:
        """Let data come in over an edge; `routes` say where it goes from there."""
        self._paint(
            self.edge_places(edge),
            color,
            tuple(Position((edge.outside,), p.outputs) for p in positions_of(routes)),
        )
        return self._add_port(color, edge, is_input=True, data_size=data_size, prefix=prefix)

    def create_output_port(
        self,
        color: Color,
        edge: Edge,
        routes: Sequence[RoutingPosition],
        data_size: int,
        prefix: str = "",
    ) -> PortHandle:
        """Let data go out over an edge; `routes` say where it comes from."""
        self._paint(
            self.edge_places(edge),
            color,
            tuple(Position(p.inputs, (edge.outside,)) for p in positions_of(routes)),
        )
        return self._add_port(color, edge, is_input=False, data_size=data_size, prefix=prefix)

    def set_symbol_all(self, symbol: str, data: NDArray[Any], width: int, height: int) -> None:
        """Spread a 2D array of `height` rows and `width` columns over the PEs' symbols."""
        if str(data.dtype) not in _SYMBOL_TYPES or data.size != width * height:
            raise error(
                "layout-symbol",
                f"{symbol}: {data.size} elements of {data.dtype} are no {width} by {height} array "
                f"of {', '.join(_SYMBOL_TYPES)}",
            )
        if width % self.width or height % self.height:
            raise error(
                "layout-symbol",
                f"{symbol}: {width} by {height} elements do not spread evenly over "
                f"{self.width} by {self.height} PEs",
            )
        self.symbols[symbol] = np.array(data).reshape(height, width)

    def edge_places(self, edge: Edge) -> tuple[Place, ...]:
        """The PEs of an edge, counted in the region."""
        match edge:
            case Edge.TOP:
                return tuple((x, 0) for x in range(self.width))
            case Edge.BOTTOM:
                return tuple((x, self.height - 1) for x in range(self.width))
            case Edge.LEFT:
                return tuple((0, y) for y in range(self.height))
            case Edge.RIGHT:
                return tuple((self.width - 1, y) for y in range(self.height))

    def part_of_symbol(self, symbol: str, place: Place) -> NDArray[Any]:
        """Return the elements of one PE."""
        data = self.symbols[symbol]
        height, width = data.shape[0] // self.height, data.shape[1] // self.width
        x, y = place[0] * width, place[1] * height
        return data[y : y + height, x : x + width]

    def _set(self, places: Iterable[Place], name: str | Color, value: int | Color) -> None:
        if isinstance(name, Color):
            value = name
            name = name.get_local_param_name()
        for place in places:
            self._check(place)
            self.params[place][name] = value

    def _paint(
        self, places: Iterable[Place], color: Color, positions: tuple[Position, ...]
    ) -> None:
        for place in places:
            self._check(place)
            self.paints[place][color] = positions

    def _check(self, place: Place) -> None:
        if place not in self.params:
            raise error(
                "layout-place",
                f"PE {place} is outside of region {self.name} of {self.width} by {self.height}",
            )

    def _add_port(
        self, color: Color, edge: Edge, *, is_input: bool, data_size: int, prefix: str
    ) -> PortHandle:
        name = f"{prefix}{self.name}_{color.get_local_param_name()}"
        if name in self.ports:
            raise error("layout-port", f"there is a port {name} already", help="give it a prefix")
        port = PortHandle(name, self, color, edge, is_input, data_size)
        self.ports[name] = port
        return port
