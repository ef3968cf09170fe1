"""Where wavelets of a color can have come from, against the routes, for reports."""

from collections.abc import Iterator

from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.mailbox import Option
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import OPPOSITE, STEPS, Direction

RAMP = Direction.RAMP
_MARKS_CONTROL = int(DsdFlag.CONTROL | DsdFlag.HAS_CONTROL_TRANSFORM)


def senders_of(tables: Tables, program: Program, color: int, pe: int) -> Iterator[int]:
    """PEs whose core a color is routed from to a PE, at any position of switches; nearest first."""
    for here, direction in entries_of(tables, program, color, pe):
        if direction == RAMP:
            yield here


def entries_of(
    tables: Tables, program: Program, color: int, pe: int
) -> Iterator[tuple[int, Direction]]:
    """PEs at which a color enters that is routed to a PE, at any position of switches.

    The nearest come first; beside each the side that it enters from: the core, or beyond the edge.
    """
    waiting, seen = [pe], {pe}
    while waiting:
        here = waiting.pop(0)
        taken = _directions(int(tables.route[color, here]), route.RECEIVE_SHIFT)
        if (taken >> RAMP) & 1:
            yield here, RAMP
        for direction in range(RAMP):
            if not (taken >> direction) & 1:
                continue
            other = neighbour(program, here, direction)
            if other is None:
                yield here, Direction(direction)
            if other is None or other in seen:
                continue
            sent = _directions(int(tables.route[color, other]), 0)
            if (sent >> OPPOSITE[Direction(direction)]) & 1:
                seen.add(other)
                waiting.append(other)


def neighbour(program: Program, pe: int, direction: int) -> int | None:
    """The PE in a direction other than the ramp; None outside of the rectangle."""
    across, down = STEPS[Direction(direction)]
    x, y = program.place_of(pe)
    x, y = x + across, y + down
    is_inside = 0 <= x < program.width and 0 <= y < program.height
    return program.number_of(x, y) if is_inside else None


def sends(job: Array, color: int) -> bool:
    """Whether an operation's destination is a color."""
    operand = job[w.J_OPERANDS : w.J_OPERANDS + w.OPERAND_WORDS]
    return bool(operand[w.O_KIND] == w.FABOUT and operand[w.O_COLOR] == color)


def sends_control(job: Array, slot: int, color: int) -> bool:
    """Whether the operation that a slot had last may have sent control wavelets there."""
    flags = int(job[w.J_OPERANDS + w.O_FLAGS])
    return sends(job, color) and flags & _MARKS_CONTROL != 0 and not is_copy(job, slot)


def is_copy(job: Array, slot: int) -> bool:
    """Whether a job is what the main thread handed to a microthread, whose slot has it, too."""
    return slot == w.MAIN_SLOT and bool(int(job[w.J_OPTIONS]) & Option.ASYNC)


def _directions(word: int, shift: int) -> int:
    """Directions of a color's route at all of its positions, from that bit of each on."""
    valid = 1 | (word >> route.VALID_SHIFT & 7) << 1
    found = 0
    for position in range(4):
        if (valid >> position) & 1:
            found |= word >> (10 * position + shift)
    return found & route.DIRECTIONS_MASK
