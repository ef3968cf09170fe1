"""Programs of one PE whose microthreads and statements share arrays, drawn so that they shrink."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import WORD_BYTES, Arch
from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Global,
    Instruction,
    Module,
    Register,
    Resource,
    Slot,
    Type,
    Value,
)
from openwafer.sdk.ir.text import render
from openwafer.sdk.program.image import Entry, Image, QueueBinding
from openwafer.sdk.program.mailbox import BlockKind
from openwafer.sdk.program.program import HostName, Program

NUM_ARRAYS, LENGTH, FIRST = 3, 8, 64
END = FIRST + NUM_ARRAYS * LENGTH
"""Where the time at the end is stored."""
STACK = 256
IN_COLOR, OUT_COLOR, IN_QUEUE, OUT_QUEUE = 5, 6, 2, 3
MICROTHREADS = (0, 1, 4)


@dataclass(frozen=True)
class Slice:
    """Neighbours in an array."""

    array: int
    start: int
    length: int

    @property
    def address(self) -> int:
        return FIRST + self.array * LENGTH + self.start

    def of(self, length: int) -> "Slice":
        """As many as there are, at most `length`."""
        return Slice(self.array, self.start, min(length, self.length))


@dataclass(frozen=True)
class Put:
    """``array[i] = value``, or the same through a pointer that a variable holds."""

    to: Slice
    value: int
    by_pointer: bool


@dataclass(frozen=True)
class Add:
    """``one[i] += other[k]``"""

    to: Slice
    of: Slice


@dataclass(frozen=True)
class Copy:
    """Words of one array into another, by scalar code."""

    to: Slice
    of: Slice


@dataclass(frozen=True)
class Vector:
    """A vector operation on memory that the main thread waits for; `to` may be a scalar."""

    to: Slice
    of: tuple[Slice, ...]
    is_sum: bool


@dataclass(frozen=True)
class Begin:
    """A vector operation on registers as a microthread."""

    to: Slice
    of: tuple[Slice, ...]
    microthread: int
    priority: int


@dataclass(frozen=True)
class Transfer:
    """A move to the fabric, or from it."""

    memory: Slice
    is_send: bool
    is_async: bool


@dataclass(frozen=True)
class Hold:
    """A microthread is blocked, or unblocked."""

    microthread: int
    is_blocked: bool


@dataclass(frozen=True)
class Work:
    """A loop that touches no memory."""

    count: int


@dataclass(frozen=True)
class Loop:
    """Statements that are run again."""

    count: int
    body: tuple["Statement", ...]


Statement: TypeAlias = Put | Add | Copy | Vector | Begin | Transfer | Hold | Work | Loop


@st.composite
def _slices(draw: st.DrawFn) -> Slice:
    start = draw(st.integers(0, LENGTH - 1))
    length = draw(st.integers(1, LENGTH - start))
    return Slice(draw(st.integers(0, NUM_ARRAYS - 1)), start, length)


SLICES = _slices()
_SOURCES = st.one_of(st.tuples(SLICES), st.tuples(SLICES, SLICES))
_SIMPLE = st.one_of(
    st.builds(Put, SLICES, st.integers(0, 99), st.booleans()),
    st.builds(Add, SLICES, SLICES),
    st.builds(Copy, SLICES, SLICES),
    st.builds(Vector, SLICES, _SOURCES, st.booleans()),
    st.builds(Begin, SLICES, _SOURCES, st.sampled_from(MICROTHREADS), st.integers(0, 2)),
    st.builds(Transfer, SLICES, st.booleans(), st.booleans()),
    st.builds(Hold, st.sampled_from(MICROTHREADS), st.booleans()),
    st.builds(Work, st.integers(1, 5)),
)


def _loops(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    bodies = st.lists(inner, min_size=1, max_size=4).map(tuple)
    return st.builds(Loop, st.integers(1, 3), bodies)


STATEMENTS: st.SearchStrategy[Statement] = st.recursive(_SIMPLE, _loops, max_leaves=6)
PROGRAMS = st.lists(STATEMENTS, min_size=1, max_size=10).map(tuple)


def num_received(statements: tuple[Statement, ...]) -> int:
    """How many words a program takes from the fabric."""
    total = 0
    for one in statements:
        if isinstance(one, Loop):
            total += one.count * num_received(one.body)
        elif isinstance(one, Transfer) and not one.is_send:
            total += one.memory.length
    return total


def module_of(statements: tuple[Statement, ...]) -> Module:
    """The program as a module with one entry."""
    variables = [Global(f"a{n}", FIRST + n * LENGTH, LENGTH) for n in range(NUM_ARRAYS)]
    module = Module("drawn", STACK, 24576, [*variables, Global("end", END, 1)])
    writer = _Writer()
    writer.do("timestamp_control", names=("enable",))
    for one in statements:
        writer.write(one)
    writer.do("store", Address("end"), writer.value("timestamp", Type.U16, names=("0",)))
    writer.do("open_stream")
    writer.do("return")
    module.functions["main"] = writer.function
    module.entries.append("main")
    return module


def program_of(statements: tuple[Statement, ...], arch: Arch) -> Program:
    """The program on a machine of one PE, with a stream from the host and one to it."""
    image = Image(
        name="drawn",
        code=render(module_of(statements)),
        data=first_memory().tobytes(),
        stack_base=STACK,
        code_words=0,
        entries=(Entry("main"),),
        queues=(QueueBinding(True, IN_QUEUE, IN_COLOR), QueueBinding(False, OUT_QUEUE, OUT_COLOR)),
        exported_functions=(("main", 0),),
    )
    return Program(
        arch=arch,
        fabric=(8, 3),
        offset=(4, 1),
        images=(image,),
        image_of=np.zeros((1, 1), np.int32),
        parameters=np.zeros((1, 1, 0), np.int64),
        routes=((),),
        routes_of=np.zeros((1, 1), np.int32),
        host_names=(HostName(1, "main", "void", inputs=()),),
        streams=(("MEMCPYH2D_1", IN_COLOR), ("MEMCPYD2H_1", OUT_COLOR)),
    )


def first_memory() -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Words of the memory up to the stack: arrays of different numbers."""
    words = np.zeros(STACK, np.uint16)
    words[FIRST:END] = np.arange(END - FIRST) * 100 + 7
    return words


