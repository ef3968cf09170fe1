"""Native code, the interpreter and a plain model agree on programs that share arrays in flight."""

from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.engine import EngineKind, build_engine
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.program.program import Program
from tests.sdk.order.pe_model import Pe, Walk
from tests.sdk.order.pe_programs import (
    FIRST,
    IN_COLOR,
    IN_QUEUE,
    OUT_COLOR,
    OUT_QUEUE,
    PROGRAMS,
    STACK,
    Slice,
    Statement,
    Transfer,
    first_memory,
    module_of,
    num_received,
    program_of,
)

Seen = tuple[list[int], list[int]]
"""Memory from the arrays up to the stack, and the words that were sent."""
_ANY = settings(deadline=None, suppress_health_check=list(HealthCheck))
_CYCLES = 20_000
SEND = Transfer(Slice(0, 0, 1), is_send=True, is_async=True)
"""Two in a row: the core sleeps until the first one's only beat, which the second one waits for."""


def on_fabric(program: Program, words: list[int], kind: EngineKind) -> Seen:
    engine = build_engine(program, kind)
    simulator = Simulator(program, engine.run_address, engine.element_address)
    simulator.inject(IN_COLOR, 0, 0, np.array(words, np.uint32))
    simulator.start_command([0])
    simulator.run_until_idle(_CYCLES)
    memory = simulator.read(0, 0, FIRST, STACK - FIRST).tolist()
    num = simulator.num_collected(OUT_COLOR, 0, 0)
    return memory, simulator.take(OUT_COLOR, 0, 0, num).tolist()


def in_model(statements: tuple[Statement, ...], words: list[int], arch: Arch) -> Seen:
    pe = Pe(arch, first_memory().tolist(), deque(words), IN_QUEUE, OUT_QUEUE)
    Walk(pe, timed(module_of(statements), GENERATIONS[arch])).run()
    return pe.memory[FIRST:], pe.sent


def compare(statements: tuple[Statement, ...], arch: Arch) -> None:
    words = [1000 + 3 * k for k in range(num_received(statements))]
    program = program_of(statements, arch)
    wanted = in_model(statements, words, arch)
    assert on_fabric(program, words, EngineKind.INTERPRETER) == wanted
    assert on_fabric(program, words, EngineKind.NATIVE) == wanted


@example(statements=(SEND, SEND), arch=Arch.WSE2)
@settings(_ANY, max_examples=50)
@given(statements=PROGRAMS, arch=st.sampled_from(list(Arch)))
def test_programs_see_memory_in_the_order_of_cycles(
    statements: tuple[Statement, ...], arch: Arch
) -> None:
    compare(statements, arch)


@pytest.mark.slow
@settings(_ANY, max_examples=2000)
@given(statements=PROGRAMS, arch=st.sampled_from(list(Arch)))
def test_many_programs_see_memory_in_the_order_of_cycles(
    statements: tuple[Statement, ...], arch: Arch
) -> None:
    compare(statements, arch)
