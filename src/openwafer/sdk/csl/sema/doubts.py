"""What is allowed, and hardly meant: known once all of the code was analysed."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.imports import LIBRARY
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.layout_state import Surroundings
from openwafer.sdk.csl.sema.machine_state import queues_of
from openwafer.sdk.csl.types import Pointer
from openwafer.sdk.csl.values import Module, Variable
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.image import TaskKind
from openwafer.sdk.program.input_queues import LAST_QUEUE, NUM_INPUT_QUEUES
from openwafer.source import Span

_Point: TypeAlias = tuple[str, int, bool]
"""A block, an instruction in it, and whether the slot was set on the way there."""
RESERVED: Final = "csl-reserved-id"
RESERVED_COLORS: Final = frozenset((21, 22, 23))
RESERVED_TASKS: Final[Mapping[TaskKind, frozenset[int]]] = MappingProxyType(
    {TaskKind.LOCAL: frozenset((27, 28, 30)), TaskKind.CONTROL: frozenset(range(33, 38))}
)
RESERVED_QUEUES: Final[Mapping[Arch, frozenset[int]]] = MappingProxyType(
    {Arch.WSE2: frozenset((0,)), Arch.WSE3: frozenset((0, 1))}
)
_REMEDY_FOR_QUEUE: Final = "call @initialize_queue(queue, .{ .color = ... }) in a comptime block"


def unbound_queues(surroundings: Surroundings) -> Iterator[Diagnostic]:
    """Warnings about queues of WSE-3 that code uses, and no PE binds to a color.

    Which PEs come to the operations that use a queue may be known at run time only.
    """
    for (is_input, number), span in surroundings.named_queues.items():
        if (is_input, number) not in surroundings.bound_queues:
            kind = "input_queue" if is_input else "output_queue"
            message = f"{kind} {number} is used and bound to no color, which wse3 needs"
            yield Diagnostic(
                Severity.WARNING, "csl-queue-unbound", message, span, help=_REMEDY_FOR_QUEUE
            )


def shared_queues(state: ImageState) -> Iterator[Diagnostic]:
    """A warning about colors of WSE-2 that find no input queue of their own."""
    sharing = queues_of(state.machine, Arch.WSE2).sharing
    places = state.machine.queueless_colors
    span = next((places[color] for color in sharing if color in places), None)
    if span is not None:
        numbers = ", ".join(map(str, sharing))
        yield Diagnostic(
            Severity.WARNING,
            "csl-queues-shared",
            f"colors {numbers} take turns on input_queue {LAST_QUEUE}: no other queue is left",
            span,
            (f"{state.module.name} has {NUM_INPUT_QUEUES} input queues",),
            "name an .input_queue for colors that are not read at the same time",
        )


def reserved_ids(state: ImageState, arch: Arch) -> Iterator[Diagnostic]:
    """Warnings about ids that memcpy takes for itself, where a program has it."""
    if state.surroundings is None or not state.surroundings.has_memcpy:
        return
    for bound in state.machine.tasks:
        if bound.task_id in RESERVED_TASKS.get(bound.kind, ()):
            yield reserved(f"{bound.kind} task id {bound.task_id}", bound.span)
    for queue, span in state.machine.input_queue_places.items():
        if queue in RESERVED_QUEUES[arch]:
            yield reserved(f"input_queue {queue}", span)


def reserved(what: str, span: Span | None) -> Diagnostic:
    """A warning about something that memcpy has."""
    return Diagnostic(
        Severity.WARNING,
        RESERVED,
        f"{what} is reserved for memcpy, which this program has",
        span,
        help="memcpy has colors 21 to 23, local task ids 27, 28 and 30, control task ids 33 to 37, "
        "and input queue 0, on WSE-3 1 as well; take another",
    )


def unset_variables(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about local variables that are read before they are set, on every way there."""
    places = list(state.places)
    for local in state.unset_locals:
        function = state.module.functions.get(local.function)
        read = None if function is None else _read_before_set(function, local.slot)
        if read is not None:
            file, line, _, where = places[read.place]
            yield Diagnostic(
                Severity.WARNING,
                "csl-unset-variable",
                f"'{local.name}' is read before it has a value",
                local.span,
                (f"read at {file}:{line} ({where})",),
                "give it a value here: on the machine it is what the stack held before",
            )


