"""What the executor is given: a step as it was planned."""

from collections.abc import Mapping
from dataclasses import dataclass

from openwafer.training.metrics.plan_record import Activations, Mode
from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.schedule import Schedule


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
    """

    mode: Mode
    split: Partition
    layouts: Mapping[str, RecordLayout]
    schedule: Schedule | None
    policies: Mapping[str, Activations]
    nested_capacity_bytes: int
    received: tuple[str, ...]
