"""Queues and ids that a program shares, leaves without a color, or takes from memcpy."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.arch.generation import NO_TASK, TEARDOWN_TASK, TIMER_TASK, Arch
from openwafer.sdk.csl.lint.checked import CheckedImage, warning
from openwafer.sdk.csl.sema.layout_state import Surroundings
from openwafer.sdk.csl.sema.machine_state import queues_of
from openwafer.sdk.program.image import TaskKind
from openwafer.sdk.program.input_queues import LAST_QUEUE, NUM_INPUT_QUEUES
from openwafer.source import Span

RESERVED: Final = "csl-reserved-id"
RESERVED_COLORS: Final = frozenset((21, 22, 23))
RESERVED_TASKS: Final[Mapping[TaskKind, frozenset[int]]] = MappingProxyType(
    {TaskKind.LOCAL: frozenset((27, 28, 30)), TaskKind.CONTROL: frozenset(range(33, 38))}
)
RESERVED_QUEUES: Final[Mapping[Arch, frozenset[int]]] = MappingProxyType(
    {Arch.WSE2: frozenset((0,)), Arch.WSE3: frozenset((0, 1))}
)
_OF_THE_MACHINE: Final = frozenset((TEARDOWN_TASK, TIMER_TASK, NO_TASK))
"""Local task ids that programs give no task of their own."""
_REMEDY_FOR_QUEUE: Final = "call @initialize_queue(queue, .{ .color = ... }) in a comptime block"


def unbound_queues(surroundings: Surroundings) -> Iterator[Diagnostic]:
    """Warnings about queues of WSE-3 that code uses, and no PE binds to a color.

    Which PEs come to the operations that use a queue may be known at run time only.
    """
    for (is_input, number), span in surroundings.named_queues.items():
        if (is_input, number) not in surroundings.bound_queues:
            kind = "input_queue" if is_input else "output_queue"
            message = f"{kind} {number} is used and bound to no color, which wse3 needs"
            yield warning("queue-unbound", message, span, _REMEDY_FOR_QUEUE)


def ids_without_task(surroundings: Surroundings) -> Iterator[Diagnostic]:
    """Warnings about ids of local tasks that code blocks or unblocks, and no PE gives a task."""
    bound = surroundings.bound_ids
    own = {*_OF_THE_MACHINE, *(RESERVED_TASKS[TaskKind.LOCAL] if surroundings.has_memcpy else ())}
    for number, (call, span) in surroundings.blocked_ids.items():
        if number in bound or number in own:
            continue
        listed = ", ".join(map(str, sorted(bound))) or "none"
        message = f"@{call} names local task id {number}, and no task is bound to it"
        remedy = "bind one with @bind_local_task, or name the id of the task that is meant"
        yield warning("id-without-task", message, span, f"{remedy} (ids with a task: {listed})")


def shared_queues(image: CheckedImage) -> Iterator[Diagnostic]:
    """A warning about colors of WSE-2 that find no input queue of their own."""
    state = image.state
    sharing = queues_of(state.machine, Arch.WSE2).sharing if image.arch is Arch.WSE2 else ()
    places = state.machine.queueless_colors
    span = next((places[color] for color in sharing if color in places), None)
    if span is not None:
        numbers = ", ".join(map(str, sharing))
        yield warning(
            "queues-shared",
            f"colors {numbers} take turns on input_queue {LAST_QUEUE}: no other queue is left",
            span,
            "name an .input_queue for colors that are not read at the same time",
            f"{state.module.name} has {NUM_INPUT_QUEUES} input queues",
        )


def reserved_ids(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about ids that memcpy takes for itself, where a program has it."""
    state = image.state
    if state.surroundings is None or not state.surroundings.has_memcpy:
        return
    for bound in state.machine.tasks:
        if bound.task_id in RESERVED_TASKS.get(bound.kind, ()):
            yield reserved(f"{bound.kind} task id {bound.task_id}", bound.span)
    for queue, span in state.machine.input_queue_places.items():
        if queue in RESERVED_QUEUES[image.arch]:
            yield reserved(f"input_queue {queue}", span)

    # On WSE-2 wavelets carry their color through an output queue, so it can be shared.
    output = state.machine.named_queues.get((False, 0))
    if output is not None:
        yield reserved("output_queue 0", output)


def contradicted_queues(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about descriptors of WSE-3 that name another color than their queue has."""
    machine = image.state.machine
    for (is_input, queue, color), span in machine.queue_colors.items():
        bound = machine.queues.get((is_input, queue))
        if bound is not None and bound.color != color:
            kind = "input_queue" if is_input else "output_queue"
            yield warning(
                "queue-color",
                f"the descriptor names color {color}, and its {kind} {queue} has color "
                f"{bound.color}, which counts on wse3",
                span,
                "initialize the queue with the descriptor's color, or take another queue",
            )


def reserved(what: str, span: Span | None) -> Diagnostic:
    """A warning about something that memcpy has."""
    return warning(
        "reserved-id",
        f"{what} is reserved for memcpy, which this program has",
        span,
        "memcpy has colors 21 to 23, local task ids 27, 28 and 30, control task ids 33 to 37, "
        "input queue 0 and output queue 0, on WSE-3 input queue 1 as well; take another",
    )