def pointers_never_set(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about pointers at the top of a file that code follows, and nothing sets."""
    unset = {name: one for name, one in state.variables.items() if _is_unset(one)}
    read = _only_read(state, unset) if unset else []
    places, modules = list(state.places), list(state.modules.values())
    for variable, one in read:
        number, start = variable.declared
        nodes = modules[number].declarations.values()
        span = next((node.span for node in nodes if node.span.start == start), None)
        file, line, _, where = places[one.place]
        name = variable.name.rpartition(".")[2]
        if span is not None and not any(_may_set(module, name) for module in modules):
            yield Diagnostic(
                Severity.WARNING,
                "csl-pointer-unset",
                f"'{variable.name}' is a pointer that nothing sets",
                span,
                (f"read at {file}:{line} ({where})",),
                "let it point to a variable before it is followed: pointer = &variable",
            )


def _may_set(module: Module, name: str) -> bool:
    """Whether a file assigns to a name or takes its address, in code that is used or not."""
    text = module.tree.span.source.text
    return re.search(rf"\b{name}\s*=(?!=)|&\s*{name}\b", text) is not None


def _is_unset(variable: Variable) -> bool:
    return isinstance(variable.type, Pointer) and not variable.words


def _only_read(
    state: ImageState, pointers: Mapping[str, Variable]
) -> list[tuple[Variable, ir.Instruction]]:
    """Those that code loads and does nothing else with, each with the first load."""
    exported = {symbol for _, symbol in state.exported_symbols} | state.definitions.keys()
    words = (word for variable in state.variables.values() for word in variable.words)
    known = {word for word in words if type(word) is int}
    loads: dict[str, ir.Instruction] = {}
    others: set[str] = set()
    for function in state.module.functions.values():
        for one in function.instructions:
            for symbol in (arg.symbol for arg in one.args if isinstance(arg, ir.Address)):
                if one.op == "load":
                    loads.setdefault(symbol, one)
                else:
                    others.add(symbol)
    return [
        (pointer, loads[name])
        for name, pointer in pointers.items()
        if name in loads.keys() - others - exported and 2 * pointer.address not in known
    ]


def clock_never_enabled(state: ImageState) -> Iterator[Diagnostic]:
    """A warning where code asks `<time>` for the clock, and nothing in the image starts it."""
    functions = state.module.functions
    code = [one for function in functions.values() for one in function.instructions]
    if state.machine.registers or any(_may_start_clock(one) for one in code):
        return
    reading = tuple(f"{prefix}get_timestamp" for prefix in _clocks(state))
    for one in code:
        if one.op == "call" and one.names[0].startswith(reading):
            file, line, _, where = list(state.places)[one.place]
            yield Diagnostic(
                Severity.WARNING,
                "csl-clock-stopped",
                "the clock is read and never started: it stays where it is",
                notes=(f"read at {file}:{line} ({where})",),
                help="call enable_tsc() of <time> before the first reading",
            )
            return


def _may_start_clock(one: ir.Instruction) -> bool:
    return one.op == "write_register" or (one.op == "timestamp_control" and "enable" in one.names)


def _clocks(state: ImageState) -> Iterator[str]:
    """Prefixes of the imports of `<time>` in the program's own files."""
    for prefix, module in state.modules.items():
        importer = prefix.rpartition(".")[0].rpartition(".")
        own = state.modules["".join(importer[:2])]
        if module.path == LIBRARY / "time.csl" and not own.path.is_relative_to(LIBRARY):
            yield prefix


def _read_before_set(function: ir.Function, slot: str) -> ir.Instruction | None:
    """A read of a slot that nothing but its declaration comes before, on every way there."""
    blocks = {block.label: block for block in function.blocks}
    uses = [
        (block.label, index, one)
        for block in function.blocks
        for index, one in enumerate(block.instructions)
        if one.op in ("get", "set") and one.names[0] == slot
    ]
    declared = next(((label, index) for label, index, one in uses if one.op == "set"), None)
    if declared is None:
        return None
    for label, index, one in uses:
        if one.op == "get" and _ways(blocks, slot, declared, (label, index)) == {False}:
            return one
    return None


def _ways(
    blocks: dict[str, ir.Block], slot: str, start: tuple[str, int], end: tuple[str, int]
) -> set[bool]:
    """Whether the slot was set behind its declaration, on the ways that first come to a read."""
    found: set[bool] = set()
    seen: set[_Point] = set()
    waiting: list[_Point] = [(*start, False)]
    while waiting:
        label, index, is_set = waiting.pop()
        if (label, index) == end:
            found.add(is_set)
            continue
        if (label, index, is_set) in seen:
            continue
        seen.add((label, index, is_set))
        one = blocks[label].instructions[index]
        if one.op == "set" and one.names[0] == slot:
            is_set = (label, index) != start
        if index + 1 < len(blocks[label].instructions):
            waiting.append((label, index + 1, is_set))
        else:
            waiting += [(target, 0, is_set) for target in one.names if target in blocks]
    return found
