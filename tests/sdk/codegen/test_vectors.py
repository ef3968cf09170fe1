"""Vector operations on memory equal the reference, whatever lies where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import WSE2, WSE3, Arch
from openwafer.sdk.arch.pace import VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Trap
from tests.examples import examples
from tests.sdk.codegen.oracle import (
    Memory,
    Native,
    assert_agrees,
    assert_same,
    read_module,
    run_interpreter,
    run_native,
)
from tests.tables import case, checkerboard

_AREA = 200
_LENGTH = 37


def _dsd(base: int, stride: int, length: int = _LENGTH, words: int = 1) -> str:
    return f"dsd(1, {base}, {length}, 0, {stride & 0xFFFF}, {words}, 0, 0)"


def _program(name: str, *operands: list[str]) -> str:
    """A module with an entry for each list of operands."""
    entries = "".join(f"entry &f{number}\n" for number in range(len(operands)))
    lines = [f"  vector[{name}] {', '.join(those)} !0" for those in operands]
    heads = [f"fn &f{number}() void {{\nhead:\n" for number in range(len(operands))]
    bodies = zip(heads, lines, strict=True)
    return entries + "\n".join(f"{head}{line}\n  return !0\n}}" for head, line in bodies)


def _memory(op: VectorOp) -> Memory:
    """Four areas of numbers: destination and sources, of the types of the operation."""
    random = np.random.default_rng(op.code)
    memory = np.zeros(4 * _AREA, np.uint16)
    for place, kind in enumerate((op.destination, *op.sources)):
        area = memory[place * _AREA :][:_AREA]
        if kind == "f16":
            area[:] = random.normal(0, 4, _AREA).astype(np.float16).view(np.uint16)
        elif kind == "f32":
            area[:] = random.normal(0, 4, _AREA // 2).astype(np.float32).view(np.uint16)
        else:
            area[:] = random.integers(0, 1 << 16, _AREA)
    return memory


def _operand(op: VectorOp, place: int, letter: str, stride: int) -> str:
    kind = (op.destination, *op.sources)[place]
    words = element_words(kind)
    if letter == "p":
        return f"{2 * place * _AREA}:ptr"
    if letter == "s":
        kind = {"any16": "u16", "any32": "u32"}.get(kind, kind)
        return f"{3 if kind[0] != 'f' else 0x3E00 if kind == 'f16' else 0x3FC00000}:{kind}"
    return _dsd(place * _AREA + (stride < 0) * (_LENGTH - 1) * words, stride * words, words=words)


# By default a quarter of the operations are tried so, and another one into a scalar.
@pytest.mark.parametrize(
    "name", [case(name, by_default=index % 4 == 1) for index, name in enumerate(VECTOR_OPS)]
)
def test_every_operation_on_neighbours_and_on_strides(name: str) -> None:
    op = VECTOR_OPS[name]
    places = range(1 + len(op.sources))
    strides = (1, 1, 1, 1), (2, 2, 0, 1), (-1, 1, 1, 2)
    operands = [[_operand(op, place, "d", those[place]) for place in places] for those in strides]
    module = read_module(_program(name, *operands))
    native = Native(module)
    for entry in range(len(strides)):
        trail = run_native(native, entry, memory=_memory(op))
        assert_same(trail, run_interpreter(module, entry, memory=_memory(op)))
        assert trail.outcomes == [Outcome.FINISHED]


@pytest.mark.parametrize("name", checkerboard(VECTOR_OPS, one_in=4))
def test_every_operation_into_a_scalar(name: str) -> None:
    op = VECTOR_OPS[name]
    operands = [_operand(op, 0, "p", 1)]
    for place in range(1, 1 + len(op.sources)):
        letter = "s" if place == 1 and len(op.sources) > 1 else "d"
        operands.append(_operand(op, place, letter, 1))
    assert_agrees(_program(name, operands), memory=_memory(op))


@pytest.mark.parametrize("form", ["dsd", "dds", "dss", "pss", "pds"])
def test_scalars_stand_in_any_source(form: str) -> None:
    op = VECTOR_OPS["fsubs"]
    operands = [_operand(op, place, letter, 1) for place, letter in enumerate(form)]
    assert_agrees(_program("fsubs", operands), memory=_memory(op))


_OVERLAPPING = read_module(
    """