def _dsd(memory: Slice) -> Constant:
    return Constant((1, memory.address, memory.length, 0, 1, 1, 0, 0), Type.DSD)


def _at(place: Slice) -> Address:
    return Address(f"a{place.array}", WORD_BYTES * place.start)


@dataclass
class _Writer:
    """Writes statements, each in blocks of its own."""

    function: Function = field(
        default_factory=lambda: Function(
            "main", 0, Type.VOID, [Slot("p", Type.PTR)], [Block("head")]
        )
    )
    _values: int = 0

    def do(self, op: str, *args: Value, names: tuple[str, ...] = ()) -> None:
        self.function.blocks[-1].instructions.append(Instruction(op, args, names=names))

    def value(self, op: str, kind: Type, *args: Value, names: tuple[str, ...] = ()) -> Register:
        self._values += 1
        instruction = Instruction(op, args, self._values, kind, names)
        self.function.blocks[-1].instructions.append(instruction)
        return Register(self._values, kind)

    def _begin(self, label: str) -> None:
        self.function.blocks.append(Block(label))

    def _next(self) -> None:
        label = f"b{len(self.function.blocks)}"
        self.do("jump", names=(label,))
        self._begin(label)

    def write(self, one: Statement) -> None:
        match one:
            case Put():
                self._put(one)
            case Add(to, of):
                sides = [self.value("load", Type.U16, _at(place)) for place in (to, of)]
                self.do("store", _at(to), self.value("add", Type.U16, *sides))
            case Copy(to, of):
                self.do("copy", _at(to), _at(of), _word(WORD_BYTES * min(to.length, of.length)))
            case Vector(to, of, is_sum):
                self._vector(to, of, is_sum=is_sum)
            case Begin():
                self._microthread(one)
            case Transfer():
                self._transfer(one)
            case Hold(number, is_blocked):
                target = int(BlockKind.MICROTHREAD) << 8 | number
                self.do("block" if is_blocked else "unblock", _word(target))
            case Work(count):
                self._loop(count, ())
            case Loop(count, body):
                self._loop(count, body)
        self._next()

    def _put(self, one: Put) -> None:
        pointer: Value = _at(one.to)
        if one.by_pointer:
            self.do("set", pointer, names=("p",))
            self._next()
            pointer = self.value("get", Type.PTR, names=("p",))
        self.do("store", pointer, _word(one.value))

    def _vector(self, to: Slice, of: tuple[Slice, ...], *, is_sum: bool) -> None:
        if is_sum:
            self.do("vector", _at(to), _word(1), _dsd(of[0]), names=("add16",))
            return
        length = min(place.length for place in (to, *of))
        name = "mov16" if len(of) == 1 else "add16"
        self.do("vector", *(_dsd(place.of(length)) for place in (to, *of)), names=(name,))

    def _microthread(self, one: Begin) -> None:
        length = min(place.length for place in (one.to, *one.of))
        for file, place in enumerate((one.to, *one.of)):
            register = str(file), str(one.microthread)
            self.do("load_dsr", _dsd(place.of(length)), names=register)
        registers = [
            Resource("dsr", file << 8 | one.microthread) for file in range(len(one.of) + 1)
        ]
        name = "mov16" if len(one.of) == 1 else "add16"
        names = (name, "fabric", "async", "microthread", "priority")
        self.do("vector", *registers, _word(one.microthread), _word(one.priority), names=names)

    def _transfer(self, one: Transfer) -> None:
        kind, color, queue = (3, OUT_COLOR, OUT_QUEUE) if one.is_send else (2, IN_COLOR, IN_QUEUE)
        fabric = Constant((kind, color, one.memory.length, 0, queue, 2, 0, 0), Type.DSD)
        memory = _dsd(one.memory)
        operands = (fabric, memory) if one.is_send else (memory, fabric)
        self.do("vector", *operands, names=("mov16", "fabric", *["async"] * one.is_async))

    def _loop(self, count: int, body: tuple[Statement, ...]) -> None:
        number = len(self.function.blocks)
        counter, head, inner, behind = f"i{number}", f"h{number}", f"l{number}", f"e{number}"
        self.function.slots.append(Slot(counter, Type.U16))
        self.do("set", _word(0), names=(counter,))
        self.do("jump", names=(head,))
        self._begin(head)
        turn = self.value("get", Type.U16, names=(counter,))
        self.do("branch", self.value("lt", Type.BOOL, turn, _word(count)), names=(inner, behind))
        self._begin(inner)
        for one in body:
            self.write(one)
        turn = self.value("get", Type.U16, names=(counter,))
        self.do("set", self.value("add", Type.U16, turn, _word(1)), names=(counter,))
        self.do("jump", names=(head,))
        self.function.blocks[-1].is_loop_end = True
        self._begin(behind)


def _word(number: int) -> Constant:
    return Constant(number, Type.U16)
