"""The live line of a run: a bar in a terminal, a plain line every few steps elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from openwafer.training.metrics.step_lines import StepMetrics
from openwafer.training.metrics.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)

_RECENT_STEPS = 20


@dataclass(frozen=True)
class StepSamples:
    """What the steps of a run take.

    Attributes:
        before: samples that all steps before one take; steps themselves where each has as many.
        of_epoch: of an epoch; ``None`` where none are told.
    """

    before: Callable[[int], int] = int
    of_epoch: int | None = None


@dataclass(frozen=True)
class ProgressState:
    """The state of a run; rates and time left are means over the last 20 steps.

    Time left is in proportion to the samples of the steps that are left. The
    peak is that of the last step that was metered, None until one was. Epochs are told where their
    samples are known.
    """

    total_steps: int
    device_budget_bytes: int
    steps_done: int = 0
    streamed_bytes: int = 0
    recent: tuple[StepMetrics, ...] = ()
    device_bytes_peak: int | None = None
    samples: StepSamples = StepSamples()

    def after(self, metrics: StepMetrics) -> "ProgressState":
        """The state once the step of `metrics` is done."""
        return replace(
            self,
            steps_done=metrics.step + 1,
            streamed_bytes=self.streamed_bytes + metrics.fetch_bytes + metrics.push_bytes,
            recent=(*self.recent, metrics)[-_RECENT_STEPS:],
            device_bytes_peak=self.device_bytes_peak
            if metrics.device_bytes_peak is None
            else metrics.device_bytes_peak,
        )

    @property
    def epochs(self) -> tuple[float, float] | None:
        """Done, and in all."""
        if self.samples.of_epoch is None:
            return None
        done, total = map(self.samples.before, (self.steps_done, self.total_steps))
        return done / self.samples.of_epoch, total / self.samples.of_epoch

    @property
    def seconds_left(self) -> float:
        """Infinite before the first step."""
        if not self.recent:
            return float("inf")
        done = self.samples.before(self.steps_done)
        recent = done - self.samples.before(self.recent[0].step)
        return self._recent_seconds / recent * (self.samples.before(self.total_steps) - done)

    @property
    def stream_bytes_per_second(self) -> float:
        return sum(m.fetch_bytes + m.push_bytes for m in self.recent) / self._recent_seconds

    @property
    def disk_bytes_per_second(self) -> float:
        return sum(m.disk_read_bytes + m.disk_write_bytes for m in self.recent) / (
            self._recent_seconds
        )

    @property
    def _recent_seconds(self) -> float:
        return sum(metrics.seconds for metrics in self.recent)


def describe_progress(state: ProgressState) -> tuple[str, ...]:
    """The figures of the latest step, each a short text, nothing before the first step."""
    if not state.recent:
        return ()
    latest = state.recent[-1]
    disk_rate = state.disk_bytes_per_second
    stream_rate = format_rate(state.stream_bytes_per_second)
    peak, budget = state.device_bytes_peak, format_bytes(state.device_budget_bytes)
    return (
        f"loss {latest.loss:.4f}",
        f"{format_count(latest.tokens_per_second)} tokens/s",
        f"streamed {format_bytes(state.streamed_bytes)} at {stream_rate}",
        *([f"disk {format_rate(disk_rate)}"] if disk_rate else []),
        *([f"device {format_bytes(peak)} of {budget}"] if peak is not None else []),
        f"host {format_bytes(latest.host_bytes)}",
        *([f"noise scale {latest.noise_scale:.3g}"] if latest.noise_scale is not None else []),
    )


def format_progress(state: ProgressState) -> str:
    """One plain line: step, figures, time left."""
    return "  ".join((_format_step(state), *describe_progress(state), _format_left(state)))


def render_progress(state: ProgressState) -> RenderableType:
    """A bar over two lines of figures, each below 80 columns."""
    bar = Table.grid(expand=True, padding=(0, 1))
    for ratio in (None, 1, None, None):
        bar.add_column(ratio=ratio, no_wrap=True)
    bar.add_row(
        _format_step(state),
        ProgressBar(total=state.total_steps, completed=state.steps_done),
        format_share(state.steps_done / state.total_steps),
        Text(_format_left(state), style="bold"),
    )
    figures = describe_progress(state)
    lines = [" · ".join(part) for part in (figures[:3], figures[3:]) if part]
    return Group(bar, *(Text(line, style="dim") for line in lines))


class Progress:
    """Shows a run while its `with` block lasts; call `advance` after every step.

    Without a terminal it prints one line for the first step, the last, and every `log_every`.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        device_budget_bytes: int,
        samples: StepSamples = StepSamples(),
        first_step: int = 0,
        log_every: int = 10,
        console: Console | None = None,
    ) -> None:
        self._state = ProgressState(
            total_steps,
            device_budget_bytes,
            first_step,
            samples=samples,
        )
        self._first_step = first_step
        self._log_every = log_every
        self._console = console or Console()
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(
            get_renderable=lambda: render_progress(self._state), console=self._console
        )

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_live:
            self._live.stop()

    def advance(self, metrics: StepMetrics) -> None:
        """Show the step that `metrics` tells of as done."""
        self._state = self._state.after(metrics)
        if not self._is_live and self._is_due(metrics.step):
            self._console.out(format_progress(self._state), highlight=False)

    def note(self, text: str) -> None:
        """Print a line of its own, above the bar where there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _is_due(self, step: int) -> bool:
        is_first, is_last = step == self._first_step, step + 1 == self._state.total_steps
        return is_first or is_last or (step + 1) % self._log_every == 0


def _format_step(state: ProgressState) -> str:
    step, epochs = f"step {state.steps_done}/{state.total_steps}", state.epochs
    return step if epochs is None else f"{step}  epoch {epochs[0]:.2f}/{epochs[1]:.2f}"


def _format_left(state: ProgressState) -> str:
    seconds = state.seconds_left
    return f"{format_duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} left"
