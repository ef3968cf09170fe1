"""Chooses the number of replicas of a pipeline on a wafer, and their floor plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.figures import Figure
from openwafer.planning.placement.bands import least_cycles, place_in_bands
from openwafer.planning.placement.faults import find_faults
from openwafer.planning.placement.floor_plan import FloorPlan, Site
from openwafer.planning.placement.layer_load import Demand, PipelineTask, Recomputing
from openwafer.planning.placement.row_packing import pack_rows
from openwafer.planning.systems import System

MEGABYTE = 1e6

Progress = Callable[[int, int], None]
"""Told the floor plans tried, and how many there are to try at most."""


@dataclass(frozen=True)
class StepBound:
    """A step that is shorter than in any floor plan: rectangles that need not lie side by side.

    Attributes:
        replicas: number of replicas.
        recomputing: whether activations are kept or recomputed.
        demands: demands of one replica's layers.
        seconds: time of the step.
    """

    replicas: int
    recomputing: Recomputing
    demands: tuple[Demand, ...]
    seconds: float

    @property
    def held_bytes(self) -> float:
        """Of all replicas: states, and sequences between forward and backward."""
        return self.replicas * sum(demand.held_bytes for demand in self.demands)


@dataclass(frozen=True)
class Placement:
    """The floor plan of a pipeline on a wafer, beside simpler and ideal ones.

    Attributes:
        system: the wafer's.
        chosen: the floor plan of the shortest step.
        rows_of_squares: the simplest one, without replicas; None where it has no room.
        least_step_seconds: bound of the step for all floor plans in equal tiles.
    """

    system: System
    chosen: FloorPlan
    rows_of_squares: FloorPlan | None
    least_step_seconds: float

    @property
    def bounds(self) -> Mapping[str, Figure]:
        """What no floor plan does better with these activations, by the names of its figures."""
        plan = self.chosen
        site = plan.site
        work = sum(each.core_cycles for each in site.demands(1, plan.recomputing))
        together = "total work / all cores"
        bounds = {
            "step": (self.least_step_seconds, "rectangles that need not lie side by side"),
            "work of the cores": (1.0, together),
            "cores with a layer": (1.0, together),
        }
        if work:
            rate = site.cores * site.fabric.clock.value / work
            bounds["tokens in a second"] = rate, together
        return {
            figure.name: replace(figure, value=value, source=source)
            for figure in plan.figures
            if figure.name in bounds
            for value, source in (bounds[figure.name],)
        }


@dataclass(frozen=True)
class _Candidate:
    across: int
    down: int
    recomputing: Recomputing
    least_seconds: float

    @property
    def replicas(self) -> int:
        return self.across * self.down

    def tile(self, site: Site) -> tuple[int, int]:
        """Columns and rows of cores that a replica has."""
        return site.columns // self.across, site.rows // self.down


def place_pipeline(
    task: PipelineTask,
    system: System,
    replicas: int | None = None,
    progress: Progress = lambda done, most: None,
) -> Placement:
    """Place a pipeline so that a training step is as short as in any of the tried floor plans.

    Tried are floor plans in bands for each number of `replicas`, or only for the given one, in
    equal tiles, with activations kept and recomputed. What cannot be faster than the best so far
    is left out.

    Raises:
        OpenwaferError: ``placement-system`` for a system that is no wafer,
            ``placement-replicas`` for none or more than the batch has sequences,
            ``placement-memory`` where the cores have no room.
    """
    site = _site(task, system)
    _require_replicas(task, replicas)
    candidates = _candidates(site, replicas)
    best: FloorPlan | None = None
    for done, candidate in enumerate(candidates):
        if best is not None and candidate.least_seconds >= best.step_seconds:
            break
        progress(done, len(candidates))
        found = _placed(site, candidate)
        if found and (best is None or found.step_seconds < best.step_seconds):
            best = found
    bound = _bound_of(site, candidates)
    if best is None or bound is None:
        raise _no_room(site, system, replicas or 1)
    progress(len(candidates), len(candidates))
    _verify(best)
    return Placement(system, best, _baseline(site), bound.seconds)


def least_step(task: PipelineTask, system: System) -> StepBound | None:
    """What no floor plan of any number of replicas goes below; None without room for one.

    Raises:
        OpenwaferError: ``placement-system`` for a system that is no wafer.
    """
    site = _site(task, system)
    return _bound_of(site, _candidates(site, None))


def _bound_of(site: Site, candidates: Sequence[_Candidate]) -> StepBound | None:
    best: StepBound | None = None
    for each in candidates:
        if best is not None and each.least_seconds >= best.seconds:
            break
        demands = site.demands(each.replicas, each.recomputing)
        cycles = least_cycles(demands, *each.tile(site), site.core_bytes)
        if cycles is None:
            continue
        seconds = site.step_seconds(each.replicas, cycles)
        if best is None or seconds < best.seconds:
            best = StepBound(each.replicas, each.recomputing, demands, seconds)
    return best


def _site(task: PipelineTask, system: System) -> Site:
    if system.fabric is None:
        raise error(
            "placement-system",
            f"{system.title} has no fabric of cores to place layers on",
            help="name a wafer, such as wse2, or a described system with a fabric",
        )
    return Site.on(task, system, system.fabric)


def _require_replicas(task: PipelineTask, replicas: int | None) -> None:
    if replicas is not None and not 1 <= replicas <= task.batch_size:
        raise error(
            "placement-replicas",
            f"{counted(replicas, 'replica')} for a batch of "
            f"{counted(task.batch_size, 'sequence')}: each takes one at least",
            help=f"give 1 to {task.batch_size} replicas, or raise batch.size",
        )


def _candidates(site: Site, asked: int | None) -> list[_Candidate]:
    """Tilings that memory may have room for, those first whose step could be shortest."""
    return sorted(_tilings(site, asked), key=lambda each: each.least_seconds)


def _tilings(site: Site, asked: int | None) -> Iterator[_Candidate]:
    states = sum(layer.state_bytes for layer in site.task.layers)
    room = site.cores * site.core_bytes
    most = min(site.task.batch_size, site.cores, int(room / max(states, room / site.cores)))
    for replicas in (asked,) if asked else range(1, most + 1):
        for recomputing in Recomputing:
            demands = site.demands(replicas, recomputing)
            least = sum(each.least_cores(site.core_bytes) for each in demands)
            seconds = _least_seconds(site, replicas, recomputing)
            for across in range(1, replicas + 1):
                found = _Candidate(across, replicas // across, recomputing, seconds)
                if found.replicas == replicas and least <= prod(found.tile(site)):
                    yield found


def _least_seconds(site: Site, replicas: int, recomputing: Recomputing) -> float:
    """Of a step, if all cores of a replica's share were busy with products all the time."""
    work = sum(each.core_cycles for each in site.demands(replicas, recomputing))
    return site.step_seconds(replicas, work * replicas / site.cores)


