"""Compiled arithmetic equals the reference interpreter's, bit by bit, on every type."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Global,
    Instruction,
    Module,
    Register,
    Type,
)
from openwafer.sdk.ir.numbers import FLOATS, INTEGERS, WIDTHS, decode, num_words
from openwafer.sdk.ir.verifier import verify
from tests.examples import examples
from tests.sdk.codegen.oracle import Memory, Native, run_interpreter, run_native

_NUMBERS = sorted(FLOATS | INTEGERS)
_A, _B, _RESULTS = 0, 4, 8
_EDGES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7C00, 0x3C00, 0x0400, 0x7BFF)
_WIDE_EDGES = tuple(bits << shift for bits in _EDGES for shift in (0, 13, 16, 48))


def one_block_module(instructions: list[Instruction]) -> Module:
    """A module whose entry is one block over the globals a, b and r."""
    variables = [Global("a", _A, 4), Global("b", _B, 4), Global("r", _RESULTS, 4000)]
    function = Function("main", 0, Type.VOID, [], [Block("head", instructions)])
    module = Module("case", 20000, 24576, variables, {"main": function}, ["main"])
    verify(module)
    return module


class Case:
    """A module that applies many operations to the two numbers at the begin of memory."""

    def __init__(self, kind: Type) -> None:
        self.kind = kind
        self.operations = list(_operations(kind))
        self.module = one_block_module(list(self._instructions()))
        self.native: Native | None = None

    def _instructions(self) -> Iterator[Instruction]:
        yield Instruction("load", (Address("a"),), 0, self.kind)
        yield Instruction("load", (Address("b"),), 1, self.kind)
        yield Instruction("load", (Address("b"),), 2, Type.U16)
        sides = {
            "a": Register(0, self.kind),
            "b": Register(1, self.kind),
            "n": Register(2, Type.U16),
        }
        for index, (op, operands, result, names) in enumerate(self.operations):
            args = tuple(sides[letter] for letter in operands)
            yield Instruction(op, args, 3 + index, result, names)
            yield Instruction("store", (Address("r", 8 * index), Register(3 + index, result)))
        yield Instruction("return")

    def differences(self, a: int, b: int) -> list[str]:
        """Operations whose compiled result is not the interpreter's; NaN are alike."""
        memory = np.array([*_words(a), *_words(b)], np.uint16)
        self.native = self.native or Native(self.module)
        got = run_native(self.native, memory=memory).data
        want = run_interpreter(self.module, memory=memory).data
        found = []
        for index, (op, _, result, names) in enumerate(self.operations):
            start = _RESULTS + 4 * index
            pair = [_value(memory[start:], result) for memory in (got, want)]
            if pair[0] != pair[1]:
                found.append(f"{op}{names}({a:#x}, {b:#x}) as {result}: {pair}")
        return found


def _operations(kind: Type) -> Iterator[tuple[str, str, Type, tuple[str, ...]]]:
    for op in ("add", "sub", "mul", "div", "rem"):
        yield op, "ab", kind, ()
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield op, "ab", Type.BOOL, ()
    yield "neg", "a", kind, ()
    for target in (*_NUMBERS, Type.BOOL):
        yield "cast", "a", target, ()
    if kind in INTEGERS:
        for op in ("and", "or", "xor"):
            yield op, "ab", kind, ()
        yield "bitnot", "a", kind, ()
        yield "shl", "an", kind, ()
        yield "shr", "an", kind, ()
    else:
        for name in ("sqrt", "floor", "ceil", "trunc", "abs"):
            yield "math", "a", kind, (name,)


def _words(bits: int) -> list[int]:
    return [(bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]


def _value(memory: Memory, kind: Type) -> int | str:
    bits = sum(int(memory[index]) << (16 * index) for index in range(num_words(kind)))
    bits &= 0xFF if WIDTHS[kind] <= 8 else -1
    number = decode(bits, kind) if kind in FLOATS else bits
    return "nan" if number != number else bits


_CASES = {kind: Case(kind) for kind in _NUMBERS}


@pytest.mark.parametrize("kind", _NUMBERS)
def test_compiled_arithmetic_is_the_interpreters_at_the_edges(kind: Type) -> None:
    mask = (1 << WIDTHS[kind]) - 1
    edges = sorted({edge & mask for edge in (_WIDE_EDGES if WIDTHS[kind] > 16 else _EDGES)})
    pairs = itertools.islice(itertools.product(edges, edges[::5]), 0, None, 3)
    found = [line for a, b in pairs for line in _CASES[kind].differences(a, b)]
    assert found == []


@pytest.mark.parametrize("kind", _NUMBERS)
@examples(25, by_default=12, deadline=None)
@given(data=st.data())
def test_compiled_arithmetic_is_the_interpreters_on_any_bits(
    kind: Type, data: st.DataObject
) -> None:
    bits = st.integers(0, (1 << WIDTHS[kind]) - 1)
    assert _CASES[kind].differences(data.draw(bits), data.draw(bits)) == []


@pytest.mark.parametrize("kind", sorted(INTEGERS))
def test_a_shift_by_the_width_leaves_what_the_interpreter_leaves(kind: Type) -> None:
    width = WIDTHS[kind]
    counts, bits = (width - 1, width, width + 1), (1 << width) - 1
    assert [line for count in counts for line in _CASES[kind].differences(bits, count)] == []


# The sine of 0.2094 is so near to the middle of two numbers that f32 has it there.
@pytest.mark.parametrize("number", [1.7, 0.2094])
@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh"])
def test_functions_of_the_numbers_are_rounded_once(name: str, number: float) -> None:
    value = Constant(int(np.float16(number).view(np.uint16)), Type.F16)
    module = one_block_module(
        [
            Instruction("math", (value,), 0, Type.F16, (name,)),
            Instruction("store", (Address("r"), Register(0, Type.F16))),
            Instruction("return"),
        ]
    )
    result = run_native(Native(module)).data[_RESULTS:].view(np.float16)
    assert result[0] == np.float16(getattr(np, name)(np.float64(np.float16(number))))
