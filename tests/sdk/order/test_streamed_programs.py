"""Random programs behind ports of random rates lose nothing, whoever runs them.

Each row has a program of one PE between two routers; words of the host come in from the west, and
what the program sends goes out in the east.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Edge, Port, Side, Simulator, SimulatorOptions
from openwafer.sdk.host.pe_code import EngineKind, PeCode, build_engine
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.order.pe_programs import (
    FIRST,
    IN_COLOR,
    OUT_COLOR,
    PROGRAMS,
    SLICES,
    STACK,
    Statement,
    Transfer,
    num_received,
    program_of,
)

WEST, EAST, RAMP = 1, 2, 16
_CYCLES: Final = 40_000
_ANY: Final = settings(deadline=None, suppress_health_check=list(HealthCheck))
_RATES: Final = st.sampled_from((1.0, 0.8, 0.5, 0.07))
_TRANSFERS: Final = st.builds(Transfer, SLICES, st.booleans(), st.booleans())
_STATEMENTS: Final = st.builds(lambda some, one: (*some, one), PROGRAMS, _TRANSFERS)
_ROUTES: Final = (
    ((IN_COLOR, ColorConfig(WEST, EAST)),),
    ((IN_COLOR, ColorConfig(WEST, RAMP)), (OUT_COLOR, ColorConfig(RAMP, EAST))),
    ((OUT_COLOR, ColorConfig(WEST, EAST)),),
)


@dataclass(frozen=True)
class Row:
    """A program, and the rates of the ports at its ends."""

    statements: tuple[Statement, ...]
    into: float
    out: float

    @property
    def words(self) -> list[int]:
        return [1000 + 3 * k for k in range(num_received(self.statements))]


ROWS: Final = st.lists(st.builds(Row, _STATEMENTS, _RATES, _RATES), min_size=2, max_size=2)


@dataclass(frozen=True)
class Way:
    """How a run is simulated."""

    kind: EngineKind = EngineKind.NATIVE
    depth: Depth = Depth.PLAIN
    threads: int = 1


WAYS: Final = (
    Way(EngineKind.INTERPRETER),
    Way(depth=Depth.CHECKED),
    Way(EngineKind.INTERPRETER, Depth.CHECKED, threads=3),
    Way(threads=2),
)


def program_of_rows(rows: list[Row], arch: Arch) -> Program:
    """The programs one below the other, with idle PEs at both ends."""
    ones = [program_of(row.statements, arch) for row in rows]
    images = (*(one.images[0] for one in ones), program_of((), arch).images[0])
    idle = replace(images[-1], queues=(), exported_functions=())
    size = len(rows), 3
    return replace(
        ones[0],
        fabric=(12, 6),
        images=(*images[:-1], idle),
        image_of=np.array([[len(rows), y, len(rows)] for y in range(len(rows))], np.int32),
        parameters=np.zeros((*size, 0), np.int64),
        routes=_ROUTES,
        routes_of=np.broadcast_to(np.arange(3, dtype=np.int32), size).copy(),
        streams=(),
    )


def edge_of(rows: list[Row]) -> Edge:
    into = [Port(f"in {y}", 0, y, Side.WEST, (IN_COLOR,), (), r.into) for y, r in enumerate(rows)]
    out = [Port(f"out {y}", 2, y, Side.EAST, (), (OUT_COLOR,), r.out) for y, r in enumerate(rows)]
    return Edge((*into, *out))


def begun(
    rows: list[Row], program: Program, way: Way, engine: PeCode | None = None
) -> tuple[Simulator, PeCode]:
    engine = engine or build_engine(program, way.kind, depth=way.depth)
    options = SimulatorOptions(
        is_checked=way.depth > Depth.PLAIN,
        threads=way.threads,
        landing_log=True,
        edge=edge_of(rows),
    )
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    for y, row in enumerate(rows):
        port = simulator.edge.named(f"in {y}")
        simulator.send_to_port(port, IN_COLOR, np.array(row.words, np.int64))
    simulator.start_command([0] * len(rows) + [-1])
    return simulator, engine


def ended(simulator: Simulator, rows: list[Row]) -> dict[str, Any]:
    """All that can be seen of a run at its end."""
    assert simulator.run_until_idle(_CYCLES)
    ports = simulator.edge.ports
    memory = [simulator.read(1, y, FIRST, STACK - FIRST).tolist() for y in range(len(rows))]
    num = [simulator.passed(port, is_into=False).num_words for port in ports[len(rows) :]]
    received = [
        simulator.take_of_port(port, OUT_COLOR, count).tolist()
        for port, count in zip(ports[len(rows) :], num, strict=True)
    ]
    landings = simulator.landings()
    return {"cycle": simulator.cycle, "memory": memory, "received": received, "landed": landings}


def check_streams(seen: dict[str, Any], rows: list[Row]) -> None:
    """All words that entered landed in their order, and all that a core sent has come."""
    for y, row in enumerate(rows):
        own = [one for one in seen["landed"] if one.y == y]
        for x in range(2):
            came = [one.data for one in own if one.x == x and one.color == IN_COLOR]
            assert came == row.words[: len(came)]
        sent = [one.data for one in own if one.link == "R" and one.color == OUT_COLOR]
        assert sent == seen["received"][y]


def compare(rows: list[Row], arch: Arch) -> None:
    program = program_of_rows(rows, arch)
    simulator, code = begun(rows, program, Way())
    first = ended(simulator, rows)
    check_streams(first, rows)
    for way in WAYS:
        simulator, _code = begun(rows, program, way, code if way == Way(threads=2) else None)
        assert ended(simulator, rows) == first, way


def go_on(rows: list[Row], arch: Arch, threads: int, share: float) -> None:
    """A machine with words in flight goes on from a snapshot, as does another one."""
    program = program_of_rows(rows, arch)
    simulator, code = begun(rows, program, Way(threads=threads))
    other, _code = begun(rows, program, Way(threads=threads), code)
    end = ended(other, rows)["cycle"]
    simulator.run_cycles(int(end * share))
    before = simulator.snapshot()
    first = ended(simulator, rows)
    for machine in (simulator, other):
        machine.restore(before)
        assert machine.snapshot().machine.digest() == before.machine.digest()
        assert ended(machine, rows) == first


@settings(_ANY, max_examples=2)
@given(rows=ROWS, arch=st.sampled_from(list(Arch)))
def test_streams_lose_nothing_and_depend_on_nobody(rows: list[Row], arch: Arch) -> None:
    compare(rows, arch)


@settings(_ANY, max_examples=3)
@given(ROWS, st.sampled_from(list(Arch)), st.sampled_from((1, 2)), st.floats(0, 0.9))
def test_streams_go_on_from_any_cycle(
    rows: list[Row], arch: Arch, threads: int, share: float
) -> None:
    go_on(rows, arch, threads, share)


@pytest.mark.slow
@settings(_ANY, max_examples=250)
@given(rows=ROWS, arch=st.sampled_from(list(Arch)))
def test_many_streams_lose_nothing_and_depend_on_nobody(rows: list[Row], arch: Arch) -> None:
    compare(rows, arch)


@pytest.mark.slow
@settings(_ANY, max_examples=200)
@given(ROWS, st.sampled_from(list(Arch)), st.sampled_from((1, 2)), st.floats(0, 0.9))
def test_many_streams_go_on_from_any_cycle(
    rows: list[Row], arch: Arch, threads: int, share: float
) -> None:
    go_on(rows, arch, threads, share)