def _placed(site: Site, candidate: _Candidate) -> FloorPlan | None:
    demands = site.demands(candidate.replicas, candidate.recomputing)
    rectangles = place_in_bands(demands, *candidate.tile(site), site.core_bytes)
    if rectangles is None:
        return None
    return FloorPlan(site, candidate.across, candidate.down, candidate.recomputing, rectangles)


def _baseline(site: Site) -> FloorPlan | None:
    """Rows of squares on the whole wafer, activations kept where they fit."""
    for recomputing in Recomputing:
        demands = site.demands(1, recomputing)
        packed = pack_rows(demands, site.columns, site.rows, site.core_bytes)
        if packed is not None:
            return FloorPlan(site, 1, 1, recomputing, packed)
    return None


def _verify(plan: FloorPlan) -> None:
    site = plan.site
    size = site.columns, site.rows
    faults = find_faults([*plan.placed], plan.demands, plan.replicas, size, site.core_bytes)
    if faults:
        raise AssertionError(f"a floor plan that was made is not valid: {'; '.join(faults)}")


def _no_room(site: Site, system: System, replicas: int) -> OpenwaferError:
    ways = [site.demands(replicas, recomputing) for recomputing in Recomputing]
    needed = replicas * min(sum(each.held_bytes for each in demands) for demands in ways)
    room = site.cores * site.core_bytes
    enough = "" if needed > room else ", and in no floor plan each layer finds its own"
    pipelines = "the pipeline takes" if replicas == 1 else f"{replicas} replicas take"
    return error(
        "placement-memory",
        f"{pipelines} {needed / MEGABYTE:,.6g} MB of weights, gradients, states and activations, "
        f"recomputed where that is less; {system.title} has {room / MEGABYTE:,.6g} MB in "
        f"{site.cores:,} cores of {site.core_bytes:,.0f} B{enough}",
        help="place fewer replicas, shorter sequences or a smaller model, take a larger wafer, "
        "or let weights stream: openwafer plan --system",
    )
