"""What ``openwafer plan --system this`` foretells of several systems like this machine."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openwafer.config import parse_bytes
from openwafer.diagnostics import error
from openwafer.figures import Figure, Origin
from openwafer.planning.system_plan import Section, SystemPlan, TrainingTask
from openwafer.planning.systems.published import usual_hop
from openwafer.planning.throughput import (
    Joined,
    LayerWork,
    ReplicaStep,
    StreamedStep,
    critical_batch_tokens,
    replica_step,
)
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.stream.plan.events.event_run import run_events
from openwafer.training.stream.plan.events.measured import MeasuredStep
from openwafer.training.stream.replicas.ownership import StoreSystems
from openwafer.training.stream.schedule import Kind, UpdateTiming

USUAL_LINK = 12.5e9
MOST_SYSTEMS = 192
MOST_CHUNKS = 200_000
"""That pass from system to system in a run of events; more of them take minutes."""
TITLE = "several systems"


@dataclass(frozen=True)
class Forecast:
    """A measured step, and several systems that make it.

    Attributes:
        measured: on one of them.
        blocks: micro-batches of each.
        link: bytes a second between them, each way; ``None`` where nobody says.
    """

    measured: MeasuredStep
    blocks: Sequence[int]
    link: float | None

    @property
    def joined(self) -> Joined:
        """The systems as the formula takes them."""
        hop, link = usual_hop().value, self.link or USUAL_LINK
        rates = self.measured.rates(link, hop, chunk_bytes_at(link))
        return Joined(
            len(self.blocks), rates.link, hop, rates.store, rates.adding, rates.chunk_bytes
        )

    def step_on(self, num_systems: int) -> ReplicaStep:
        """The formula's step."""
        step = streamed(self.measured, sum(self.blocks), num_systems)
        return replica_step(step, replace(self.joined, num_systems=num_systems))

    @property
    def event_seconds(self) -> float | None:
        """Seconds of the events of the step; ``None`` where there are too many of them."""
        num_bytes = sum(size.weights + size.gradients for size in self.measured.sizes.values())
        chunk_bytes = int(self.joined.chunk_bytes)
        if len(self.blocks) * num_bytes / chunk_bytes > MOST_CHUNKS:
            return None
        rates = self.measured.rates(self.joined.link, self.joined.hop_seconds, chunk_bytes)
        return run_events(self.measured.on(rates, self.blocks)).step


def link_of(text: str | None) -> float | None:
    """Bytes a second that ``--link`` names.

    Raises:
        OpenwaferError: ``option-value``.
    """
    if text is None:
        return None
    try:
        rate = parse_bytes(text)
    except ValueError as cause:
        raise error("option-value", f"--link: {cause}", help="such as 12.5GB, a second") from cause
    if not rate:
        raise error("option-value", "--link is 0 bytes a second", help="such as 12.5GB, a second")
    return float(rate)


def streamed(measured: MeasuredStep, micro_batches: int, num_systems: int) -> StreamedStep:
    """The step as the formula takes it.

    Gradients of shared weights leave with their first use, and a layer of several records has the
    owner of the largest.
    """
    layers, seen, owners = [], set[str](), measured.owners(num_systems)
    forward, backward = _fetched(measured)
    for visit in measured.visits:
        new = [record for record in visit.records if record not in seen]
        seen.update(new)
        takes = measured.layers[visit.layer]
        largest = max(visit.records, key=lambda record: measured.sizes[record].weights)
        layers.append(
            LayerWork(
                takes.forward,
                takes.backward,
                sum(measured.sizes[record].weights for record in visit.records),
                sum(measured.sizes[record].gradients for record in new),
                sum(measured.updates.get(record, 0.0) for record in new),
                (forward[visit.layer], backward[visit.layer]),
                owners[largest],
            )
        )
    schedule = measured.schedule
    is_on_fetch = schedule.timing is UpdateTiming.ON_FETCH
    return StreamedStep(layers, micro_batches, schedule.capacity_bytes, is_on_fetch)


def _fetched(measured: MeasuredStep) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Bytes that each layer is the next to use, fetched for its forward and for its backward."""
    records_of = {visit.layer: visit.records for visit in measured.visits}
    by_pass: dict[Kind, Counter[str]] = {Kind.FORWARD: Counter(), Kind.BACKWARD: Counter()}
    waiting: Counter[str] = Counter()
    for action in measured.schedule.actions:
        if action.kind is Kind.FETCH:
            waiting[action.target] += action.num_bytes
        elif action.kind in by_pass:
            used = records_of[action.target]
            by_pass[action.kind][action.target] += sum(waiting.pop(one, 0) for one in used)
    return by_pass[Kind.FORWARD], by_pass[Kind.BACKWARD]


def with_forecast(plan: SystemPlan, task: TrainingTask, forecast: Forecast) -> SystemPlan:
    """A plan of this machine that tells of several, too."""
    section = Section(TITLE, tuple(_figures(task, forecast)))
    limit = str(forecast.step_on(len(forecast.blocks)).limit)
    return replace(plan, limit=limit, sections=(*plan.sections, section))


def _figures(task: TrainingTask, forecast: Forecast) -> Iterator[Figure]:
    num_systems, memory = len(forecast.blocks), forecast.measured.memory_bytes_per_second
    link = "taken for granted: 100 Gb/s" if forecast.link is None else "--link"
    yield Figure("link", forecast.joined.link, "B/s", Origin.GIVEN, f"{link}, each way")
    yield usual_hop()
    yield Figure("memory rate", memory, "B/s", Origin.MEASURED, "read and written just now")
    one, all_of_them = forecast.step_on(1).seconds, forecast.step_on(num_systems).seconds
    formula = "openwafer.planning.throughput.replica_step"
    yield _inferred("micro-batches of a system", max(forecast.blocks), "", "of the one with most")
    yield _inferred("step on one system", one, "s", f"{formula}, operators timed just now")
    yield _inferred("step", all_of_them, "s", formula)
    if (seconds := forecast.event_seconds) is not None:
        yield _inferred("step, by events", seconds, "s", "the schedule on modelled systems")
    if forecast.measured.store_systems is StoreSystems.ALL:
        first = replace(forecast.measured, store_systems=StoreSystems.FIRST)
        seconds = replace(forecast, measured=first).step_on(num_systems).seconds
        yield _inferred("step, store on the first", seconds, "s", "store_systems: first")
    yield _inferred("times as fast", one / all_of_them, "", "as one system, with the same batch")
    critical = critical_batch_tokens(task.model.parameters)
    source = "beyond it a larger batch saves few steps; Kaplan et al. 2020, arXiv 2001.08361"
    yield _inferred("critical batch", critical, "tokens", source)


def _inferred(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.INFERRED, source)


def draw_forecast(axes: Any, forecast: Forecast) -> None:
    """The same batch on 1, 2, 3 systems and so on, as many as it has micro-batches for."""
    numbers = range(1, min(sum(forecast.blocks), MOST_SYSTEMS) + 1)
    seconds = [forecast.step_on(number).seconds for number in numbers]
    axes.plot(numbers, numbers, color="#999999", linestyle="--", label="linear")
    axes.plot(numbers, [seconds[0] / each for each in seconds], color="#1f5fa8", label="a step")
    axes.set(xlabel="systems like this one", ylabel="times as fast")
    axes.legend(frameon=False)
