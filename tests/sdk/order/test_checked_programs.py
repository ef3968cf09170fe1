"""Random programs run with checks as they do without; both engines find the same mistakes."""

from typing import Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.program.program import Program
from tests.examples import examples
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

BEGUN: Final = st.builds(Transfer, SLICES, st.booleans(), st.just(True))
"""An operation that the other statements meet in flight."""
_CYCLES: Final = 20_000
_ANY: Final = settings(deadline=None, suppress_health_check=list(HealthCheck))
_DEPTHS: Final = st.sampled_from((Depth.CHECKED, Depth.WRAPS))


def ran(program: Program, words: list[int], kind: EngineKind, depth: Depth) -> Simulator:
    engine = build_engine(program, kind, depth=depth)
    options = SimulatorOptions(is_checked=depth > Depth.PLAIN)
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    simulator.inject(IN_COLOR, 0, 0, np.array(words, np.uint32))
    simulator.start_command([0])
    simulator.run_until_idle(_CYCLES)
    return simulator


def left_by(simulator: Simulator) -> tuple[int, list[int], list[int]]:
    memory = simulator.read(0, 0, FIRST, STACK - FIRST).tolist()
    num = simulator.num_collected(OUT_COLOR, 0, 0)
    return simulator.cycle, memory, simulator.take(OUT_COLOR, 0, 0, num).tolist()


def told(simulator: Simulator, depth: Depth) -> list[object]:
    """What was found; under WRAPS without cycles, as the interpreter leaves more to the machine."""
    found = simulator.findings()
    return [one.message if depth is Depth.WRAPS else one for one in found]


def compare(statements: tuple[Statement, ...], arch: Arch, depth: Depth) -> None:
    words = [1000 + 3 * k for k in range(num_received(statements))]
    program = program_of(statements, arch)
    native = ran(program, words, EngineKind.NATIVE, depth)
    interpreted = ran(program, words, EngineKind.INTERPRETER, depth)
    assert told(native, depth) == told(interpreted, depth)
    plain = left_by(ran(program, words, EngineKind.NATIVE, Depth.PLAIN))
    assert left_by(native) == plain == left_by(interpreted)


@examples(15, _ANY, by_default=8)
@given(first=BEGUN, statements=PROGRAMS, arch=st.sampled_from(list(Arch)), depth=_DEPTHS)
def test_checks_change_nothing_and_both_engines_find_the_same(
    first: Statement, statements: tuple[Statement, ...], arch: Arch, depth: Depth
) -> None:
    compare((first, *statements), arch, depth)


@pytest.mark.slow
@settings(_ANY, max_examples=1000)
@given(first=BEGUN, statements=PROGRAMS, arch=st.sampled_from(list(Arch)), depth=_DEPTHS)
def test_checks_change_nothing_in_many_programs(
    first: Statement, statements: tuple[Statement, ...], arch: Arch, depth: Depth
) -> None:
    compare((first, *statements), arch, depth)
