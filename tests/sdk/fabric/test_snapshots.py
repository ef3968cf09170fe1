"""A machine that is brought back to a snapshot does again what was done, in any process."""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.program import file
from openwafer.sdk.program.program import Program
from tests.examples import examples
from tests.sdk.fabric.python_code import engine_of
from tests.sdk.fabric.random_code import TO_HOST
from tests.sdk.fabric.random_machines import CYCLES, Machine, build, machines
from tests.sdk.forked_python import with_sdk
from tests.sdk.host.test_same_cycles import compiled
from tests.sdk.order.pe_programs import (
    IN_COLOR,
    PROGRAMS,
    Statement,
    num_received,
    program_of,
)
from tests.tables import checkerboard, some

NATIVE = SimulatorOptions(code="native")
OTHERS: dict[str, dict[str, Any]] = {"size": {"threads": 2}, "code": {"code": "other"}}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compiled(tmp_path_factory.mktemp("program"))


def loaded(
    program: Program, kind: EngineKind = EngineKind.NATIVE, threads: int = 1
) -> tuple[Simulator, Any]:
    """A machine that has not run, and its code."""
    engine = build_engine(program, kind)
    options = replace(NATIVE, threads=threads)
    return Simulator(program, engine.run_address, engine.element_address, options), engine


def launched(program: Program, kind: EngineKind = EngineKind.NATIVE, threads: int = 1) -> Any:
    """A machine whose command has been given, and its code."""
    simulator, engine = loaded(program, kind, threads)
    simulator.run_until_idle()
    launch(simulator, program)
    return simulator, engine


def launch(simulator: Simulator, program: Program) -> None:
    simulator.start_command([dict(image.exported_functions)["main"] for image in program.images])


def rest(simulator: Simulator, program: Program) -> FinalState:
    simulator.run_until_idle()
    return final_state(program, simulator)


@pytest.mark.parametrize(("cycles", "threads"), checkerboard(range(0, 120, 14), (1, 2), one_in=5))
def test_native_code_goes_on_from_any_cycle_also_in_another_machine(
    program: Program, cycles: int, threads: int
) -> None:
    simulator, _code = launched(program, threads=threads)
    simulator.run_cycles(cycles)
    before = simulator.snapshot()
    first = rest(simulator, program)
    other, _other_code = loaded(program, threads=threads)
    for machine in (simulator, other):
        machine.restore(before)
        assert difference(first, rest(machine, program)) == ""


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


def digest(simulator: Simulator) -> str:
    return simulator.snapshot().machine.digest()


@pytest.mark.parametrize("threads", some([1, 3], 3))
@examples(15, by_default=4, deadline=None)
@given(machine=machines())
def test_machines_begin_again(threads: int, machine: Machine) -> None:
    simulator, _code = build(machine, SimulatorOptions(**OPTIONS | {"threads": threads}))
    simulator.run_cycles(0)
    before, counts = simulator.snapshot(), simulator.statistics()
    first = ended(simulator)
    simulator.restore(before)
    assert (simulator.statistics(), simulator.landings()) == (counts, ())
    assert digest(simulator) == before.machine.digest()
    assert ended(simulator) == first


@examples(15, by_default=4, deadline=None)
@given(machine=machines())
def test_digests_depend_on_no_number_of_bands(machine: Machine) -> None:
    digests = []
    for threads in (1, 3):
        simulator, _code = build(machine, SimulatorOptions(**OPTIONS | {"threads": threads}))
        assume(ended(simulator)[0] in ("True", "False"))
        digests.append(digest(simulator))
    assert digests[0] == digests[1]


AGAIN = """
import sys
from pathlib import Path
from tests.sdk.fabric.test_snapshots import ends_again
print(*ends_again(Path(sys.argv[1]), int(sys.argv[2])))
"""


def ends_again(folder: Path, threads: int) -> list[str]:
    """Ends of runs that go on from the moments in a folder."""
    simulator, _code = loaded(file.read(folder / "program"), threads=threads)
    ends = []
    for moment in pickle.loads((folder / "moments").read_bytes()):
        simulator.restore(moment)
        simulator.run_until_idle(CYCLES)
        ends.append(digest(simulator))
    return ends


