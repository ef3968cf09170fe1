"""Ports: links from outside into routers at the edge of the rectangle, and back.

A port is what a router has for a neighbour where the rectangle ends: words that wait to enter, and
a rate. It moves a wavelet a cycle at most, lands it as a neighbour would, and takes what the
router's routes send its way; :mod:`openwafer.sdk.fabric.router` has its part of a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from openwafer.config import convert_fields
from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, NUM_COLORS, Arch
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig, Direction

_WORD_BITS: Final = 32
_LEAST_RATE: Final = 2.0**-20
"""Words a cycle; a port that takes longer for a word is no use."""


class Side(StrEnum):
    """A side of a PE that is one of the rectangle, too."""

    WEST = "west"
    EAST = "east"
    SOUTH = "south"
    NORTH = "north"

    @property
    def direction(self) -> Direction:
        """The same as a router's link."""
        return Direction[self.name]


@dataclass(frozen=True)
class Port:
    """A link from outside into the router of a PE at the rectangle's edge, and back.

    Attributes:
        name: by which the host sends and receives.
        x: column of the PE.
        y: its row.
        side: of the PE; the rectangle must end there.
        into: colors on which words enter the fabric; the router's route has to receive them from
            that side.
        out: colors on which words leave it; the route has to transmit them there.
        rate: words a cycle, each way, more than 0 and at most 1; None is the port's share of the
            system's rate, 1 at most.
    """

    name: str
    x: int
    y: int
    side: Side
    into: tuple[int, ...] = ()
    out: tuple[int, ...] = ()
    rate: float | None = None

    def __post_init__(self) -> None:
        convert_fields(self)

    def __str__(self) -> str:
        return f"port {self.name!r} in the {self.side} of PE ({self.x}, {self.y})"

    def color(self, color: int | None, *, is_into: bool) -> int:
        """A color of one way, the only one where none is given.

        Raises OpenwaferError `port-color` for one that the port does not have.
        """
        own, way = (self.into, "into the fabric") if is_into else (self.out, "out of the fabric")
        if color in own or (color is None and len(own) == 1):
            return own[0] if color is None else color
        known = ", ".join(map(str, own)) or "no color"
        which = "no color was given" if color is None else f"color {color} was given"
        raise error(
            "port-color",
            f"{self} leads {known} {way}, and {which}",
            help="name one of them, or declare the color with the port",
        )


@dataclass(frozen=True)
class Edge:
    """All links of a program's rectangle to outside.

    Attributes:
        ports: at most one a side of a PE.
        words_per_cycle: what the system's links move each way, all together; None is the rate of
            the generation's system.
    """

    ports: tuple[Port, ...] = ()
    words_per_cycle: float | None = None

    def named(self, name: str) -> Port:
        """A port. Raises OpenwaferError `port-unknown`."""
        found = [port for port in self.ports if port.name == name]
        if not found:
            known = ", ".join(repr(port.name) for port in self.ports) or "none"
            raise error(
                "port-unknown",
                f"the run has no port {name!r}; it has {known}",
                help="give it when the run begins: RuntimeOptions(edge=Edge((Port(...),)))",
            )
        return found[0]

    def rate(self, port: Port, arch: Arch, *, is_into: bool) -> float:
        """Words a cycle of one way of a port: its own rate, or its share of the system's."""
        if port.rate is not None:
            return port.rate
        sharing = [one for one in self.ports if (one.into if is_into else one.out)]
        return self.share(len(sharing), arch)

    def share(self, num_ports: int, arch: Arch) -> float:
        """Words a cycle that each of so many ports has of the system's, one way."""
        return min(1.0, (self.words_per_cycle or system_rate(arch)) / num_ports)

    def check(self, program: Program) -> None:
        """Raise OpenwaferError for what cannot be a port of the program."""
        if self.words_per_cycle is not None and not self.words_per_cycle > 0:
            raise error(
                "port-rate",
                f"the system's links move {self.words_per_cycle} words a cycle",
                help="give a number above 0; None is the rate of the generation's system",
            )
        links: dict[tuple[int, int, Side], Port] = {}
        names: dict[str, Port] = {}
        for port in self.ports:
            _check_place(port, program)
            _check_rate(port)
            _check_colors(port, program)
            other = links.setdefault((port.x, port.y, port.side), port)
            if other is not port:
                raise error(
                    "port-link",
                    f"{port} has the link of port {other.name!r}",
                    help="a link is one port; give it the colors of both",
                )
            other = names.setdefault(port.name, port)
            if other is not port:
                raise error("port-name", f"{port} is called like {other}", help="rename one")


NO_PORTS: Final = Edge()


