"""Why the machine stopped, in words."""

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import queues, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.router import OPPOSITE, can_land
from openwafer.sdk.fabric.rows import core_row, mailbox_row, operand_row, router_row, thread_row
from openwafer.sdk.fabric.state import Array
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.program import Program

DIRECTION_NAMES = ("West", "East", "South", "North", "Ramp")
MAX_NOTES = 12
_TRAPS = {
    mb.Trap.ASSERTION: "an assertion failed",
    mb.Trap.OUT_OF_BOUNDS: "word {value:#06x} lies outside of the PE's memory",
    mb.Trap.STACK_OVERFLOW: "the stack outgrew the PE's memory",
    mb.Trap.UNREACHABLE: "code that cannot be reached was reached",
}


def place_of(program: Program, state: Array, pe: int, number: int | None = None) -> str:
    """`file:line (function)` of a PE's place in its source, or nothing."""
    places = program.images[int(state[core_row(pe) + w.C_IMAGE])].places
    index = int(state[mailbox_row(pe) + mb.PLACE]) if number is None else number
    if not 0 <= index < len(places):
        return ""
    place = places[index]
    return f"{place.file}:{place.line} ({place.function})"


def name_of(state: Array, pe: int) -> str:
    """`PE (x, y)` in the rectangle."""
    width = int(state[w.G_WIDTH])
    return f"PE ({pe % width}, {pe // width})"


def stopped(program: Program, state: Array) -> OpenwaferError:
    """The error that the compiled core recorded."""
    g = state
    code, pe, a, b = (int(g[k]) for k in (w.G_ERROR, w.G_ERROR_PE, w.G_ERROR_A, w.G_ERROR_B))
    who, cycle = name_of(state, pe), int(g[w.G_NOW])
    notes = tuple(f"at {place}" for place in (place_of(program, state, pe),) if place)
    if code == w.ERROR_CONFLICT:
        sides = f"{DIRECTION_NAMES[b & 7]} and {DIRECTION_NAMES[b >> 3]}"
        return error(
            "fabric-route-conflict",
            f"wavelets of color {a} arrived from {sides} on the same cycle at {who}, cycle {cycle};"
            " this violates architecture rules",
            help="let one direction send after the other, with a switch or on two colors",
        )
    if code == w.ERROR_TRAP:
        reason = _TRAPS[mb.Trap(a)].format(value=b)
        return error("fabric-trap", f"{who} stopped at cycle {cycle}: {reason}", notes=notes)
    if code == w.ERROR_BOUNDS:
        verb = "wrote" if b else "read"
        return error(
            "fabric-out-of-bounds",
            f"a vector operation of {who} {verb} word {a:#06x}, outside of its memory,"
            f" at cycle {cycle}",
            notes=notes,
            help="check the descriptor's base address, stride and extent",
        )
    return _misuse(code, who, (a, b), notes)


def _misuse(code: int, who: str, values: tuple[int, int], notes: tuple[str, ...]) -> OpenwaferError:
    first, second = values
    if code == w.ERROR_UNBOUND_CONTROL:
        return error(
            "fabric-unbound-control-task",
            f"a control wavelet of color {second} at {who} names task {first},"
            " which is bound to nothing",
            help="bind a control task to that id, or send the id 31 for none",
        )
    if code == w.ERROR_REGISTER:
        verb = "writes" if second else "reads"
        return error(
            "fabric-unknown-register", f"{who} {verb} register {first:#06x}, which has no meaning"
        )
    return error(
        "fabric-bad-operand",
        f"{who} started an operation on a descriptor without a kind, color or bound queue",
        notes=notes,
        help="load the DSR, or initialize the queue with its color, before the operation",
    )


def deadlock(program: Program, state: Array, awaited: str) -> OpenwaferError:
    """Everything waits for each other while the host waits for something."""
    notes: list[str] = []
    for pe in range(int(state[w.G_NUM_PES])):
        notes += _waiting_threads(program, state, pe)
        notes += _stuck_wavelets(state, pe)
        if state[core_row(pe) + w.C_COMMAND] != w.COMMAND_NONE:
            notes.append(_waiting_command(program, state, pe))
    hidden = len(notes) - MAX_NOTES
    if hidden > 0:
        notes = [*notes[:MAX_NOTES], f"and {hidden} more"]
    return error(
        "fabric-deadlock",
        f"nothing moves any more at cycle {int(state[w.G_NOW])}, while the host waits for"
        f" {awaited}",
        notes=tuple(notes),
        help="follow a wavelet's route from its sender: each hop needs a route, a queue and a"
        " reader",
    )


