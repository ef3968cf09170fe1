"""A floor plan gives each layer of each replica a place on a wafer; figures follow."""

from collections.abc import Iterator
from dataclasses import dataclass

from openwafer.figures import Figure, Origin
from openwafer.planning.placement.layer_load import (
    Demand,
    PipelineTask,
    Recomputing,
    Rectangle,
    demands_of,
    slowest_cycles,
    wire_length,
)
from openwafer.planning.systems import Fabric, System


@dataclass(frozen=True)
class PlacedLayer:
    """Layer number `layer` of replica number `replica`, both from 0 on, and its cores."""

    replica: int
    layer: int
    rectangle: Rectangle


@dataclass(frozen=True)
class Site:
    """A pipeline on a wafer.

    Attributes:
        task: the pipeline.
        fabric: the wafer's fabric.
        busy_share: share of the peak that its cores reach.
    """

    task: PipelineTask
    fabric: Fabric
    busy_share: float

    @classmethod
    def on(cls, task: PipelineTask, system: System, fabric: Fabric) -> "Site":
        """The site on a system's fabric."""
        return cls(task, fabric, system.busy_share)

    @property
    def columns(self) -> int:
        """Of cores."""
        return int(self.fabric.columns.value)

    @property
    def rows(self) -> int:
        """Of cores."""
        return int(self.fabric.rows.value)

    @property
    def cores(self) -> int:
        """That programs may use."""
        return self.columns * self.rows

    @property
    def core_bytes(self) -> float:
        """Memory of one core."""
        return self.fabric.core_memory.value

    def demands(self, replicas: int, recomputing: Recomputing) -> tuple[Demand, ...]:
        """Of the layers of one of so many replicas."""
        return demands_of(self.task, self.fabric, self.busy_share, replicas, recomputing)

    def step_seconds(self, replicas: int, slowest_cycles: float) -> float:
        """Of a training step, in which pipelines fill and drain, by a token's slowest layer."""
        tokens = self.task.sequences(replicas) * self.task.sequence_length
        return self.task.stretch(replicas) * tokens * slowest_cycles / self.fabric.clock.value


@dataclass(frozen=True)
class FloorPlan:
    """Replicas of a pipeline in equal tiles of a wafer, each placed alike in its tile.

    Attributes:
        site: the pipeline and its wafer.
        across, down: tiles side by side and one below the other; each holds one replica.
        recomputing: whether activations are kept or recomputed.
        rectangles: rectangles of the layers, counted from the corner of a tile.
    """

    site: Site
    across: int
    down: int
    recomputing: Recomputing
    rectangles: tuple[Rectangle, ...]

    @property
    def replicas(self) -> int:
        """Of the pipeline."""
        return self.across * self.down

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Of the layers of one replica."""
        return self.site.demands(self.replicas, self.recomputing)

    @property
    def placed(self) -> Iterator[PlacedLayer]:
        """All layers of all replicas, on the whole fabric."""
        width, height = self.site.columns // self.across, self.site.rows // self.down
        for replica in range(self.replicas):
            x, y = replica % self.across * width, replica // self.across * height
            for layer, own in enumerate(self.rectangles):
                rectangle = Rectangle(own.x + x, own.y + y, own.columns, own.rows)
                yield PlacedLayer(replica, layer, rectangle)

    @property
    def slowest_cycles(self) -> float:
        """Of a token in the layer that all others of a replica wait for."""
        return slowest_cycles(self.demands, self.rectangles)

    @property
    def step_seconds(self) -> float:
        """Of a training step; 0 if nothing is computed."""
        return self.site.step_seconds(self.replicas, self.slowest_cycles)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What floor plans are compared by."""
        return tuple(Figure(*each) for each in self._figures())

    def _figures(self) -> Iterator[tuple[str, float, str, Origin, str]]:
        site, demands = self.site, self.demands
        inferred = Origin.INFERRED
        clock = site.fabric.clock.value
        slowest = self.slowest_cycles
        sources = "products and partial sums of a token / (cores x clock x busy share)"
        yield "slowest layer", slowest / clock, "s", inferred, sources
        source = "sequences, and layers to fill and drain, x slowest layer"
        yield "step", self.step_seconds, "s", inferred, source
        if slowest:
            rate = self.replicas * clock / slowest
            yield "tokens in a second", rate, "", inferred, "replicas / slowest layer"
            work = self.replicas * sum(demand.core_cycles for demand in demands)
            busy = work / (site.cores * slowest)
            yield "work of the cores", busy, "", inferred, "products / (all cores x slowest layer)"
        used = self.replicas * sum(each.cores for each in self.rectangles) / site.cores
        yield "cores with a layer", used, "", inferred, "rectangles / usable cores"
        fullest = max(
            demand.held_bytes / own.cores
            for demand, own in zip(demands, self.rectangles, strict=True)
        )
        yield "fullest core", fullest, "B", inferred, "states and sequences at work / cores"
        wires = wire_length(demands, self.rectangles)
        source = "bytes to the next layer x Manhattan distance of centres, of one token's forward"
        yield "wire length", wires, "B x cores", inferred, source