def system_rate(arch: Arch) -> float:
    """Words of 32 bits a cycle that a system's links move each way."""
    generation = GENERATIONS[arch]
    return generation.edge_bits_per_second / _WORD_BITS / generation.clock_hertz


def _check_place(port: Port, program: Program) -> None:
    size = program.width, program.height
    if not (0 <= port.x < size[0] and 0 <= port.y < size[1]):
        _refuse("port-place", port, f"lies outside of the rectangle of {size[0]} by {size[1]} PEs")
    last = {Side.WEST: 0, Side.EAST: size[0] - 1, Side.NORTH: 0, Side.SOUTH: size[1] - 1}
    at = port.x if port.side in (Side.WEST, Side.EAST) else port.y
    if at != last[port.side]:
        name = "column" if port.side in (Side.WEST, Side.EAST) else "row"
        beyond = f"is not at the edge: the rectangle ends there at {name} {last[port.side]}"
        _refuse("port-place", port, beyond)


def _refuse(code: str, port: Port, what: str) -> NoReturn:
    help = "a port is a link of a router to outside: give a PE of the first or last row or column"
    raise error(code, f"{port} {what}", help=help)


def _check_rate(port: Port) -> None:
    if port.rate is not None and not _LEAST_RATE <= port.rate <= 1:
        raise error(
            "port-rate",
            f"{port} moves {port.rate} words a cycle",
            help="give a rate above 0 and up to 1: a link moves one wavelet a cycle",
        )


def _check_colors(port: Port, program: Program) -> None:
    if not port.into + port.out:
        raise error("port-color", f"{port} has no color", help="give it colors: into=, out=")
    configs = dict(_configs(program, port.x, port.y))
    bit = 1 << port.side.direction
    for color in port.into + port.out:
        if not 0 <= color < NUM_COLORS:
            raise error("port-color", f"{port}: there is no color {color}", help="give 0 to 23")
    for color in port.into:
        if not _directions(configs.get(color), is_rx=True) & bit:
            _no_route(port, color, "receives it from there", "rx")
    for color in port.out:
        if not _directions(configs.get(color), is_rx=False) & bit:
            _no_route(port, color, "transmits it there", "tx")


def _no_route(port: Port, color: int, verb: str, field: str) -> NoReturn:
    raise error(
        "port-route",
        f"{port} leads color {color}, and no route of the PE {verb}",
        help=f"let the PE's route of the color have {port.side.name} in its .{field}",
    )


def _configs(program: Program, x: int, y: int) -> Sequence[tuple[int, ColorConfig]]:
    image, routes = int(program.image_of[y, x]), int(program.routes_of[y, x])
    own = program.images[image].colors if image >= 0 else ()
    return [*own, *(program.routes[routes] if routes >= 0 else ())]


def _directions(config: ColorConfig | None, *, is_rx: bool) -> int:
    """Mask of the directions that a color takes at all positions of its switch."""
    if config is None:
        return 0
    mask = config.rx if is_rx else config.tx
    for position in config.switches.positions if config.switches else ():
        mask |= (position.rx if is_rx else position.tx) or 0
    return mask


def place_ports(tables: Tables, program: Program, edge: Edge) -> None:
    """Put ports that were checked into a machine that has not run."""
    for port in edge.ports:
        pe = program.number_of(port.x, port.y)
        row = tables.port[port.side.direction, pe]
        for colors, way in ((port.into, w.N_IN), (port.out, w.N_OUT)):
            if colors:
                rate = edge.rate(port, program.arch, is_into=way == w.N_IN)
                row[way + w.N_PERIOD] = period_of(rate)
        if row[w.N_OUT + w.N_PERIOD] > w.PORT_CYCLE:
            tables.router[pe, w.R_BUSY] |= w.PACED_BIT
        row[w.N_COLORS] = sum(1 << color for color in set(port.out))


def period_of(rate: float) -> int:
    """Cycles from word to word, in parts of `PORT_CYCLE`, of words a cycle."""
    return round(w.PORT_CYCLE / rate)


@dataclass(frozen=True)
class Passed:
    """Words that have passed a port on one of its ways.

    Attributes:
        num_words: how many.
        first: cycle of the first one; 0 where there is none.
        last: cycle of the last one.
    """

    num_words: int
    first: int
    last: int

    @property
    def cycles(self) -> int:
        """From the first word to the last one, both included."""
        return self.last - self.first + 1 if self.num_words else 0


def passed(row: Array, *, is_into: bool) -> Passed:
    """The words that have passed one way of a port's row."""
    at = (w.N_IN if is_into else w.N_OUT) + w.N_COUNT
    return Passed(*(int(word) for word in row[at : at + 3]))
