"""A model of a run with what executes it: all that evaluation and generation need."""

from dataclasses import dataclass

from torch import nn

from openwafer.training.data.tokenizer import Tokenizer
from openwafer.training.session.config import RunConfig
from openwafer.training.store import Part
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.layers import PINNED


@dataclass(frozen=True)
class OpenedModel:
    """A model whose weights are in a store, or on the device.

    Attributes:
        config: of the run.
        model: in training mode.
        tokenizer: of its tokens.
        execution: runs its passes.
        steps_done: training steps behind the weights.
        room_bytes: of the device, beside the weights; ``None`` where it has no cap.
    """

    config: RunConfig
    model: nn.Module
    tokenizer: Tokenizer
    execution: Execution
    steps_done: int
    room_bytes: int | None


def room_beside_weights(planned: Planned) -> int | None:
    """Bytes of the device budget that the weights on the device leave; ``None`` for no budget."""
    budget = planned.given.device_memory_bytes
    if budget is None:
        return None
    schedule, layouts = planned.plan.schedule, planned.plan.layouts
    if schedule is None:
        return budget - sum(layout.part_bytes(Part.WEIGHTS) for layout in layouts.values())
    pinned = layouts[PINNED].part_bytes(Part.WEIGHTS) if PINNED in layouts else 0
    return budget - schedule.capacity_bytes - pinned
