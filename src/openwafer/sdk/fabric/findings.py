"""Mistakes that a run found, as data and in words."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity, counted
from openwafer.dtypes import DTYPES
from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE, element_words
from openwafer.sdk.fabric import check, overrun
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.events import slot_and_place
from openwafer.sdk.fabric.variables import Stretch, stretch_at, stretches
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.mailbox import Finding
from openwafer.sdk.program.program import Program

OVERRUN_CODE: Final = "fabric-overrun"
_MAX_NAMED: Final = 3
"""Variables beyond the end that are named."""
_NUMBER: Final = 0xFFFF
_CODES: Final = {
    Finding.READ_OUTSIDE: "fabric-bounds",
    Finding.WRITE_OUTSIDE: "fabric-bounds",
    Finding.DIVISION_BY_ZERO: "fabric-division",
    Finding.STREAM_OPENED_TWICE: "fabric-stream",
    Finding.ELEMENT_WIDTH: "fabric-width",
    Finding.EXTENTS: "fabric-extents",
    Finding.READ_IN_FLIGHT: "fabric-in-flight",
    Finding.WRITE_IN_FLIGHT: "fabric-in-flight",
    Finding.OPERAND_IN_FLIGHT: "fabric-in-flight",
    Finding.CONTROL_AS_DATA: "fabric-control-as-data",
    Finding.NO_SWITCH: "fabric-no-switch",
    Finding.READ_UNWRITTEN: "fabric-unwritten",
    Finding.LOCAL_UNSET: "fabric-unwritten",
    Finding.OPERAND_UNWRITTEN: "fabric-unwritten",
    Finding.SHIFT_TOO_FAR: "fabric-shift",
    Finding.STREAM_IN_FLIGHT: "fabric-stream",
    Finding.OPERAND_OF_STACK: "fabric-stack",
    Finding.WRAPPED: "fabric-wrap",
    Finding.OVERRUN: OVERRUN_CODE,
}
_MET: Final = frozenset(
    (
        *(Finding.READ_IN_FLIGHT, Finding.WRITE_IN_FLIGHT),
        *(Finding.OPERAND_IN_FLIGHT, Finding.STREAM_IN_FLIGHT),
    )
)
_WAIT: Final = (
    "wait for the operation's end before: let it activate or unblock a task, and go on there"
)
_VALUE: Final = (
    "give it a value where it is declared, such as @zeros([4]f32), copy one from the host, or write"
    " to it before: the simulator's memory begins with zeros, the machine's with anything"
)
_HELP: Final = {
    Finding.READ_OUTSIDE: "compare the index with the array's length before the access",
    Finding.WRITE_OUTSIDE: "compare the index with the array's length before the access",
    Finding.DIVISION_BY_ZERO: "test the divisor before; the machine promises no quotient",
    Finding.STREAM_OPENED_TWICE: "call it once for each function that the host launches: a second "
    "call lets the host's next command begin before its time",
    Finding.ELEMENT_WIDTH: "take the operation of the array's type, or declare the array in that "
    "of the operation",
    Finding.EXTENTS: "an operation is as long as its first source, else as its destination: give "
    "all descriptors one extent",
    Finding.READ_IN_FLIGHT: _WAIT,
    Finding.WRITE_IN_FLIGHT: _WAIT,
    Finding.OPERAND_IN_FLIGHT: _WAIT,
    Finding.CONTROL_AS_DATA: "give the operation .on_control, or bind a control task to the queue",
    Finding.READ_UNWRITTEN: _VALUE,
    Finding.LOCAL_UNSET: "give it a value on every way that leads here",
    Finding.OPERAND_UNWRITTEN: _VALUE,
    Finding.SHIFT_TOO_FAR: "widen the operand with @as before the shift, or test the number before",
    Finding.STREAM_IN_FLIGHT: "let the operation activate a task, and open the stream there: the "
    "host's next command may read or write what the operation uses",
    Finding.OPERAND_OF_STACK: "declare the array at the top of the file: an asynchronous operation "
    "goes on when the function has ended, and others use its memory then",
    Finding.WRAPPED: "widen an operand before, as in @as(u32, a) * b; leave it where the result is "
    "to wrap",
    Finding.OVERRUN: "an operation is as long as its first source, else as its destination: make "
    "that extent, or the stride, fit the array",
    Finding.NO_SWITCH: "give the color .switches = .{ .pos1 = ... } on the PE where its way is to "
    "change; where none is to, leave out .advance_switch, or send control.opcode.NOP",
}
_HELP_MAP: Final = (
    "@map ends with its shortest descriptor: make its extent, or the stride, fit the array"
)
_STOPPED: Final = "; without OPENWAFER_OVERRUNS=error the run goes on as the machine would"


@dataclass(frozen=True)
class Found:
    """A mistake that code or the machine told of.

    Attributes:
        cycle: in which it was made.
        pe: number in the rectangle.
        place: number of its place in the source, in the program.
        kind: what it is.
        operand: place of the operand that it concerns; of a sum, what it is; of an overrun,
            the operation's code (0 is `@map`) above the operand's number: 0 is the destination,
            the sources come behind it, and of `@map` see
            :data:`~openwafer.sdk.ir.operations.ROLES`.
        slot: microthread; 8 is the main thread.
        entry: of the image: what the main thread ran.
        first: of the kind's numbers, 32 bits.
        second: the other one, 32 bits.
    """

    cycle: int
    pe: int
    place: int
    kind: Finding
    operand: int
    slot: int
    entry: int
    first: int
    second: int

    @property
    def address(self) -> int:
        """The byte that was accessed."""
        return self.first & _NUMBER

    @property
    def word(self) -> int:
        """First word of what a vector operation moves; 0 where there is none.

        Of an overrun it is the lowest word that was touched.
        """
        return 0 if self.kind is Finding.WRAPPED else self.first >> mb.OTHER_SHIFT & _NUMBER

    @property
    def operation(self) -> int:
        """Of an overrun: the operation's code, 0 for `@map`."""
        return self.operand >> mb.OPERAND_SHIFT

    @property
    def other_slot(self) -> int:
        """The microthread that was in flight."""
        return self.second & overrun.SLOT_MASK

    @property
    def other_place(self) -> int:
        """Where in the source its operation stands."""
        return self.second >> check.OTHER_PLACE_SHIFT - check.SLOT_SHIFT & check.OTHER_PLACE_MASK

    @property
    def other_color(self) -> int:
        """The color that it receives, -1 for none."""
        return (self.second >> check.COLOR_SHIFT - check.SLOT_SHIFT) - 1


