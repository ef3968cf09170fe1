"""PE code written in Python, behind the binary interface of compiled code.

An entry is a generator function of a :class:`Pe`: it works on mailbox and memory, and yields
wherever it has put a request into the mailbox.
"""

import ctypes
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import MEMORY_WORDS, Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.fabric.machine import Engine
from openwafer.sdk.ir.elements import element
from openwafer.sdk.program import descriptor as dsd
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Entry, Image
from openwafer.sdk.program.input_queues import allocated
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig

Words = tuple[int, ...]
Task = Callable[["Pe"], Generator[None, None, None]]


def mem1d(base: int, extent: int, stride: int = 1, words: int = 1, flags: int = 0) -> Words:
    low, high = extent & 0xFFFF, extent >> 16
    return (int(dsd.DsdKind.MEM1D) | flags, base, low, high, stride & 0xFFFF, words, 0, 0)


def mem4d(base: int, extents: Sequence[int], strides: Sequence[int], words: int = 1) -> Words:
    sizes = [*extents, 0, 0, 0, 0][:4]
    steps = [stride & 0xFFFF for stride in [*strides, 0, 0, 0, 0][:4]]
    return (int(dsd.DsdKind.MEM4D), base, len(extents), 0, 0, words, 0, 0, *sizes, *steps)


def fabin(color: int, extent: int, queue: int, flags: int = 0) -> Words:
    kind = int(dsd.DsdKind.FABIN) | flags
    return (kind, color, extent & 0xFFFF, extent >> 16, queue, 2, 0, 0)


def fabout(color: int, extent: int, queue: int, flags: int = 0) -> Words:
    kind = int(dsd.DsdKind.FABOUT) | flags
    return (kind, color, extent & 0xFFFF, extent >> 16, queue, 2, 0, 0)


@dataclass(frozen=True)
class Fifo:
    number: int


@dataclass(frozen=True)
class Dsr:
    file: int
    number: int


@dataclass(frozen=True)
class Pointer:
    address: int


Operand = int | Words | Fifo | Dsr | Pointer


def encoded(operand: Operand) -> tuple[int, list[int]]:
    match operand:
        case int():
            return int(mb.OperandKind.SCALAR), [operand]
        case Fifo(number):
            return int(mb.OperandKind.FIFO), [number]
        case Dsr(file, number):
            return int(mb.OperandKind.DSR), [file << 8 | number]
        case Pointer(address):
            return int(mb.OperandKind.POINTER), [address]
        case tuple():
            padded = np.zeros(16, np.uint16)
            padded[: len(operand)] = operand
            return int(mb.OperandKind.DSD), padded.view(np.int64).tolist()


class TrapError(Exception):
    """Raised by an entry that gives up."""


class Pe:
    """A PE as its code sees it."""

    def __init__(self, mailbox: int, memory: int) -> None:
        words = (ctypes.c_int64 * mb.MAILBOX_WORDS).from_address(mailbox)
        self.mailbox: NDArray[np.int64] = np.ctypeslib.as_array(words)
        halves = (ctypes.c_uint16 * MEMORY_WORDS).from_address(memory)
        self.memory: NDArray[np.uint16] = np.ctypeslib.as_array(halves)

    @property
    def argument(self) -> int:
        return int(self.mailbox[mb.ARGUMENTS])

    @property
    def result(self) -> int:
        return int(self.mailbox[mb.RESULT])

    def work(self, cycles: int) -> None:
        self.mailbox[mb.CYCLE] += cycles

    def activate(self, task: int) -> None:
        self.mailbox[mb.ACTIVE] |= 1 << task

    def open_stream(self) -> None:
        self.mailbox[mb.STREAM_OPEN] = 1

    def request(
        self, kind: mb.Request, operation: int = 0, *operands: Operand, **given: int
    ) -> None:
        row = self.mailbox
        row[mb.REQUEST], row[mb.OPERATION] = kind, operation
        row[mb.OPTIONS] = given.pop("options", 0)
        row[mb.ACTIVATE : mb.PRIORITY + 1] = -1
        for name, value in given.items():
            row[getattr(mb, name.upper())] = value
        row[mb.OPERANDS : mb.MAP_STATE] = 0
        for place, operand in enumerate(operands):
            kind_number, words = encoded(operand)
            start = mb.OPERANDS + place * mb.OPERAND_WORDS
            row[start : start + 1 + len(words)] = [kind_number, *words]

    def vector(self, op: str, *operands: Operand, **given: int) -> None:
        self.request(mb.Request.VECTOR, VECTOR_OPS[op].code, *operands, **given)


class PythonCode:
    """Entries of images behind two native addresses."""

    def __init__(self, *images: Sequence[Task]) -> None:
        self._images = images
        self._running: dict[int, Generator[None, None, None]] = {}
        run_type = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 5)
        element_type = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
        self._run = run_type(self._call)
        self._element = element_type(element)

    def simulator(self, program: Program, options: SimulatorOptions | None = None) -> Simulator:
        run = ctypes.cast(self._run, ctypes.c_void_p).value or 0
        computes = ctypes.cast(self._element, ctypes.c_void_p).value or 0
        return Simulator(program, run, computes, options or SimulatorOptions())

    def _call(self, image: int, mailbox: int, memory: int, entry: int, is_resume: int) -> int:
        if not is_resume:
            self._running[mailbox] = self._images[image][entry](Pe(mailbox, memory))
        try:
            next(self._running[mailbox])
        except StopIteration:
            return int(mb.Outcome.FINISHED)
        except TrapError:
            return int(mb.Outcome.TRAPPED)
        return int(mb.Outcome.SUSPENDED)


def image(name: str = "code", **fields: object) -> Image:
    entries = tuple(Entry(f"entry{k}") for k in range(16))
    given = {"data": b"", "stack_base": 0, "code_words": 0, "code": "", "entries": entries}
    return Image(name=name, **{**given, **fields})  # type: ignore[arg-type]


def program(
    image_of: Sequence[Sequence[int]],
    images: Sequence[Image],
    routes: Sequence[Sequence[tuple[int, ColorConfig]]] = ((),),
    arch: Arch = Arch.WSE2,
    streams: tuple[tuple[str, int], ...] = (),
) -> Program:
    """A program whose PE (x, y) has set `y * width + x` of the routes, if there are several.

    Colors of WSE-2 that tasks need and no queue brings get one, as in a compiled program.
    """
    if arch is Arch.WSE2:
        images = [replace(i, queues=allocated(i.queues, i.tasks).bindings) for i in images]
    grid = np.array(image_of, np.int32)
    several = len(routes) == grid.size
    routes_of = np.arange(grid.size, dtype=np.int32) if several else np.zeros(grid.size, np.int32)
    return Program(
        arch=arch,
        fabric=(20, 20),
        offset=(4, 1),
        images=tuple(images),
        image_of=grid,
        parameters=np.zeros((*grid.shape, 0), np.int64),
        routes=tuple(tuple(given) for given in routes),
        routes_of=routes_of.reshape(grid.shape),
        streams=streams,
    )


def engine_of(simulator: Simulator) -> Engine:
    """The compiled core's machine, with its arrays."""
    engine = simulator.engine
    assert isinstance(engine, Engine)
    return engine
