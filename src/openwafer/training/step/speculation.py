"""Steps whose updates are made before it is known that they are right, and undone where not.

The global norm is known when every gradient has arrived. To wait for it, gradients are kept and
read again. But most steps of most runs are not clipped: their updates can be made at once, while
the old version of every record is still in the slot that the last commit named. A step that turns
out to be clipped is rolled back and run again from the old weights, now with its coefficient. The
same pass makes the same gradients, so the bits are those of the step that waits.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.stream.execute.execution import Execution, StreamedExecution
from openwafer.training.stream.execute.layer_state import LayerState
from openwafer.training.stream.execute.snapshot import Snapshot
from openwafer.training.stream.schedule import UpdateTiming

NUM_REMEMBERED = 8
# A step that is run again costs one more pass; one that keeps its gradients, half the bytes again.
MAX_UNDONE = 1


@dataclass(frozen=True)
class Outcome:
    """What a pass over a step has made: equal for equal gradients.

    Attributes:
        losses: of the micro-batches.
        norm: of all gradients before they are clipped; ``None`` where nothing clips.
        coefficient: multiplies the gradients when they are applied; ``None`` forgets them, because
            those of an fp16 step overflowed.
    """

    losses: tuple[float, ...]
    norm: float | None
    coefficient: float | None = field(default=1.0, repr=False)


class Speculation:
    """Decides from the last steps which of the next are updated at once, and undoes those.

    Args:
        execution: runs the steps; updates can be undone where it streams by a plan of updates on
            push. Others are never made at once.
        model: what it runs.
        is_needed: whether a step may multiply its gradients when all of them are known.

    Attributes:
        undone: of the last steps, oldest first: whether updates made at once were not, or would
            not have been, right.
        is_under_way: whether the step under way is updated at once.
    """

    def __init__(self, execution: Execution, model: nn.Module, *, is_needed: bool) -> None:
        self.undone: tuple[bool, ...] = ()
        self.is_under_way = False
        self._execution: StreamedExecution | None = None
        if is_needed and isinstance(execution, StreamedExecution):
            self._execution = execution if execution.link.timing is UpdateTiming.ON_PUSH else None
        self._model = LayerState(model)
        self._before: tuple[Snapshot, ...] = ()

    def begin_step(self) -> None:
        """Choose how the next step is updated."""
        if self._execution is None:
            return
        # Who looks at micro-batches would see those of a step that is run again twice.
        is_watched = self._execution.executor.gradients.watchers.has_any
        self.is_under_way = sum(self.undone) <= MAX_UNDONE and not is_watched
        if self.is_under_way:
            self.update_at_once()
            self._before = self._model.now(), Snapshot(_generators())
        else:
            self._execution.update_on(UpdateTiming.ON_FETCH)
            self._before = ()

    def update_at_once(self, coefficient: float = 1.0) -> None:
        """Update in the next pass, with gradients times the coefficient."""
        if self._execution is not None:
            self._execution.update_on(UpdateTiming.ON_PUSH, coefficient)

    def undo(self) -> None:
        """Make the store, the counts and the model what they were before the step."""
        if self._execution is not None and self.is_under_way:
            self._execution.roll_back()
            for snapshot in self._before:
                snapshot.put_back()

    def end_step(self, *, is_undone: bool) -> None:
        """Remember whether updates at once were right, or would have been."""
        self.restore((*self.undone, is_undone)[-NUM_REMEMBERED:])
        self.is_under_way = False

    def restore(self, undone: tuple[bool, ...]) -> None:
        """Take over what :attr:`undone` of another process was."""
        if self._execution is not None:
            self.undone = undone


def require_same(first: Outcome, second: Outcome) -> None:
    """Raise ``step-not-repeated`` unless two passes over a step have made the same."""
    if repr(first) != repr(second):
        raise error(
            "step-not-repeated",
            "a step was run again to clip its gradients, and gave others than before",
            notes=(f"first {first}", f"then {second}"),
            help="set streaming.store to dram, or clip_norm to null: then no step is run twice",
        )


def _generators() -> Iterator[tuple[str, object]]:
    """Random generators that a forward may draw from."""
    yield "random", random.__dict__["_inst"]
    yield "numpy.random", np.random.__dict__["mtrand"].__dict__["_rand"]
    yield "torch", torch.default_generator