def read_event(event: tuple[int, ...]) -> Found:
    """A mistake from the words of its event."""
    _, cycle, pe, where, number, data = event
    kind, operand = mb.read_finding(number & overrun.OPERAND_MASK)
    slot, place = slot_and_place(where)
    return Found(
        cycle=cycle,
        pe=pe,
        place=place,
        kind=kind,
        operand=operand,
        slot=slot,
        entry=number >> overrun.ENTRY_SHIFT,
        first=data & 0xFFFFFFFF,
        second=(data >> check.SLOT_SHIFT) & 0xFFFFFFFF,
    )


def by_place(found: Iterable[Found], program: Program) -> tuple[tuple[Found, int], ...]:
    """The first one of each place, kind and variable, and how many images do the same.

    Overruns come first. Of extents there is nothing where an overrun at the same place tells more.
    """
    images = program.images_by_number
    first: dict[Hashable, Found] = {}
    groups: dict[Hashable, set[int]] = {}
    overrun_at: set[Hashable] = set()
    for one in sorted(found, key=_order):
        place = program.written_place(one.place)
        if one.kind is Finding.OVERRUN:
            overrun_at.add(place)
        elif one.kind is Finding.EXTENTS and place in overrun_at:
            continue
        image = int(images[one.pe])
        key = place, one.kind, _what_of(one, stretches(program.images[image]))
        first.setdefault(key, one)
        groups.setdefault(key, set()).add(image)
    return tuple((one, len(groups[key])) for key, one in first.items())


def _order(one: Found) -> tuple[bool, int, int, int]:
    is_overrun = one.kind is Finding.OVERRUN  # of which a PE tells in the order of its operations
    return not is_overrun, one.cycle, one.pe, 0 if is_overrun else one.operand


def diagnostic(
    one: Found, program: Program, severity: Severity = Severity.WARNING, num_images: int = 1
) -> Diagnostic:
    """A mistake in words; `num_images` make it at the same place."""
    x, y = program.place_of(one.pe)
    image = program.images[int(program.image_of[y, x])]
    known = stretches(image)
    is_overrun = one.kind is Finding.OVERRUN
    subject = f"@{_overrunning(one)[0]} of PE ({x}, {y})" if is_overrun else f"PE ({x}, {y})"
    when = "" if is_overrun else f", cycle {one.cycle}"
    who = _who_text(image, one.slot, one.entry)
    notes = [f"{_place_text(program, one.place)}{who}{when}"]
    if one.kind in _MET:
        where = _place_text(program, one.other_place).rstrip(", ")
        notes.append(f"microthread {one.other_slot} runs the operation {where}")
    if is_overrun:
        notes += _met_by_overrun(one, known)
    if num_images > 1:
        notes.append(f"{num_images} distinct images do the same, this PE's is the first")
    return Diagnostic(
        severity,
        _CODES[one.kind],
        f"{subject} {_SENTENCES[one.kind](one, known)}",
        notes=tuple(notes),
        help=_remedy(one, severity),
    )