def compare(simulator: Simulator, program: Program, folder: Path, cycles: list[int]) -> None:
    """Another process goes on from some cycles of a run and comes to the same end."""
    moments = []
    for cycle in sorted(cycles):
        simulator.run_cycles(cycle - simulator.cycle)
        moments.append(simulator.snapshot())
    simulator.run_until_idle(CYCLES)
    file.write(program, folder / "program")
    (folder / "moments").write_bytes(pickle.dumps(moments))
    done = with_sdk().run(AGAIN, str(folder), str(simulator.num_threads), folder=folder)
    assert done.stderr == ""
    assert done.stdout.split() == [digest(simulator)] * len(cycles)


@pytest.mark.parametrize("threads", some([1, 2], 2))
def test_another_process_goes_on_from_10_random_cycles(
    program: Program, tmp_path: Path, threads: int
) -> None:
    simulator, _code = launched(program, threads=threads)
    begin = simulator.cycle
    cycles = [begin + Random(threads).randrange(150) for _ in range(10)]
    compare(simulator, program, tmp_path, cycles)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    statements=PROGRAMS,
    arch=st.sampled_from(list(Arch)),
    cycles=st.lists(st.integers(1, 300), min_size=10, max_size=10),
)
def test_other_processes_go_on_from_1000_cycles_of_random_programs(
    tmp_path_factory: pytest.TempPathFactory,
    statements: tuple[Statement, ...],
    arch: Arch,
    cycles: list[int],
) -> None:
    program = program_of(statements, arch)
    simulator, _code = loaded(program)
    simulator.inject(IN_COLOR, 0, 0, np.arange(num_received(statements), dtype=np.uint32))
    simulator.start_command([0])
    compare(simulator, program, tmp_path_factory.mktemp("points"), cycles)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("program", "whose program is [0-9a-f]{64}"),
        ("size", "whose size is 2 x 1 PEs in 1 bands, and this one's is 2 x 1 PEs in 2 bands"),
        ("code", "whose code is native, and this one's is other"),
        ("version", "whose version is 0, (.|\\n)*replay the run's journal"),
    ],
)
def test_the_snapshot_of_another_machine_is_refused_and_nothing_is_touched(
    program: Program, field: str, told: str
) -> None:
    one, code = launched(program)
    moment = one.snapshot()
    program = replace(program, channels=9) if field == "program" else program
    options = replace(NATIVE, **OTHERS.get(field, {}))
    if field == "version":
        old = replace(moment.machine.machine, version="0")
        moment = replace(moment, machine=replace(moment.machine, machine=old))
    other = Simulator(program, code.run_address, code.element_address, options)
    before = digest(other)
    with pytest.raises(OpenwaferError, match=told):
        other.restore(moment)
    assert digest(other) == before


def test_a_snapshot_holds_no_native_address(program: Program) -> None:
    simulator, _code = launched(program, threads=2)
    snapshot = simulator.snapshot().machine
    words = np.concatenate([part.words.ravel() for part in (*snapshot.own, snapshot.shared)])
    arrays = [*engine_of(simulator).states, program.parameters]
    for array in arrays:
        begin = array.ctypes.data
        assert not ((words >= begin) & (words <= begin + array.nbytes)).any()


def shared_blocks() -> int:
    """Memory of all machines of several bands."""
    files = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    shared = [file for file in files if os.readlink(file).startswith("/memfd:fabric")]
    return sum(file.stat().st_blocks for file in shared)


def test_a_snapshot_takes_no_memory_for_what_nothing_has_written(program: Program) -> None:
    simulator, _code = launched(program, threads=2)
    simulator.run_until_idle()
    before = shared_blocks()
    moment = simulator.snapshot()
    simulator.restore(moment)
    assert 0 < shared_blocks() <= before
    assert moment.machine.num_bytes < 20_000
