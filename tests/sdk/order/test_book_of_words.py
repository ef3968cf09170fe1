"""Operations that code runs by itself keep the same book of written words as the machine's own."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, element_words
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.ir.function import (
    Block,
    Constant,
    Function,
    Global,
    Instruction,
    Module,
    Type,
    Value,
)
from openwafer.sdk.ir.operations import FABRIC
from openwafer.sdk.ir.text import render
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.image import Symbol
from openwafer.sdk.program.program import Program
from tests.sdk.fabric.python_code import engine_of
from tests.sdk.order.pe_programs import FIRST, LENGTH, STACK, program_of
from tests.sdk.order.test_checked_programs import left_by, ran

WORDS: Final = 3 * LENGTH
"""Three arrays, of u16, f16 and i16; the second one begins with values."""
NAMES: Final = ("mov16", "mov32", "add16", "sub16", "fadds", "fmach", "fh2s")
_ANY: Final = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@dataclass(frozen=True)
class Operand:
    """Elements of a vector operation; where it is one, a pointer or a number instead."""

    base: int
    stride: int
    is_one: bool


@dataclass(frozen=True)
class Operation:
    """One vector operation; operands beyond those of its name are ignored."""

    name: str
    extent: int
    operands: tuple[Operand, Operand, Operand, Operand]


OPERANDS = st.builds(Operand, st.integers(0, WORDS - 1), st.integers(-2, 3), st.booleans())
OPERATIONS = st.builds(
    Operation, st.sampled_from(NAMES), st.integers(0, 5), st.tuples(*[OPERANDS] * 4)
)


def operands_of(operation: Operation) -> list[Value]:
    op, values = VECTOR_OPS[operation.name], list[Value]()
    for place, kind in enumerate((op.destination, *op.sources)):
        one, size = operation.operands[place], element_words(kind)
        if one.is_one:
            place_of_one = Constant(2 * (FIRST + one.base), Type.PTR)
            values.append(Constant(1, (Type.U16, Type.U32)[size - 1]) if place else place_of_one)
        else:
            words = (1, FIRST + one.base, operation.extent, 0, one.stride & 0xFFFF, size, 0, 0)
            values.append(Constant(words, Type.DSD))
    return values


def program(operations: list[Operation], arch: Arch, *marks: str) -> Program:
    """Operations one behind the other; those with the mark of the fabric are the machine's."""
    instructions = [
        Instruction(
            "vector", tuple(operands_of(one)), number, Type.BOOL, (one.name, *marks), number
        )
        for number, one in enumerate(operations)
    ]
    body = [*instructions, Instruction("open_stream"), Instruction("return")]
    begins = {1: tuple(range(LENGTH))}
    arrays = [
        Global(f"a{n}", FIRST + n * LENGTH, LENGTH, initial=begins.get(n, ())) for n in range(3)
    ]
    module = Module("drawn", STACK, 24576, arrays)
    module.functions["main"] = Function("main", 0, Type.VOID, [], [Block("head", body)])
    module.entries.append("main")
    whole = program_of((), arch)
    image = replace(
        whole.images[0],
        code=render(module),
        data=(np.arange(STACK, dtype=np.uint16) * 9973).tobytes(),
        symbols=tuple(
            Symbol(f"a{n}", FIRST + n * LENGTH, LENGTH, kind, (LENGTH,))
            for n, kind in enumerate(("u16", "f16", "i16"))
        ),
    )
    return replace(whole, images=(image,))


def left(
    program: Program, kind: EngineKind, depth: Depth = Depth.CHECKED
) -> tuple[int, tuple[object, ...]]:
    """The cycle of the end; what was told, the book, and the memory."""
    simulator = ran(program, [], kind, depth)
    told = sorted(one.message for one in simulator.findings())
    cycle, memory, _ = left_by(simulator)
    return cycle, (told, engine_of(simulator).tables.unwritten[0].tolist(), memory)


def compare(operations: list[Operation], arch: Arch) -> None:
    own = program(operations, arch)
    cycle, by_code = left(own, EngineKind.NATIVE)
    assert left(own, EngineKind.INTERPRETER) == (cycle, by_code)
    assert by_code == left(program(operations, arch, FABRIC), EngineKind.NATIVE)[1]
    wraps = left(own, EngineKind.NATIVE, Depth.WRAPS)[1]
    assert wraps == left(own, EngineKind.INTERPRETER, Depth.WRAPS)[1]
    assert cycle == left_by(ran(own, [], EngineKind.NATIVE, Depth.PLAIN))[0]


SECOND: Final = Operand(LENGTH, 1, False)
WRITES: Final = Operation("mov16", 5, (Operand(0, 1, False), SECOND, SECOND, SECOND))
"""The first five words of the first array, which begins without values, from the second one."""


def test_checked_code_computes_vectors_by_itself() -> None:
    simulator = ran(program([WRITES], Arch.WSE3), [], EngineKind.NATIVE, Depth.CHECKED)
    assert engine_of(simulator).tables.mailbox[0, mailbox.ELEMENTS] == 5


def test_a_snapshot_brings_back_what_nothing_had_written() -> None:
    own = program([WRITES], Arch.WSE3)
    engine = build_engine(own, EngineKind.NATIVE, depth=Depth.CHECKED)
    options = SimulatorOptions(is_checked=True)
    simulator = Simulator(own, engine.run_address, engine.element_address, options)
    book, before = engine_of(simulator).tables.unwritten, simulator.snapshot()
    first = book.copy()
    simulator.start_command([0])
    simulator.run_until_command_done()
    assert int(first[0, FIRST // 64] ^ book[0, FIRST // 64]) == 0b11111
    simulator.restore(before)
    assert (book == first).all()


@settings(_ANY, max_examples=8)
@given(st.lists(OPERATIONS, min_size=4, max_size=8), st.sampled_from(list(Arch)))
def test_code_and_machine_keep_one_book(operations: list[Operation], arch: Arch) -> None:
    compare(operations, arch)


@pytest.mark.slow
@settings(_ANY, max_examples=2000)
@given(st.lists(OPERATIONS, min_size=1, max_size=9), st.sampled_from(list(Arch)))
def test_code_and_machine_keep_one_book_in_many_programs(
    operations: list[Operation], arch: Arch
) -> None:
    compare(operations, arch)