def _remedy(one: Found, severity: Severity) -> str:
    if one.kind is not Finding.OVERRUN:
        return _HELP[one.kind]
    remedy = _HELP[one.kind] if one.operation else _HELP_MAP
    return remedy + _STOPPED if severity is Severity.ERROR else remedy


def _who_text(image: Image, slot: int, entry: int) -> str:
    """The microthread of a slot, or what the main thread ran."""
    return (
        f"in '{image.entries[entry].function}'" if slot == w.MAIN_SLOT else f"in microthread {slot}"
    )


def _place_text(program: Program, number: int) -> str:
    """A place in the source, to be followed by who did something there; nothing for none."""
    return f"at {program.places[number]}, " if number < len(program.places) else ""


_Known = tuple[Stretch, ...]


def _what_of(one: Found, known: _Known) -> int:
    """What tells mistakes of one place apart: of what is in flight, where the variable begins."""
    if one.kind is Finding.OVERRUN:
        return one.operand
    is_operand = one.kind is Finding.OPERAND_IN_FLIGHT and known
    return stretch_at(known, one.word).begin if is_operand else one.word


def _stretch_name(stretch: Stretch) -> str:
    if stretch.symbol is not None:
        return f"'{stretch.symbol.name}' ({stretch.symbol.type_name})"
    return "the stack" if stretch.is_stack else "no variable"


def _name(known: _Known, word: int) -> str:
    return _stretch_name(stretch_at(known, word)) if known else "memory"


def _overrunning(one: Found) -> tuple[str, int, str]:
    """Name of an operation, words of the operand's element, and what was done with them."""
    number = one.operand & mb.OPERAND_MASK
    if one.operation == 0:
        return "map", 1 + (number >> 1), "read" if number & 1 else "wrote"
    op = VECTOR_OPS_BY_CODE[one.operation]
    size = element_words((op.destination, *op.sources)[number])
    return op.name, size, "read" if number else "wrote"


