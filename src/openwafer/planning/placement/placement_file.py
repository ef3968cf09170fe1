"""A floor plan as JSON, as docs/formats/openwafer-placement.md describes it."""

from dataclasses import dataclass

from openwafer.atomic_file import write_bytes
from openwafer.config import PathLike, path_of
from openwafer.figures import Figure
from openwafer.json_files import encode
from openwafer.planning.placement.choice import Placement
from openwafer.planning.placement.floor_plan import FloorPlan, PlacedLayer

FORMAT = "openwafer-placement"
VERSION = 1


@dataclass(frozen=True)
class _Layer:
    name: str
    cores: int
    core_bytes: float
    seconds: float


@dataclass(frozen=True)
class _FloorPlan:
    replicas: int
    activations: str
    layers: tuple[_Layer, ...]
    placed: tuple[PlacedLayer, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class _Placement:
    system: str
    columns: int
    rows: int
    chosen: _FloorPlan
    rows_of_squares: _FloorPlan | None
    least_step_seconds: float


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    placement: _Placement


def write_placement(path: PathLike, placement: Placement) -> None:
    """Replace the file `path` by the floor plan. Raises OSError."""
    path = path_of(path, "path")
    site, simplest = placement.chosen.site, placement.rows_of_squares
    content = _Placement(
        placement.system.title,
        site.columns,
        site.rows,
        _told(placement.chosen),
        None if simplest is None else _told(simplest),
        placement.least_step_seconds,
    )
    write_bytes(path, encode(_File(FORMAT, VERSION, content)) + b"\n")


def _told(plan: FloorPlan) -> _FloorPlan:
    clock = plan.site.fabric.clock.value
    layers = tuple(
        _Layer(
            demand.name,
            own.cores,
            demand.held_bytes / own.cores,
            demand.cycles(own.columns, own.rows) / clock,
        )
        for demand, own in zip(plan.demands, plan.rectangles, strict=True)
    )
    return _FloorPlan(
        plan.replicas, str(plan.recomputing), layers, tuple(plan.placed), plan.figures
    )
