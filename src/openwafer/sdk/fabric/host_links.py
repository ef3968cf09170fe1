"""Links at the edge of the fabric that copies and streams of the host share, where they go by it.

Which colors and PEs carry the host's words from there on is not published, so that they cross the
fabric is a matter of hops. What a link moves is that of its port, which words of the program share.
"""

from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.edge import Edge, Port, Side, period_of
from openwafer.sdk.fabric.state import Tables
from openwafer.sdk.program.program import Program

_ROUNDING: Final = 1e-6
"""Of a cycle, by which the time of words may be off as a number of floating point."""


class Transport(StrEnum):
    """How words of the host come to PEs and back.

    Copies through the edge share its links; ideal ones take a cycle a word and channel, and
    streams a cycle a word and PE.
    """

    IDEAL = "ideal"
    EDGE = "edge"


class HostLinks:
    """The ports of a run, or where there are none a link in the west of each row.

    PEs are dealt to them in equal parts, row by row.

    Args:
        size: columns and rows of PEs.
        arch: the generation.
        edge: of the run.

    Attributes:
        ports: from north to south.
        rates: words a cycle of each way of them: its own, or its share of the system's. The host's
            words go both ways by each, so that all ports share.
        port_of: number among them of each PE's port, by the PE's number.
        hop_cycles: from that port to the PE's router.
    """

    def __init__(self, size: tuple[int, int], arch: Arch, edge: Edge) -> None:
        width, height = size
        west = (Port(f"row {y}", 0, y, Side.WEST) for y in range(height))
        self._height = height
        self.ports = tuple(sorted(edge.ports or west, key=lambda port: (port.y, port.x)))
        share = edge.share(len(self.ports), arch)
        self.rates = [share if port.rate is None else port.rate for port in self.ports]
        self.port_of = np.zeros(width * height, np.int64)
        by_row = self.numbers(range(width), range(height))
        for number, pes in enumerate(np.array_split(by_row, len(self.ports))):
            self.port_of[pes] = number
        places = np.array([(port.x, port.y) for port in self.ports])[self.port_of]
        own = np.stack(np.divmod(np.arange(width * height), height), 1)
        hops = 1 + np.abs(own - places).sum(1)
        self.hop_cycles: NDArray[np.int64] = hops * GENERATIONS[arch].timing.hop_cycles

    @property
    def edge(self) -> Edge:
        """The ports with these rates, as the program's words pass them."""
        rated = zip(self.ports, self.rates, strict=True)
        return Edge(tuple(replace(port, rate=rate) for port, rate in rated))

    def cycles(self, pes: NDArray[np.int64], num_words: int, *, is_into: bool) -> int:
        """In which a copy comes to PEs at rest, or leaves them.

        On the way in, words of a PE wait in the port for those of the PEs before it; on the way
        out they wait in front of it.

        Args:
            pes: their numbers, in the order of the copy.
            num_words: of each.
            is_into: whether words enter the fabric.
        """
        ends, by_port = [0], pes[np.argsort(self.port_of[pes], kind="stable")]
        numbers, begins = np.unique(self.port_of[by_port], return_index=True)
        for number, own in zip(numbers.tolist(), np.split(by_port, begins[1:]), strict=True):
            hops = self.hop_cycles[own]
            before = np.arange(1, hops.size + 1) * num_words - 1
            passed = 1 + np.ceil(before / self.rates[number] - _ROUNDING)
            last = passed + (hops if is_into else hops[::-1])
            ends.append(int(last.max()))
        return max(ends)

    def numbers(self, x: range, y: range) -> NDArray[np.int64]:
        """Of the PEs in some columns and rows, row by row."""
        found: NDArray[np.int64] = np.add.outer(np.array(y), self._height * np.array(x)).ravel()
        return found


@lru_cache(maxsize=64)
def host_links(size: tuple[int, int], arch: Arch, edge: Edge) -> HostLinks:
    """The same one for the same rectangle, generation and edge."""
    return HostLinks(size, arch, edge)


def links_of(program: Program, transport: Transport, edge: Edge) -> HostLinks | None:
    """Those of a program's run; None where copies and streams take an ideal time."""
    size = program.width, program.height
    return host_links(size, program.arch, edge) if transport is Transport.EDGE else None


def place_links(tables: Tables, program: Program, links: HostLinks) -> NDArray[np.int64]:
    """Let streams to the host pass ports; gives where the port of each PE lies in the state.

    A port may then let the program's words wait, whatever its rate.

    Args:
        tables: of a machine that has the ports of these links, and has not run.
        program: of the machine.
        links: of its rectangle.
    """
    places = np.zeros(len(links.ports), np.int64)
    for number, port in enumerate(links.ports):
        pe, direction = program.number_of(port.x, port.y), port.side.direction
        row = tables.port[direction, pe]
        for way in (w.N_IN, w.N_OUT):
            row[way + w.N_PERIOD] = period_of(links.rates[number])
        tables.router[pe, w.R_BUSY] |= w.PACED_BIT
        places[number] = w.PORT + (direction * w.PITCH + pe) * w.PORT_WORDS
    own: NDArray[np.int64] = places[links.port_of]
    tables.sink[:, w.K_WAY] = (own + w.N_OUT).repeat(w.SINKS)
    return own