def _waiting_command(program: Program, state: Array, pe: int) -> str:
    who = name_of(state, pe)
    if state[core_row(pe) + w.C_COMMAND] == w.COMMAND_WAITS:
        return (
            f"{who} has not begun the host's command: its main thread is busy or the command"
            " before has not opened the stream"
        )
    if state[core_row(pe) + w.C_MAIN] == w.MAIN_IDLE:
        return f"{who} is idle and has not called unblock_cmd_stream"
    return f"{who} waits at {place_of(program, state, pe) or 'an unknown place'}"


def _waiting_threads(program: Program, state: Array, pe: int) -> list[str]:
    notes = []
    for slot in range(w.SLOTS):
        if (int(state[core_row(pe) + w.C_THREADS]) >> slot) & 1:
            thread = thread_row(pe, slot)
            who = "main thread" if slot == w.MAIN_SLOT else f"microthread {slot}"
            op = VECTOR_OPS_BY_CODE[int(state[thread + w.T_OP])].name
            place = place_of(program, state, pe, int(state[thread + w.T_PLACE]))
            left = int(state[thread + w.T_LEFT])
            notes.append(
                f"{name_of(state, pe)}, {who}: @{op} has {left} elements left"
                f"{_reasons(state, pe, thread)}{f', at {place}' if place else ''}"
            )
    return notes


def _reasons(state: Array, pe: int, thread: int) -> str:
    reasons = []
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        queue, color = int(state[row + w.O_QUEUE]), int(state[row + w.O_COLOR])
        of_color = f" (color {color})" if color < w.COLORS else ""
        if state[row + w.O_KIND] == w.FABIN and queues.input_ready(state, pe, queue) == w.NEVER:
            reasons.append(f"waits for wavelets in input queue {queue}{of_color}")
        if state[row + w.O_KIND] == w.FABOUT and not queues.has_output_space(state, pe, queue):
            reasons.append(f"finds output queue {queue} full{of_color}")
        if state[row + w.O_KIND] == w.FIFO:
            reasons.append(f"waits for FIFO {queue}")
    return "".join(f", {reason}" for reason in reasons)


def _stuck_wavelets(state: Array, pe: int) -> list[str]:
    notes = []
    for color in range(w.COLORS):
        meta = int(state[router_row(pe) + w.R_META + color])
        if meta >> 8:
            at = w.R_DATA + color * w.CHANNEL_DEPTH + (meta & 255)
            out = (int(state[router_row(pe) + at]) >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
            for direction in range(5):
                reason = _blocked(state, pe, color, direction) if (out >> direction) & 1 else ""
                if reason:
                    notes.append(f"{name_of(state, pe)}, router: color {color} {reason}")
    return notes


def _blocked(state: Array, pe: int, color: int, direction: int) -> str:
    if direction == 4:
        queue = int(state[core_row(pe) + w.C_QUEUE_OF + color]) - 1
        if queue < 0:
            return "goes to the core, but no input queue has that color"
        full = not queues.has_input_space(state, pe, queue)
        return f"goes to the core, whose input queue {queue} is full" if full else ""
    other = queues.neighbour(state, pe, direction)
    where = DIRECTION_NAMES[direction].lower()
    if other < 0:
        return f"goes {where}, beyond the edge of the rectangle"
    if can_land(state, other, color, int(OPPOSITE[direction])):
        return ""
    word = int(state[router_row(other) + w.R_ROUTE + color])
    if word & route.TORN_BIT:
        return f"goes {where}, where {name_of(state, other)} has torn the color down"
    if not (route.receives(word) >> int(OPPOSITE[direction])) & 1:
        return f"goes {where}, where {name_of(state, other)} receives nothing from there"
    return f"goes {where}, where {name_of(state, other)} is full"
