"""``openwafer plan --system this`` predicts a step on several systems like this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openwafer.config import parse_bytes
from openwafer.diagnostics import error
from openwafer.figures import Figure, Origin
from openwafer.planning.system_plan import Section, SystemPlan, TrainingTask
from openwafer.planning.systems.published import usual_hop
from openwafer.planning.throughput import critical_batch_tokens
from openwafer.replica_steps import ReplicaStep, replica_step
from openwafer.training.stream.plan.step_time import MeasuredStep
from openwafer.training.stream.replicas.ownership import StoreSystems

USUAL_LINK = 12.5e9
MOST_SYSTEMS = 192
TITLE = "several systems"


@dataclass(frozen=True)
class Forecast:
    """A measured step, and several systems that make it.

    Attributes:
        measured: the step, measured on one system.
        blocks: number of micro-batches of each.
        link: bytes a second between them, each way; ``None`` where it is not given.
    """

    measured: MeasuredStep
    blocks: Sequence[int]
    link: float | None

    @property
    def link_bytes_per_second(self) -> float:
        """Each way, as it is said or as it is usual."""
        return USUAL_LINK if self.link is None else self.link

    def step_on(self, num_systems: int) -> ReplicaStep:
        """The same batch on so many of them."""
        joined = self.measured.joined(num_systems, self.link_bytes_per_second, usual_hop().value)
        return replica_step(self.measured.streamed(sum(self.blocks), num_systems), joined)


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


def with_forecast(plan: SystemPlan, task: TrainingTask, forecast: Forecast) -> SystemPlan:
    """A plan of this machine that tells of several, too."""
    section = Section(TITLE, tuple(_figures(task, forecast)))
    limit = str(forecast.step_on(len(forecast.blocks)).limit)
    return replace(plan, limit=limit, sections=(*plan.sections, section))


def _figures(task: TrainingTask, forecast: Forecast) -> Iterator[Figure]:
    num_systems, memory = len(forecast.blocks), forecast.measured.memory_bytes_per_second
    link = "taken for granted: 100 Gb/s" if forecast.link is None else "--link"
    yield Figure("link", forecast.link_bytes_per_second, "B/s", Origin.GIVEN, f"{link}, each way")
    yield usual_hop()
    yield Figure("memory rate", memory, "B/s", Origin.MEASURED, "read and written just now")
    one, all_of_them = forecast.step_on(1).seconds, forecast.step_on(num_systems).seconds
    formula = "openwafer.replica_steps.replica_step"
    yield _inferred("micro-batches of a system", max(forecast.blocks), "", "of the one with most")
    yield _inferred("step on one system", one, "s", f"{formula}, operators timed just now")
    yield _inferred("step", all_of_them, "s", formula)
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
