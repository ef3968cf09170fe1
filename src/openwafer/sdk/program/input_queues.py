"""Queues of WSE-2, whose programs need not say which queue a color goes through.

Colors that descriptors name without a queue, or that control tasks listen to, get free queues from
the last one on, then the colors of data tasks do. Colors that are left when one queue is left share
it: data tasks from the start on, since wavelets carry their color, and descriptors by turns, as an
operation takes the queue for its color. Where an image has control tasks, all other colors share a
queue, so that a control wavelet reaches its task whatever its color. Outputs that name no queue go
through one, since their wavelets carry their color.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import GENERATIONS, NUM_COLORS, Arch
from openwafer.sdk.program.image import QueueBinding, TaskBinding, TaskKind

NUM_INPUT_QUEUES: Final = len(GENERATIONS[Arch.WSE2].input_queue_words)
"""Of both generations."""
LAST_QUEUE: Final = NUM_INPUT_QUEUES - 1
OUTPUT_QUEUE: Final = 0
"""Of outputs that name none."""


@dataclass(frozen=True)
class Allocation:
    """What the colors of an image got.

    Attributes:
        bindings: those that were given, and those that were chosen.
        sharing: colors that take turns on the last queue.
    """

    bindings: tuple[QueueBinding, ...]
    sharing: tuple[int, ...] = ()


def allocated(
    given: Sequence[QueueBinding],
    tasks: Sequence[TaskBinding],
    taken: Iterable[int] = (),
    wanting: Iterable[int] = (),
    sending: Iterable[int] = (),
) -> Allocation:
    """All queues of an image of WSE-2.

    Args:
        given: bindings that the program asks for, of both directions.
        tasks: of the image.
        taken: input queues that descriptors name, bound or not.
        wanting: colors that need an input queue before the data tasks do.
        sending: colors of outputs that name no queue.
    """
    queue_of = {binding.color: binding.queue for binding in given if binding.is_input}
    free = sorted(set(range(NUM_INPUT_QUEUES)) - {*taken, *queue_of.values()})
    wanted = sorted(set(wanting) - queue_of.keys())
    own = free if len(wanted) <= len(free) else free[:-1]
    chosen = dict(zip(wanted, reversed(own), strict=False))
    free = [queue for queue in free if queue not in chosen.values()]
    for task in tasks:
        if task.kind is TaskKind.DATA and task.task_id not in queue_of | chosen:
            chosen[task.task_id] = free.pop() if free else LAST_QUEUE
    shared = free[-1] if free else LAST_QUEUE
    if any(task.kind is TaskKind.CONTROL for task in tasks):
        rest = set(range(NUM_COLORS)) - queue_of.keys() - chosen.keys()
        chosen |= dict.fromkeys(sorted(rest), shared)
    inputs = (QueueBinding(True, queue, color, is_chosen=True) for color, queue in chosen.items())
    outputs = (QueueBinding(False, OUTPUT_QUEUE, color, is_chosen=True) for color in sending)
    return Allocation((*given, *inputs, *outputs), tuple(c for c in wanted if c not in chosen))


def described(image_queues: Iterable[QueueBinding]) -> Iterator[str]:
    """A line for each queue with its colors, and whether the compiler chose them."""
    colors: dict[tuple[bool, int], list[QueueBinding]] = {}
    for binding in image_queues:
        colors.setdefault((not binding.is_input, binding.queue), []).append(binding)
    for (is_output, queue), bindings in sorted(colors.items()):
        kind = "output" if is_output else "input"
        numbers = ", ".join(str(b.color) + "*" * b.is_chosen for b in bindings)
        yield f"{kind}_queue {queue}: color {numbers}"
