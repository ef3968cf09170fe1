"""A vector operation on memory takes the same time inline and as a request of an idle PE."""

from collections.abc import Iterator
from itertools import product
from zlib import crc32

import numpy as np
import pytest

from openwafer.sdk.arch.generation import WORD_BYTES, Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.program.image import Entry, Image
from openwafer.sdk.program.program import Program
from tests.sdk.fabric.python_code import program

AREA, TIME, DATA_WORDS, STACK = 400, 1700, 1800, 2000
LENGTHS = (0, 1, 5, 17, 40)
STRIDES = (1, -1, 2, 3, 4, 8)
SHIFTS = (0, 2)
"""Words by which each operand lies behind the begin of its area: with and without conflicts."""
ANY = {"any16": "u16", "any32": "u32"}


def operands(op: VectorOp, form: str, stride: int, length: int, shift: int) -> str:
    """Destination and sources: ``d`` descriptor, ``p`` pointer, ``s`` scalar."""
    made = []
    for place, (letter, kind) in enumerate(zip(form, (op.destination, *op.sources), strict=True)):
        words, area = element_words(kind), place * AREA + place * shift
        base = area + (40 * 8 if stride < 0 else 0)
        if letter == "d":
            made.append(f"dsd(1, {base}, {length}, 0, {stride * words & 0xFFFF}, {words}, 0, 0)")
        elif letter == "p":
            made.append(f"{WORD_BYTES * area}:ptr")
        else:
            made.append(f"3:{ANY.get(kind, kind)}")
    return ", ".join(made)


def forms(op: VectorOp) -> Iterator[str]:
    """Every form of an operation's operands."""
    for target, *sources in product("dp", *["ds"] * len(op.sources)):
        yield target + "".join(sources)


def code_of(lines: list[str]) -> str:
    """A module with an entry for each line, which stores how long the line takes."""
    text = [f'module "ops" stack {STACK} memory 24576', 'place "ops.csl" 1 1 "main"']
    text += [f"global @time {TIME} 1", *(f"entry &f{n}" for n in range(len(lines)))]
    for number, line in enumerate(lines):
        text += [f"fn &f{number}() void {{", "head:", "  timestamp_control[enable] !0"]
        text += ["  timestamp_control[reset] !0", f"  {line} !0", "  %0 = timestamp u16 [0] !0"]
        text += ["  store @time, %0 !0", "  open_stream !0", "  return !0", "}"]
    return "\n".join(text).replace("timestamp u16 [0]", "timestamp[0] u16") + "\n"


def machine(lines: list[str], arch: Arch) -> Program:
    entries = tuple(Entry(f"f{n}") for n in range(len(lines)))
    data = np.zeros(DATA_WORDS, np.uint16).tobytes()
    code = code_of(lines)
    image = Image("ops", code, data, STACK, code_words=0, entries=entries)
    return program([[0]], [image], arch=arch)


def after_each(lines: list[str], arch: Arch) -> list[tuple[str, int, int]]:
    """Each line's operands, its time, and a checksum of the memory behind it."""
    made = machine(lines, arch)
    engine = build_engine(made, EngineKind.INTERPRETER)
    simulator = Simulator(made, engine.run_address, engine.element_address)
    before = np.random.default_rng(1).integers(0, 0x4000, DATA_WORDS).astype(np.uint16)
    found = []
    for number in range(len(lines)):
        simulator.write(0, 0, 0, before)
        simulator.start_command([number])
        simulator.run_until_idle(100_000)
        memory = simulator.read(0, 0, 0, DATA_WORDS)
        found.append((lines[number].split("] ")[1], int(memory[TIME]), crc32(memory.tobytes())))
    return found


def lines_of(name: str, mark: str = "") -> list[str]:
    op = VECTOR_OPS[name]
    cases = [(form, *case) for form in forms(op) for case in product(STRIDES, SHIFTS)]
    return [
        f"vector[{name}{mark}] {operands(op, form, stride, LENGTHS[k % len(LENGTHS)], shift)}"
        for k, (form, stride, shift) in enumerate(cases)
    ]


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("name", ["mov16", "add16", "fmacs", "fmaxh", "fadds"])
def test_requests_take_as_long_as_inline_operations(name: str, arch: Arch) -> None:
    inline, asked = lines_of(name)[::5], lines_of(name, ", fabric")[::5]
    assert after_each(inline, arch) == after_each(asked, arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("name", list(VECTOR_OPS))
def test_every_request_takes_as_long_as_its_inline_operation(name: str, arch: Arch) -> None:
    assert after_each(lines_of(name), arch) == after_each(lines_of(name, ", fabric"), arch)
