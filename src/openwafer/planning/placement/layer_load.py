"""The layers of a pipeline ask a wafer for work of its cores, and memory beside them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from openwafer.planning.systems import Fabric
from openwafer.planning.throughput.passes import FLOPS_PER_WEIGHT, TOKEN_BYTES


class Recomputing(StrEnum):
    """A layer keeps its activations for its backward, or recomputes them."""

    NONE = "kept"
    BY_LAYER = "recomputed layer by layer"


@dataclass(frozen=True)
class LayerLoad:
    """A layer of a pipeline, in 16-bit training.

    Attributes:
        name: the layer's.
        forward_flops, backward_flops: FLOPs of one token.
        features: features that a product of the layer adds up.
        state_bytes: weights, gradients and states of the optimizer.
        activation_bytes: bytes that the forward of one token leaves for its backward.
        output_bytes: bytes of one token that go to the next layer.
    """

    name: str
    forward_flops: float
    backward_flops: float
    features: float
    state_bytes: float
    activation_bytes: float
    output_bytes: float


@dataclass(frozen=True)
class PipelineTask:
    """A training as a pipeline of layers, sequences behind each other.

    Attributes:
        layers: layers in the order of the forward, one at least.
        batch_size: sequences of a step.
        sequence_length: tokens of a sequence.
    """

    layers: tuple[LayerLoad, ...]
    batch_size: int
    sequence_length: int

    def sequences(self, replicas: int) -> int:
        """That the busiest of so many replicas takes in a step."""
        return math.ceil(self.batch_size / replicas)

    def stretch(self, replicas: int) -> float:
        """Times that a step takes as long since the pipeline fills and drains.

        ``(m + layers - 1) / m`` for m sequences, as of `planning.system_plan`.
        """
        own = self.sequences(replicas)
        return (own + len(self.layers) - 1) / own


@dataclass(frozen=True)
class Demand:
    """The needs of one layer, for a rectangle of cores.

    Attributes:
        name: the layer's.
        core_cycles: cycles of one core for one token.
        sum_share: share of these that each core of the rectangle's shorter side adds for partial
            sums.
        held_bytes: bytes of states and of all sequences between forward and backward.
        output_bytes: bytes of one token that go to the next layer.
    """

    name: str
    core_cycles: float
    sum_share: float
    held_bytes: float
    output_bytes: float

    def cycles(self, columns: int, rows: int) -> float:
        """For one token on a rectangle.

        Its features are dealt along the shorter side: with ``features / side`` products for each
        partial sum a core spends ``1 + sum_cycles side / features`` times the cycles of the
        products alone, as in `planning.throughput.core_rate`.
        """
        side = min(columns, rows)
        return self.core_cycles * (1 + self.sum_share * side) / (columns * rows)

    def least_cores(self, core_bytes: float) -> int:
        """That have room for what is held."""
        return max(1, math.ceil(self.held_bytes / core_bytes))


def demands_of(
    task: PipelineTask, fabric: Fabric, busy_share: float, replicas: int, recomputing: Recomputing
) -> tuple[Demand, ...]:
    """What each layer of one of `replicas` needs; `busy_share` of the peak is reached.

    A backward is taken as soon as there is one (Narayanan et al. 2021, arXiv 2104.04473, section
    2.2): a layer with j - 1 layers behind it holds j sequences, or all that its replica has.
    """
    rate = FLOPS_PER_WEIGHT * fabric.lanes.value * busy_share
    held = _held(task, replicas, recomputing)
    return tuple(
        Demand(
            layer.name,
            (layer.forward_flops * (2 if is_recomputed else 1) + layer.backward_flops) / rate,
            fabric.sum_cycles.value / layer.features,
            layer.state_bytes + num_bytes,
            layer.output_bytes,
        )
        for layer, (num_bytes, is_recomputed) in zip(task.layers, held, strict=True)
    )


def _held(
    task: PipelineTask, replicas: int, recomputing: Recomputing
) -> Iterator[tuple[float, bool]]:
    """Of each layer the bytes of its activations, and whether its forward is made again."""
    inputs = (TOKEN_BYTES, *(layer.output_bytes for layer in task.layers))
    most = task.sequences(replicas)
    for index, layer in enumerate(task.layers):
        at_work = min(most, len(task.layers) - index)
        kept = task.sequence_length * at_work * layer.activation_bytes
        inside = task.sequence_length * (at_work * inputs[index] + layer.activation_bytes)
        is_recomputed = recomputing is Recomputing.BY_LAYER and inside < kept
        yield (inside if is_recomputed else kept), is_recomputed


@dataclass(frozen=True)
class Rectangle:
    """Cores from column `x` and row `y` on."""

    x: int
    y: int
    columns: int
    rows: int

    @property
    def cores(self) -> int:
        """In it."""
        return self.columns * self.rows

    @property
    def centre(self) -> tuple[float, float]:
        """(x, y) of its middle, in cores."""
        return self.x + self.columns / 2, self.y + self.rows / 2


def wire_length(demands: Sequence[Demand], rectangles: Sequence[Rectangle]) -> float:
    """Bytes times cores that a token's activations pass on their way forward.

    Manhattan distance between the centres of each layer's rectangle and the next one's.
    """
    total = 0.0
    for demand, (one, other) in zip(demands, pairwise(rectangles), strict=False):
        (x, y), (next_x, next_y) = one.centre, other.centre
        total += demand.output_bytes * (abs(x - next_x) + abs(y - next_y))
    return total


def slowest_cycles(demands: Sequence[Demand], rectangles: Sequence[Rectangle]) -> float:
    """Of a token in the layer that takes longest, which all others wait for."""
    return max(
        demand.cycles(each.columns, each.rows)
        for demand, each in zip(demands, rectangles, strict=True)
    )