global @d 0 32
entry &main
fn &main() void {
head:
  %0 = load dsd @d !0
  %1 = load dsd @d+16 !0
  %2 = load dsd @d+32 !0
  %3 = load dsd @d+48 !0
  vector[fmacs] %0, %1, %2, %3 !0
  return !0
}
"""
)


@pytest.fixture(scope="module")
def overlapping() -> Native:
    return Native(_OVERLAPPING)


@examples(60, by_default=20, deadline=None)
@given(
    starts=st.tuples(*[st.integers(200, 240)] * 4),
    strides=st.tuples(*[st.integers(-2, 2)] * 4),
    length=st.integers(0, 30),
)
def test_operands_may_overlap(
    overlapping: Native, starts: tuple[int, ...], strides: tuple[int, ...], length: int
) -> None:
    memory = np.arange(250, dtype=np.float32).view(np.uint16)
    for place, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        memory[8 * place : 8 * place + 8] = [1, start, length, 0, 2 * stride & 0xFFFF, 2, 0, 0]
    native = run_native(overlapping, memory=memory)
    assert_same(native, run_interpreter(_OVERLAPPING, memory=memory))


@examples(60, by_default=20, deadline=None)
@given(
    starts=st.tuples(*[st.integers(400, 440)] * 2),
    strides=st.tuples(*[st.sampled_from((1, 3, 8, 12, 24))] * 2),
    is_updated=st.booleans(),
)
def test_reads_of_two_sources_take_turns_natively_as_in_the_interpreter(
    overlapping: Native, starts: tuple[int, int], strides: tuple[int, int], is_updated: bool
) -> None:
    (first, second), (step, other) = starts, strides
    places = [(first if is_updated else 2000, step), (first, step), (second, other), (3000, 1)]
    memory = np.zeros(4000, np.uint16)
    for place, (start, stride) in enumerate(places):
        memory[8 * place : 8 * place + 8] = [1, start, 25, 0, 2 * stride, 2, 0, 0]
    native = run_native(overlapping, memory=memory)
    assert_same(native, run_interpreter(_OVERLAPPING, memory=memory))


@pytest.mark.parametrize(
    ("base", "stride", "length", "bad"),
    [(24570, 1, 6, None), (24570, 1, 7, 24576), (3, -1, 4, None), (3, -1, 5, 65535)],
)
def test_an_operation_outside_of_memory_traps_before_it_begins(
    base: int, stride: int, length: int, bad: int | None
) -> None:
    text = _program("mov16", [_dsd(base, stride, length), "7:u16"])
    trail = run_native(Native(read_module(text)))
    assert trail.outcomes == [Outcome.FINISHED if bad is None else Outcome.TRAPPED]
    if bad is not None:
        assert trail.box[mailbox.TRAP] == Trap.OUT_OF_BOUNDS
        assert trail.box[mailbox.TRAP_VALUE] == bad
        assert not trail.memory[:20000].any()


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("distance", [400, 402])
def test_the_clock_advances_by_the_rate_and_bank_conflicts(arch: Arch, distance: int) -> None:
    length, generation = 100, {Arch.WSE2: WSE2, Arch.WSE3: WSE3}[arch]
    sources = [_dsd(start, 2, length, 2) for start in (0, distance)]
    text = _program("fmuls", [_dsd(1000, 2, length, 2), *sources])
    trail = run_native(Native(read_module(text), arch=arch))
    shape = VectorShape(turns=8 if distance == 400 else 4, num_registers=3)
    expected = vector_cycles(VECTOR_OPS["fmuls"], length, generation, shape)
    assert trail.box[mailbox.CYCLE] == expected


def test_an_operation_takes_its_elements_and_the_loads_of_its_registers() -> None:
    multiply, add = VECTOR_OPS["fmuls"], VECTOR_OPS["faddh"]
    assert vector_cycles(multiply, 4000, WSE2, VectorShape(num_registers=2)) == 4005
    assert vector_cycles(add, 4000, WSE2, VectorShape(num_registers=3)) == 1006
    assert vector_cycles(add, 4000, WSE3, VectorShape(turns=8)) == 1000


@pytest.mark.parametrize("stride", [0, 1, 2, -3, 20])
def test_a_stride_slows_what_reads_several_elements_a_cycle(stride: int) -> None:
    start = 3000 if stride < 0 else 0
    text = _program("mov16", [_dsd(4000, 1, 100), _dsd(start, stride, 100)])
    trail = run_native(Native(read_module(text), arch=Arch.WSE3))
    expected = vector_cycles(
        VECTOR_OPS["mov16"], 100, WSE3, VectorShape((stride,), num_registers=2)
    )
    assert trail.box[mailbox.CYCLE] == expected


def test_a_float_sum_takes_two_cycles_an_element() -> None:
    text = _program("fadds", ["0:ptr", "0:f32", _dsd(20, 2, 100, 2)])
    trail = run_native(Native(read_module(text), arch=Arch.WSE3))
    assert trail.box[mailbox.CYCLE] == 200 + 4


def test_a_long_operation_equals_numpy() -> None:
    random = np.random.default_rng(0)
    a, x, y = (random.normal(0, 1, 2000).astype(np.float32) for _ in range(3))
    memory = np.concatenate([np.zeros(2000, np.float32), a, x, y]).view(np.uint16)
    operands = [_dsd(4000 * place, 2, 2000, 2) for place in range(4)]
    native = Native(read_module(_program("fmacs", operands)))
    result = run_native(native, memory=memory).data[:4000].view(np.float32)
    exact = a.astype(np.float64) + x.astype(np.float64) * y.astype(np.float64)
    assert np.array_equal(result, exact.astype(np.float32))


def test_a_reduction_starts_at_its_scalar() -> None:
    memory = np.arange(50, dtype=np.float32).view(np.uint16)
    text = _program("fadds", ["0:ptr", f"{0x42C80000}:f32", _dsd(20, 2, 10, 2)])
    module = read_module(text)
    total = run_native(Native(module), memory=memory).data[:2].view(np.float32)[0]
    assert total == 100 + sum(range(10, 20))
    assert total == run_interpreter(module, memory=memory).data[:2].view(np.float32)[0]


@pytest.mark.parametrize("extents", [(9, 4, 6), (4, 9, 6), (7, 0, 5), (7, 0, 0), (0, 0, 0)])
def test_the_first_source_that_is_not_empty_gives_the_length(extents: tuple[int, ...]) -> None:
    operands = [_dsd(_AREA * place, 1, extent) for place, extent in enumerate(extents)]
    assert_agrees(_program("add16", operands), memory=_memory(VECTOR_OPS["add16"]))


def test_strides_count_elements_of_the_operation() -> None:
    words = np.arange(1, 41, dtype=np.uint16)
    text = _program("mov32", [_dsd(100, 1, 20), _dsd(38, -1, 20)])
    moved = assert_agrees(text, memory=words).data[100:140]
    assert np.array_equal(moved.view(np.uint32), words.view(np.uint32)[::-1])


@pytest.mark.parametrize(
    ("words", "stride", "name"),
    checkerboard((1, 2), (-4, -3, -2, -1, 0, 1, 2, 3), ("mov16", "mov32")),
)
def test_strides_of_any_descriptor_are_the_same_interpreted(
    name: str, stride: int, words: int
) -> None:
    operands = [_dsd(400, 1, 20, words), _dsd(200, stride, 20, words)]
    assert_agrees(_program(name, operands), memory=np.arange(400, dtype=np.uint16))
