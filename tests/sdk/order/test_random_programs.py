"""Native code, the interpreter and a plain model agree on programs that share arrays in flight."""

from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.program.program import Program
from tests.examples import examples
from tests.sdk.fabric.account_laws import check_laws
from tests.sdk.order.pe_model import Pe, Walk
from tests.sdk.order.pe_programs import (
    FIRST,
    IN_COLOR,
    IN_QUEUE,
    OUT_COLOR,
    OUT_QUEUE,
    PROGRAMS,
    STACK,
    Copy,
    Put,
    Slice,
    Statement,
    Transfer,
    Vector,
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
SEND_7 = Transfer(Slice(0, 0, 7), is_send=True, is_async=True)
MOVE = Vector(Slice(1, 0, 1), (Slice(2, 0, 1),), is_sum=False)
PUT = Put(Slice(2, 1, 1), 13, by_pointer=False)
COPY = Copy(Slice(0, 0, 1), Slice(0, 1, 1))
IN_PLACE = Vector(Slice(1, 0, 8), (Slice(1, 0, 8), Slice(2, 1, 7)), is_sum=False)
APART = Vector(Slice(0, 0, 4), (Slice(1, 0, 4), Slice(1, 4, 4)), is_sum=False)
BEHIND = {
    "an operation in flight": (SEND,),
    "an access that beats come before": (SEND, PUT, COPY),
    "an operation that the main thread waits for": (SEND_7, MOVE, PUT),
}
"""What has been sent is under way when these end."""


def on_fabric(program: Program, words: list[int], kind: EngineKind) -> tuple[Seen, list[int]]:
    """What can be seen of a run, and its account."""
    engine = build_engine(program, kind)
    options = SimulatorOptions(has_account=True)
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    simulator.inject(IN_COLOR, 0, 0, np.array(words, np.uint32))
    simulator.start_command([0])
    simulator.run_until_idle(_CYCLES)
    memory = simulator.read(0, 0, FIRST, STACK - FIRST).tolist()
    num = simulator.num_collected(OUT_COLOR, 0, 0)
    check_laws(simulator.account())
    seen = memory, simulator.take(OUT_COLOR, 0, 0, num).tolist()
    return seen, simulator.account().cycles.tolist()


def in_model(statements: tuple[Statement, ...], words: list[int], arch: Arch) -> Seen:
    pe = Pe(arch, first_memory().tolist(), deque(words), IN_QUEUE, OUT_QUEUE)
    Walk(pe, timed(module_of(statements), GENERATIONS[arch])).run()
    return pe.memory[FIRST:], pe.sent


def compare(statements: tuple[Statement, ...], arch: Arch) -> None:
    words = [1000 + 3 * k for k in range(num_received(statements))]
    program = program_of(statements, arch)
    interpreted, native = (
        on_fabric(program, words, kind) for kind in (EngineKind.INTERPRETER, EngineKind.NATIVE)
    )
    assert interpreted[0] == native[0] == in_model(statements, words, arch)
    assert native[1] == interpreted[1]


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("behind", BEHIND)
def test_an_operation_begins_no_sooner_than_its_microthread_is_free(
    behind: str, arch: Arch
) -> None:
    compare((*BEHIND[behind], SEND), arch)


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("operation", [IN_PLACE, APART])
def test_words_that_are_sent_hold_up_operations_that_take_turns(
    operation: Vector, arch: Arch
) -> None:
    compare((Transfer(Slice(0, 0, 8), is_send=True, is_async=True), operation), arch)


@examples(25, _ANY, by_default=10)
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
