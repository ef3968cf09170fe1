"""The plain meaning of ``check``: what it looks at, and what it tells the host."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, element_words
from openwafer.sdk.ir.checks import MET_IN_FLIGHT, OUTSIDE
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.machine import Machine
from openwafer.sdk.ir.numbers import decode, encode
from openwafer.sdk.program import descriptor, mailbox
from openwafer.sdk.program.mailbox import Finding, finding_of, wrap_of

Bits: TypeAlias = int | tuple[int, ...]


def run_check(machine: Machine, names: Sequence[str], args: Sequence[Bits]) -> None:
    """Tell of a mistake where there is one.

    Args:
        machine: the PE.
        names: of the instruction.
        args: bits of its operands.
    """
    kind, *words = names
    if kind == "width":
        found = _width(machine, words, args[0])
    else:
        numbers = [arg for arg in args if isinstance(arg, int)]
        found = _FINDERS[kind](machine, words, numbers)
    for finding, first, second in found:
        machine.show(finding, first, second)


def _width(machine: Machine, words: Sequence[str], dsd: Bits) -> Iterator[tuple[int, int, int]]:
    assert isinstance(dsd, tuple)
    op, place, base = VECTOR_OPS[words[0]], int(words[1]), dsd[descriptor.WORD_BASE]
    if base >= MEMORY_WORDS:
        return
    variable = machine.variable_at(base)
    own = variable & mailbox.WIDTH_MASK
    wanted = element_words((op.destination, *op.sources)[place])
    takes_parts = dsd[descriptor.WORD_STRIDE] == own and dsd[descriptor.WORD_ELEMENT] == wanted
    if variable != mailbox.NO_VARIABLE and own not in (0, wanted) and not takes_parts:
        first = op.code | base << mailbox.OTHER_SHIFT
        yield finding_of(Finding.ELEMENT_WIDTH, place), first, own


def _extent(
    _machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    base, extent, length = args
    first = VECTOR_OPS[words[0]].code | base << mailbox.OTHER_SHIFT
    finding = finding_of(Finding.EXTENTS, int(words[1]))
    yield finding, first, extent | length << mailbox.OTHER_SHIFT


def _inside(
    _machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    address, begin, size, length = args
    if ((address - begin) & 0xFFFF) + length > size:
        yield finding_of(OUTSIDE[words[0]]), address, begin


def _same(
    machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    address, root, length = args
    last = address + length - 1
    # What lies outside of all memory ends the program by itself.
    if length == 0 or max(last, root) >= WORD_BYTES * MEMORY_WORDS:
        return
    own = machine.variable_at(root // WORD_BYTES)
    ends = (machine.variable_at(byte // WORD_BYTES) for byte in (address, last))
    if own != mailbox.NO_VARIABLE and any(end != own for end in ends):
        yield finding_of(OUTSIDE[words[0]]), address, root


def _flight(
    machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    if machine.box[mailbox.IN_FLIGHT]:
        yield finding_of(MET_IN_FLIGHT[words[0]]), args[0], args[1]


def _written(
    machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    *addresses, length = args
    begins = [address // WORD_BYTES for address in addresses]
    num_words = (addresses[0] % WORD_BYTES + length + 1) // WORD_BYTES
    # What lies outside of all memory ends the program by itself.
    if length == 0 or max(begins) + num_words > MEMORY_WORDS:
        return
    source = machine.unwritten(begins[-1], num_words)
    if words[0] != "read":
        machine.note(
            begins[0], source if words[0] == "copy" else source * 0 + (words[0] == "begin")
        )
    elif source.any():
        yield finding_of(Finding.READ_UNWRITTEN), addresses[0], length


def _unset(
    _machine: Machine, _words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    if not args[0]:
        yield finding_of(Finding.LOCAL_UNSET), 0, 0


def _divisor(
    _machine: Machine, _words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    if args[0] == 0:
        yield finding_of(Finding.DIVISION_BY_ZERO), 0, 0


def _shift(
    _machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    if args[0] >= int(words[0]):
        yield finding_of(Finding.SHIFT_TOO_FAR), args[0], int(words[0])


def _wrap(
    _machine: Machine, words: Sequence[str], args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    op, kind = words[0], Type(words[1])
    a, b = (int(decode(bits, kind)) for bits in args)
    result = {"add": a + b, "sub": a - b, "mul": a * b}[op]
    if decode(encode(result, kind), kind) != result:
        yield finding_of(Finding.WRAPPED, wrap_of(op, kind.value)), args[0], args[1]


def _stream(
    machine: Machine, _words: Sequence[str], _args: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    if machine.box[mailbox.STREAM_OPEN]:
        yield finding_of(Finding.STREAM_OPENED_TWICE), 0, 0


_FINDERS = {
    "inside": _inside,
    "same": _same,
    "flight": _flight,
    "written": _written,
    "unset": _unset,
    "divisor": _divisor,
    "shift": _shift,
    "wrap": _wrap,
    "stream": _stream,
    "extent": _extent,
}
