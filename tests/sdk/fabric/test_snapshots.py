"""A machine that is brought back to a snapshot does again what it did."""

from typing import Any

import pytest
from hypothesis import given, settings

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.engine import EngineKind, build_engine
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.program.program import Program
from tests.sdk.fabric.random_machines import CYCLES, Machine, build, machines
from tests.sdk.host.test_same_cycles import compiled


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compiled(tmp_path_factory.mktemp("program"))


def launched(program: Program, kind: EngineKind, threads: int = 1) -> tuple[Simulator, Any]:
    """A machine whose command has been given, and its code."""
    engine = build_engine(program, kind)
    options = SimulatorOptions(threads=threads)
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    simulator.run_until_idle()
    launch(simulator, program)
    return simulator, engine


def launch(simulator: Simulator, program: Program) -> None:
    simulator.start_command([dict(image.exported_functions)["main"] for image in program.images])


def rest(simulator: Simulator, program: Program) -> FinalState:
    simulator.run_until_idle()
    return final_state(program, simulator)


@pytest.mark.parametrize("cycles", range(0, 120, 7))
def test_native_code_goes_on_from_any_cycle(program: Program, cycles: int) -> None:
    simulator, _code = launched(program, EngineKind.NATIVE)
    simulator.run_cycles(cycles)
    before = simulator.engine.snapshot()
    first = rest(simulator, program)
    simulator.engine.restore(before)
    assert difference(first, rest(simulator, program)) == ""


def test_interpreted_code_goes_on_where_no_pe_waits_in_its_middle(program: Program) -> None:
    simulator, _code = launched(program, EngineKind.INTERPRETER)
    simulator.run_until_idle()
    before = simulator.engine.snapshot()
    launch(simulator, program)
    first = rest(simulator, program)
    simulator.engine.restore(before)
    launch(simulator, program)
    assert difference(first, rest(simulator, program)) == ""


def ended(simulator: Simulator) -> tuple[str, int, Any]:
    try:
        end = str(simulator.run_until_idle(CYCLES))
    except OpenwaferError as stop:
        end = str(stop)
    width, height = simulator.size
    pes = [(x, y) for y in range(height) for x in range(width)]
    return end, simulator.cycle, [simulator.read(x, y, 0, 4000).tolist() for x, y in pes]


@pytest.mark.parametrize("threads", [1, 3])
@settings(max_examples=15, deadline=None)
@given(machine=machines())
def test_machines_begin_again(threads: int, machine: Machine) -> None:
    simulator, _code = build(machine, SimulatorOptions(threads=threads, landing_log=True))
    simulator.run_cycles(0)
    before, counts = simulator.engine.snapshot(), simulator.statistics()
    first = ended(simulator)
    simulator.engine.restore(before)
    assert simulator.statistics() == counts
    assert ended(simulator) == first
    landings = simulator.landings()
    assert landings[::2] == landings[1::2]
