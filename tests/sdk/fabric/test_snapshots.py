"""A machine that is brought back to a snapshot does again what it did."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.fabric import words as w
from openwafer.sdk.host.engine import EngineKind, build_engine
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.program.program import Program
from tests.sdk.fabric.random_code import TO_HOST
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
    before = simulator.snapshot()
    first = rest(simulator, program)
    simulator.restore(before)
    assert difference(first, rest(simulator, program)) == ""


def test_interpreted_code_goes_on_where_no_pe_waits_in_its_middle(program: Program) -> None:
    simulator, _code = launched(program, EngineKind.INTERPRETER)
    simulator.run_until_idle()
    before = simulator.snapshot()
    launch(simulator, program)
    first = rest(simulator, program)
    simulator.restore(before)
    launch(simulator, program)
    assert difference(first, rest(simulator, program)) == ""


OPTIONS: dict[str, Any] = {"landing_log": True, "has_account": True}


def ended(simulator: Simulator) -> tuple[Any, ...]:
    try:
        end = str(simulator.run_until_idle(CYCLES))
    except OpenwaferError as stop:
        end = str(stop)
    width, height = simulator.size
    pes = [(x, y) for y in range(height) for x in range(width)]
    collected = [simulator.num_collected(TO_HOST, x, y) for x, y in pes]
    memory = [simulator.read(x, y, 0, 4000).tolist() for x, y in pes]
    account = simulator.account().cycles.tolist()
    return end, simulator.cycle, collected, memory, simulator.landings(), account


@pytest.mark.parametrize("threads", [1, 3])
@settings(max_examples=15, deadline=None)
@given(machine=machines())
def test_machines_begin_again(threads: int, machine: Machine) -> None:
    simulator, _code = build(machine, SimulatorOptions(**OPTIONS | {"threads": threads}))
    simulator.run_cycles(0)
    before, counts = simulator.snapshot(), simulator.statistics()
    first = ended(simulator)
    simulator.restore(before)
    assert (simulator.statistics(), simulator.landings()) == (counts, ())
    assert ended(simulator) == first


def test_the_snapshot_of_another_machine_is_refused_and_nothing_is_touched(
    program: Program,
) -> None:
    one, _code = launched(program, EngineKind.NATIVE)
    other, _other_code = launched(program, EngineKind.NATIVE)
    before = other.engine.state[: w.GLOBAL_WORDS].tolist()
    with pytest.raises(OpenwaferError) as refused:
        other.restore(one.snapshot())
    size = "{} x {} PEs".format(*one.size)
    named = re.findall(rf"machine ([0-9a-f]{{16}}) of {size}", str(refused.value))
    assert len(set(named)) == 2
    assert other.engine.state[: w.GLOBAL_WORDS].tolist() == before


_TAKEN_ELSEWHERE = """
import pickle, sys
from pathlib import Path
from openwafer.sdk.host.engine import EngineKind
from tests.sdk.fabric.test_snapshots import launched
from tests.sdk.host.test_same_cycles import compiled
simulator, _code = launched(compiled(Path(sys.argv[1])), EngineKind.NATIVE)
Path(sys.argv[1], "moment").write_bytes(pickle.dumps(simulator.snapshot()))
"""


def test_the_first_machines_of_two_processes_are_not_the_same(tmp_path: Path) -> None:
    moments = []
    for _process in range(2):
        subprocess.run([sys.executable, "-c", _TAKEN_ELSEWHERE, str(tmp_path)], check=True)
        moments.append(pickle.loads((tmp_path / "moment").read_bytes()))
    assert moments[0].machine.machine != moments[1].machine.machine


def test_a_snapshot_holds_no_address_of_its_machine(program: Program) -> None:
    simulator, _code = launched(program, EngineKind.NATIVE)
    snapshot = simulator.snapshot().machine
    scalars = np.concatenate([own["scalars"] for own in snapshot.own])
    assert simulator.engine.state.ctypes.data not in scalars
