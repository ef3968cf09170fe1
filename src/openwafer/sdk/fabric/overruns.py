"""Vector operations that went over the end of a variable, as data and in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity, counted
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE, element_words
from openwafer.sdk.fabric import overrun
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.variables import Stretch, stretch_at, stretches
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Image, Symbol
from openwafer.sdk.program.program import Program

CODE: Final = "fabric-overrun"
MAX_NAMED: Final = 3
"""Variables beyond the end that are named."""
_HELP: Final = (
    "an operation is as long as its first source, else as its destination:"
    " make that extent, or the stride, fit the array"
)
_HELP_MAP: Final = (
    "@map ends with its shortest descriptor: make its extent, or the stride, fit the array"
)
_STOPPED: Final = "{help}; without OPENWAFER_OVERRUNS=error the run goes on as the machine would"


@dataclass(frozen=True)
class Overrun:
    """A vector operation touched memory beyond the variable that its first element lies in.

    Attributes:
        cycle: in which it was found.
        pe: number in the rectangle.
        place: number of its place in the source, in the program.
        operation: its code; 0 is `@map`.
        operand: 0 is the destination, the sources come behind it; of `@map`, see
            :data:`~openwafer.sdk.ir.operations.ROLES`.
        slot: microthread; 8 is the main thread.
        entry: of the image: what the main thread ran.
        first: first word of the first element.
        low: lowest word touched.
        high: highest word touched.
    """

    cycle: int
    pe: int
    place: int
    operation: int
    operand: int
    slot: int
    entry: int
    first: int
    low: int
    high: int


def read_event(cycle: int, pe: int, a: int, b: int) -> Overrun:
    """An overrun from its event."""
    operand = a & overrun.OPERAND_MASK
    return Overrun(
        cycle=cycle,
        pe=pe,
        place=a >> overrun.PLACE_SHIFT,
        operation=operand >> mb.OPERAND_SHIFT,
        operand=operand & mb.OPERAND_MASK,
        slot=(a >> overrun.SLOT_SHIFT) & overrun.SLOT_MASK,
        entry=(a >> overrun.ENTRY_SHIFT) & overrun.ENTRY_MASK,
        first=b & overrun.WORD_MASK,
        low=(b >> overrun.LOW_SHIFT) & overrun.WORD_MASK,
        high=b >> overrun.HIGH_SHIFT,
    )


def distinct(found: Iterable[Overrun], program: Program) -> tuple[Overrun, ...]:
    """The first one of each image, place and operand, by cycle, then by PE."""
    first: dict[tuple[int, int, int], Overrun] = {}
    images = program.images_by_number
    for one in sorted(found, key=lambda one: (one.cycle, one.pe)):
        image = int(images[one.pe])
        first.setdefault((image, one.place, one.operand), one)
    return tuple(first.values())


def by_place(found: Iterable[Overrun], program: Program) -> tuple[tuple[Overrun, int], ...]:
    """The first one of each place and operand, and how many images do the same."""
    groups: dict[tuple[int, int], list[Overrun]] = {}
    for one in distinct(found, program):
        groups.setdefault((one.place, one.operand), []).append(one)
    return tuple((group[0], len(group)) for group in groups.values())


def diagnostic(
    one: Overrun, program: Program, severity: Severity, num_images: int = 1
) -> Diagnostic:
    """An overrun in words; `num_images` have one at the same place."""
    x, y = program.place_of(one.pe)
    image = program.images[int(program.image_of[y, x])]
    known = stretches(image)
    own = stretch_at(known, one.first)
    name, size, verb = _operation(one)
    below = -(-max(0, own.begin - one.low) // size)
    above = -(-max(0, one.high + 1 - own.end) // size)
    num, where = max((above, "behind the end"), (below, "before the start"))
    far = f"up to {counted(num, 'element')} {where} of {stretch_name(own)}"
    message = f"@{name} of PE ({x}, {y}) {verb} {far}"
    if own.symbol is None and not own.is_stack:
        message = f"@{name} of PE ({x}, {y}) {verb} memory in which no variable lies"
    notes = [f"{place_text(program, one.place)}{who_text(image, one.slot, one.entry)}"]
    there = [stretch_name(stretch) for stretch in _others(known, own, one)]
    if there:
        more = f" and {len(there) - MAX_NAMED} more" if len(there) > MAX_NAMED else ""
        notes.append(f"what lies there is {', '.join(there[:MAX_NAMED])}{more}")
    if num_images > 1:
        notes.append(f"{num_images} distinct images do the same, this PE's is the first")
    remedy = _HELP if one.operation else _HELP_MAP
    text = remedy if severity is Severity.WARNING else _STOPPED.format(help=remedy)
    return Diagnostic(severity, CODE, message, notes=tuple(notes), help=text)


def _others(known: Sequence[Stretch], own: Stretch, one: Overrun) -> list[Stretch]:
    """What lies between the outermost words besides the variable itself, the nearest first.

    Words of no variable are left out where there is anything else.
    """
    touched = [at for at in known if at.begin <= one.high and at.end > one.low and at != own]
    touched.sort(key=lambda at: max(at.begin - own.end, own.begin - at.end))
    return [at for at in touched if at.symbol is not None or at.is_stack] or touched


def _operation(one: Overrun) -> tuple[str, int, str]:
    """Name, words of the operand's element, and what was done with them."""
    if one.operation == 0:
        return "map", 1 + (one.operand >> 1), "read" if one.operand & 1 else "wrote"
    op = VECTOR_OPS_BY_CODE[one.operation]
    size = element_words((op.destination, *op.sources)[one.operand])
    return op.name, size, "read" if one.operand else "wrote"


def who_text(image: Image, slot: int, entry: int) -> str:
    """The microthread of a slot, or what the main thread ran."""
    return (
        f"in '{image.entries[entry].function}'" if slot == w.MAIN_SLOT else f"in microthread {slot}"
    )


def place_text(program: Program, number: int) -> str:
    """A place in the source, to be followed by who did something there; nothing for none."""
    if not number < len(program.places):
        return ""
    place = program.places[number]
    return f"at {place.file}:{place.line} ({place.function}), "


def stretch_name(stretch: Stretch) -> str:
    """What lies in a stretch of memory, for people."""
    if stretch.symbol is not None:
        return f"'{stretch.symbol.name}' ({_type(stretch.symbol)})"
    return "the stack" if stretch.is_stack else "no variable"


def _type(symbol: Symbol) -> str:
    dims = ", ".join(map(str, symbol.shape))
    return f"[{dims}]{symbol.element_type}" if dims else symbol.element_type
