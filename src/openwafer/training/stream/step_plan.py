"""What the executor is given: a step as it was planned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Self

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.stream.schedule import Kind, RecordBytes, Schedule, UpdateTiming, Visit


@dataclass(frozen=True)
class StepPlan:
    """The plan of one step on the device.

    Attributes:
        mode: resident or streamed.
        split, layouts: the layers and their records.
        schedule: what the executor walks; ``None`` in a resident run.
        policies: activations by layer.
        nested_capacity_bytes: device bytes for layers nested in others.
        received: parameters that get a gradient.
        micro_batches: how many it has; passes of fewer keep to its room, too.
        most_layer_calls: of a forward, for which there is room.
        harmless: names of what a forward changes and no other one reads, or all find alike.
    """

    mode: Mode
    split: Partition
    layouts: Mapping[str, RecordLayout]
    schedule: Schedule | None
    policies: Mapping[str, Activations]
    nested_capacity_bytes: int
    received: tuple[str, ...]
    micro_batches: int
    harmless: tuple[str, ...] = field(default=(), kw_only=True)
    most_layer_calls: int | None = field(default=None, kw_only=True)

    def timed(self, timing: UpdateTiming) -> Self:
        """The plan with updates at that time; those on push can be made to wait for a fetch."""
        if self.schedule is None or self.schedule.timing is timing:
            return self
        assert timing is UpdateTiming.ON_FETCH
        return replace(self, schedule=schedules.keeping_gradients(self.schedule))

    def without_predictions(self) -> "StepPlan":
        """The plan without what was predicted of it, which is large."""
        return StepPlan(**{each.name: getattr(self, each.name) for each in fields(StepPlan)})

    @property
    def forward_schedule(self) -> Schedule | None:
        """The schedule of a forward that no backward follows, in the room of the step's."""
        if self.schedule is None:
            return None
        records_of = {layer.name: layer.records for layer in self.split.layers}
        visits = [
            Visit(action.target, records_of[action.target], has_backward=False)
            for action in self.schedule.actions
            if action.kind is Kind.FORWARD
        ]
        sizes = {
            record: RecordBytes(layout.part_bytes(Part.WEIGHTS), gradients=0)
            for record, layout in self.layouts.items()
        }
        return schedules.build(
            visits, sizes, timing=self.schedule.timing, capacity_bytes=self.schedule.capacity_bytes
        )


def too_many_calls(layer: str, num_calls: int, most_calls: int) -> OpenwaferError:
    """The error of a forward that calls more layers than there is to be room for.

    Args:
        layer: the first that is one too many.
    """
    return error(
        "layer-calls-exceeded",
        f"a forward calls {counted(num_calls, 'layer')}, {layer!r} behind the {most_calls} that "
        "most_layer_calls allows",
        help=f"set most_layer_calls to {num_calls} or more, or let the model halt earlier",
    )


def record_bytes(
    split: Partition, layouts: Mapping[str, RecordLayout], received: Collection[str]
) -> dict[str, RecordBytes]:
    """Sizes of all records but the pinned one, for a schedule.

    Args:
        split, layouts: the records.
        received: parameters that get a gradient.
    """
    with_gradient = set(received)
    return {
        record: RecordBytes(
            layouts[record].part_bytes(Part.WEIGHTS),
            layouts[record].bytes_of_weights(with_gradient),
        )
        for record in split.records
        if record != PINNED
    }
