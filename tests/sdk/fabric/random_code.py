"""What PEs of random machines do: operations that send, receive and compute, of every kind."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.image import DsrLoad
from tests.sdk.fabric.python_code import (
    Dsr,
    Operand,
    Pe,
    Pointer,
    Task,
    fabin,
    fabout,
    mem1d,
    mem4d,
)

Code = Generator[None, None, None]
Operation = tuple[str, tuple[Operand, ...]]
COMMANDS: Final = (0x095F9249, 0x099F9249, 0x015F9249, 0x0A5F9249)
TO_HOST, FROM_HOST = 22, 23
PASSED_ON: Final = 7
"""Output queue of what is passed on."""
RECEIVED: Final = 9
TABLE, TABLE_WORDS = 1000, 500
TARGETS, TARGET_WORDS = 100, 120
ASYNC, TERMINATE = int(mb.Option.ASYNC), int(mb.Option.TERMINATE_ON_CONTROL)
SIMD, CONTROL, INDEX = int(DsdFlag.SIMD), int(DsdFlag.CONTROL), int(DsdFlag.WAVELET_INDEX)

SENDS: Final = (
    *("words", "halves", "backwards", "one half of two", "sum", "with a number", "a number"),
    *("product", "narrowed", "from two dimensions", "simd", "simd words", "indexed", "at the end"),
)
"""How elements leave: the first ones by plans of their own."""

RECEIVES: Final = (
    *("words", "floats", "halves", "apart", "added", "added halves", "scaled", "narrowed"),
    *("widened", "total", "register", "to two dimensions", "simd", "simd words", "passed on"),
)
"""How elements come."""


@dataclass(frozen=True)
class Send:
    """An operation that sends so many elements of a kind; of "control" the command."""

    color: int
    kind: str
    what: int


@dataclass(frozen=True)
class Receive:
    """A microthread that receives; `priority` is -1 for none."""

    kind: str
    length: int
    priority: int = -1
    ends_on_control: bool = False


def entries(
    sends: Sequence[Send],
    receives: Mapping[int, Receive],
    data_colors: Sequence[int],
    delay: int,
) -> list[Task]:
    """Entry 0 receives and sends, 1 runs at the end of a receive, 2 for each wavelet of a task."""
    sent = list(dict.fromkeys(send.color for send in sends))

    def start(pe: Pe) -> Code:
        pe.work(delay)
        for k, (color, receive) in enumerate(receives.items()):
            if color in data_colors:
                continue
            given = {"options": ASYNC | TERMINATE * receive.ends_on_control}
            given |= {"activate": RECEIVED, "microthread": 7 - k, "priority": receive.priority}
            name, operands = received(k, color, receive)
            pe.vector(name, *operands, **given)
            pe.mailbox[mb.PLACE] = k
            yield
        for k, send in enumerate(sends):
            given = {"options": ASYNC, "microthread": k % 2} if k % 3 == 1 else {}
            name, operands = left(send, sent.index(send.color) % 6)
            pe.vector(name, *operands, index=k, **given)
            pe.mailbox[mb.PLACE] = 10 + k
            yield
        pe.open_stream()

    def end(pe: Pe) -> Code:
        pe.memory[3000] += 1
        pe.work(15)
        pe.vector("add16", mem1d(3100, 20), mem1d(3100, 20), mem1d(TARGETS, 20))
        yield

    def datum(pe: Pe) -> Code:
        pe.memory[3001] += pe.argument & 0xFF
        pe.work(pe.argument % 40)
        yield from ()

    return [start, end, datum]


def registers(receives: Mapping[int, Receive]) -> tuple[DsrLoad, ...]:
    """The registers that receives go through, each to its target."""
    return tuple(
        DsrLoad(0, k, mem1d(target_of(k), receive.length, 2), int(mb.Option.SAVE_ADDRESS))
        for k, receive in enumerate(receives.values())
    )


def target_of(number: int) -> int:
    """Where the PE's receive of a number goes to."""
    return TARGETS + TARGET_WORDS * number


def left(send: Send, queue: int) -> Operation:
    """The operation of a send, from the table."""
    length = send.what
    out, halves = fabout(send.color, length, queue), mem1d(TABLE, length)
    wide, other = mem1d(TABLE, length, 2, 2), mem1d(TABLE + 100, length, 2, 2)
    simd, indexed = (fabout(send.color, length, queue, flag) for flag in (SIMD, INDEX))
    operations: dict[str, Operation] = {
        "control": ("mov32", (fabout(send.color, 1, queue, CONTROL), send.what)),
        "words": ("mov32", (out, wide)),
        "halves": ("mov16", (out, mem1d(TABLE + 1, length))),
        "backwards": ("mov16", (out, mem1d(TABLE + 200, length, -3))),
        "one half of two": ("mov16", (out, wide)),
        "sum": ("fadds", (out, wide, other)),
        "with a number": ("add16", (out, halves, 5)),
        "a number": ("mov32", (out, 0x1234_5678)),
        "product": ("fmacs", (out, wide, other, 0x4000_0000)),
        "narrowed": ("fs2h", (out, wide)),
        "from two dimensions": ("mov16", (out, mem4d(TABLE, [2, (length + 1) // 2], [1, 5]))),
        "simd": ("mov16", (simd, halves)),
        "simd words": ("mov32", (simd, wide)),
        "indexed": ("mov16", (indexed, halves)),
        "at the end": ("mov32", (out, mem1d(TABLE + TABLE_WORDS - 6, length, 2, 2))),
    }
    return operations[send.kind]


def received(number: int, color: int, receive: Receive) -> Operation:
    """The operation of a receive, to the target of its number."""
    to, length, queue = target_of(number), receive.length, 7 - number
    words, halves = mem1d(to, length, 2, 2), mem1d(to, length)
    source, simd = fabin(color, length, queue), fabin(color, length, queue, SIMD)
    operations: dict[str, Operation] = {
        "words": ("mov32", (words, source)),
        "floats": ("fmovs", (words, source)),
        "halves": ("mov16", (halves, source)),
        "apart": ("mov16", (mem1d(to + 2 * length, length, -2), source)),
        "added": ("fadds", (words, words, source)),
        "added halves": ("add16", (halves, source, halves)),
        "scaled": ("fmacs", (words, words, source, 0x4000_0000)),
        "narrowed": ("fs2h", (halves, source)),
        "widened": ("fh2s", (words, source)),
        "total": ("add16", (Pointer(to), 1, source)),
        "register": ("mov16", (Dsr(0, number), source)),
        "to two dimensions": ("mov16", (mem4d(to, [2, (length + 1) // 2], [1, 2]), source)),
        "simd": ("mov16", (halves, simd)),
        "simd words": ("mov32", (words, simd)),
        "passed on": ("mov32", (fabout(TO_HOST, length, PASSED_ON), source)),
    }
    return operations[receive.kind]