def _overrun(one: Found, known: _Known) -> str:
    own = stretch_at(known, one.first & _NUMBER)
    _, size, verb = _overrunning(one)
    if own.symbol is None and not own.is_stack:
        return f"{verb} memory in which no variable lies"
    below = -(-max(0, own.begin - one.word) // size)
    above = -(-max(0, one.second + 1 - own.end) // size)
    num, where = max((above, "behind the end"), (below, "before the start"))
    return f"{verb} up to {counted(num, 'element')} {where} of {_stretch_name(own)}"


def _met_by_overrun(one: Found, known: _Known) -> list[str]:
    """What lies between the outermost words besides the variable itself, the nearest first.

    Words of no variable are left out where there is anything else.
    """
    own = stretch_at(known, one.first & _NUMBER)
    touched = [at for at in known if at.begin <= one.second and at.end > one.word and at != own]
    touched.sort(key=lambda at: max(at.begin - own.end, own.begin - at.end))
    names = [_stretch_name(at) for at in touched if at.symbol is not None or at.is_stack]
    names = names or [_stretch_name(at) for at in touched]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return [f"what lies there is {', '.join(names[:_MAX_NAMED])}{more}"] if names else []


def _outside(one: Found, known: _Known) -> str:
    verb = "read" if one.kind is Finding.READ_OUTSIDE else "wrote"
    begin = one.second & _NUMBER
    own = stretch_at(known, begin // WORD_BYTES)
    if own.symbol is None:
        way = one.address - begin
        return f"{verb} byte {way} of a local array, which is none of its own"
    there = _name(known, one.address // WORD_BYTES)
    return f"{verb} {_element(own, one.address)}, where {there} lies"


def _element(own: Stretch, address: int) -> str:
    """The element of a variable that lies at a byte, or would."""
    if own.symbol is None:
        return _stretch_name(own)
    size = max(1, own.symbol.num_bytes // max(1, prod(own.symbol.shape)))
    return f"element {(address - WORD_BYTES * own.begin) // size} of {_stretch_name(own)}"


def _division(_one: Found, _known: _Known) -> str:
    return "divided an integer by zero"


def _stream(_one: Found, _known: _Known) -> str:
    return "called unblock_cmd_stream() while its command stream was open"


def _operation(one: Found) -> str:
    return f"@{VECTOR_OPS_BY_CODE[one.first & _NUMBER].name}"


def _width(one: Found, known: _Known) -> str:
    op = VECTOR_OPS_BY_CODE[one.first & _NUMBER]
    bits = 16 * element_words((op.destination, *op.sources)[one.operand])
    own = 16 * one.second
    return f"ran @{op.name}, of elements of {bits} bits, on {_name(known, one.word)}, of {own} bits"


def _extents(one: Found, known: _Known) -> str:
    extent, length = one.second & _NUMBER, one.second >> mb.OTHER_SHIFT
    what = f"the descriptor of {_name(known, one.word)}" if one.word else "a fabric descriptor"
    return f"ran {_operation(one)} with {length} elements, where {what} has an extent of {extent}"


def _access_in_flight(one: Found, known: _Known) -> str:
    name = _name(known, one.address // WORD_BYTES)
    if one.kind is Finding.READ_IN_FLIGHT:
        return f"read {_early(one, one.address, known)}"
    return f"wrote {name} while microthread {one.other_slot} uses it"


def _operand_in_flight(one: Found, known: _Known) -> str:
    if one.operand:
        return f"began {_operation(one)}, which reads {_early(one, WORD_BYTES * one.word, known)}"
    began = f"began {_operation(one)}, which writes {_name(known, one.word)}"
    return f"{began}, while microthread {one.other_slot} uses it"


def _early(one: Found, address: int, known: _Known) -> str:
    """What was read, and that an operation had still to write it."""
    what = _element(stretch_at(known, address // WORD_BYTES), address) if known else "memory"
    if one.other_color < 0:
        return f"{what} before microthread {one.other_slot} has written it"
    receives = f"microthread {one.other_slot} receives color {one.other_color}"
    return f"{what} before it has arrived: {receives}"


def _control(one: Found, _known: _Known) -> str:
    color = f" of color {one.word}" if one.word < w.COLORS else ""
    return f"took a control wavelet{color} for data, with {_operation(one)}"


def _no_switch(one: Found, _known: _Known) -> str:
    way = f"sent a switch command on color {one.word}, with {_operation(one)}"
    return f"{way}, which turns nothing: no PE's route for that color has switch positions"


def _unwritten(one: Found, known: _Known) -> str:
    name = _name(known, one.address // WORD_BYTES)
    what = "a local array or struct" if name == "the stack" else name
    return f"read {what}, which nothing has written"


def _local_unset(_one: Found, _known: _Known) -> str:
    return "read a local variable that has no value"


def _operand_unwritten(one: Found, known: _Known) -> str:
    return f"ran {_operation(one)} on {_name(known, one.word)}, which nothing has written"


def _shift(one: Found, _known: _Known) -> str:
    return f"shifted a number of {one.second} bits by {one.first}, which leaves nothing of it"


def _wrapped(one: Found, _known: _Known) -> str:
    op, kind = mb.read_wrap(one.operand)
    a, b = _held(one.first, kind), _held(one.second, kind)
    sign, result = {"add": ("+", a + b), "sub": ("-", a - b), "mul": ("*", a * b)}[op]
    other = f"({b})" if b < 0 else str(b)
    return f"computed {a} {sign} {other} = {result}, which '{kind}' holds as {_held(result, kind)}"


def _held(number: int, kind: str) -> int:
    """What an integer type holds of a number."""
    num_bits = DTYPES[kind].num_bits
    low = number & (1 << num_bits) - 1
    return low - (low >> num_bits - 1 << num_bits) if kind.startswith("i") else low


def _stream_in_flight(one: Found, _known: _Known) -> str:
    return f"opened its command stream while microthread {one.other_slot} still writes to memory"


def _of_stack(one: Found, _known: _Known) -> str:
    return f"began {_operation(one)}, asynchronous, on a local array of a function"


_SENTENCES: Final[dict[Finding, Callable[[Found, _Known], str]]] = {
    Finding.READ_OUTSIDE: _outside,
    Finding.WRITE_OUTSIDE: _outside,
    Finding.DIVISION_BY_ZERO: _division,
    Finding.STREAM_OPENED_TWICE: _stream,
    Finding.ELEMENT_WIDTH: _width,
    Finding.EXTENTS: _extents,
    Finding.READ_IN_FLIGHT: _access_in_flight,
    Finding.WRITE_IN_FLIGHT: _access_in_flight,
    Finding.OPERAND_IN_FLIGHT: _operand_in_flight,
    Finding.CONTROL_AS_DATA: _control,
    Finding.NO_SWITCH: _no_switch,
    Finding.READ_UNWRITTEN: _unwritten,
    Finding.LOCAL_UNSET: _local_unset,
    Finding.OPERAND_UNWRITTEN: _operand_unwritten,
    Finding.SHIFT_TOO_FAR: _shift,
    Finding.STREAM_IN_FLIGHT: _stream_in_flight,
    Finding.OPERAND_OF_STACK: _of_stack,
    Finding.WRAPPED: _wrapped,
    Finding.OVERRUN: _overrun,
}
