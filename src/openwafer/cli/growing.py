"""``openwafer batch-schedule`` reads a run and proposes sizes of its batch."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from rich.console import Console
from rich.table import Table

from openwafer.cli.tables import PLAIN_WIDTH, value_of
from openwafer.diagnostics import counted, error
from openwafer.figures import Figure, Origin
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, read_lines
from openwafer.training.noise_scale.estimators import (
    GrowthLimits,
    NoiseCourse,
    Span,
    grown_sizes,
    missing_samples,
    samples_of,
)
from openwafer.training.session import RunConfig, Session

THEORY = "McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11, at each step's noise scale"
MEASURED = "metrics.jsonl, the median of"


@dataclass(frozen=True)
class Asked:
    """Bounds of the sizes, in samples, and what else is asked; ``None`` is what the run has.

    Attributes:
        smallest, largest: bounds of the sizes.
        least_steps: fewest steps that a size holds for.
        tokens: tokens of the whole training.
        factor: multiplies the measured noise scale.
    """

    smallest: int | None
    largest: int | None
    least_steps: int
    tokens: float | None
    factor: float


@dataclass(frozen=True)
class Proposal:
    """Batch sizes for a run's training.

    Attributes:
        config: the run's.
        course: the course of the noise scale, multiplied as asked.
        spans: the proposed sizes.
        others: the run's own sizes, for the same samples.
    """

    config: RunConfig
    course: NoiseCourse
    spans: Sequence[Span]
    others: Sequence[Span]


def propose_schedule(run: Path, asked: Asked, *, trusts_code: bool) -> None:
    """Print batch sizes that follow a run's noise scale, and on standard error what they bring.

    Raises:
        OpenwaferError: ``batch-schedule`` for a run that tells none, ``option-value``.
    """
    config = Session(run, trusts_code=trusts_code).config
    rows = read_lines(config.path / "metrics.jsonl", METRICS_FORMAT).rows
    course = _course(run, config, rows, asked)
    limits = _limits(config, asked)
    spans = grown_sizes(course, limits)
    if [size for size, _ in spans] == [limits.smallest]:
        raise _nothing_to_grow(run, course, limits)
    sizes = config.batch.sizes
    steps = bisect_left(range(limits.samples + 1), limits.samples, key=sizes.before)
    proposal = Proposal(config, course, spans, tuple(sizes.spans(steps)))
    _show(proposal, asked)
    print(_as_yaml(proposal), end="")


def _course(run: Path, config: RunConfig, rows: Sequence[StepMetrics], asked: Asked) -> NoiseCourse:
    known = [(row.step, row.noise_scale) for row in rows if row.noise_scale is not None]
    if not known:
        if any(row.gradient_noise is not None for row in rows):
            raise error(
                "batch-schedule",
                f"in {run} the mean of the gradients never rose above their noise, so that the "
                "noise scale is not known",
                help="train longer, or with a larger batch",
            )
        raise error(
            "batch-schedule",
            f"{run} has not measured its noise scale",
            help="train with noise_scale: norms, or all",
        )
    if len(known) < asked.least_steps:
        raise error(
            "batch-schedule",
            f"{run} knows the noise scale of {counted(len(known), 'step')}, and a size is to hold "
            f"for {asked.least_steps} at least",
            help="train longer, or lower --least-steps",
        )
    return NoiseCourse(
        [config.batch.sizes.before(step) for step, _ in known],
        [scale * asked.factor for _, scale in known],
    )


def _limits(config: RunConfig, asked: Asked) -> GrowthLimits:
    batch = config.batch
    smallest = asked.smallest or batch.size
    if smallest % batch.samples_of_piece:
        raise error(
            "option-value",
            f"--smallest {smallest} is no multiple of the micro-batch of the run, which has "
            f"{counted(batch.samples_of_piece, 'sample')}",
            help=f"such as {batch.samples_of_piece} or {batch.size}",
        )
    if asked.largest is not None and asked.largest < 2 * smallest:
        raise error(
            "option-value",
            f"--largest {asked.largest} is below twice the smallest size, which is {smallest}",
            help=f"give {2 * smallest} or more: sizes double",
        )
    samples = batch.sizes.before(config.steps)
    if asked.tokens is not None:
        samples = int(asked.tokens) // batch.sequence_length
    if samples < asked.least_steps * smallest:
        raise error(
            "option-value",
            f"the training has {counted(samples, 'sample')}, and {asked.least_steps} steps of "
            f"{smallest} take {asked.least_steps * smallest}",
            help="lower --least-steps, or raise --tokens",
        )
    return GrowthLimits(smallest, asked.largest, asked.least_steps, samples)


def _nothing_to_grow(run: Path, course: NoiseCourse, limits: GrowthLimits) -> Exception:
    size = limits.smallest
    return error(
        "batch-schedule",
        f"the noise scale of {run} is at most {max(course.scales):.4g} samples, its median over "
        f"{limits.least_steps} steps never twice the size {size} while there is time to grow: a "
        "larger batch would cost tokens and save few steps",
        help="keep the batch, or begin with a smaller one: --smallest",
    )


def _inferred(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.INFERRED, source)


def _figures(proposal: Proposal, asked: Asked) -> Iterator[Figure]:
    spans, course = proposal.spans, proposal.course
    samples, length = samples_of(spans), proposal.config.batch.sequence_length
    before, steps = (sum(n for _, n in each) for each in (proposal.others, spans))
    times = "" if asked.factor == 1 else f", times {asked.factor:g}"
    ends = {"first": (0, asked.least_steps * spans[0][0])}
    ends["last"] = (samples - asked.least_steps * spans[-1][0], samples)
    for name, (start, end) in ends.items():
        source = f"{MEASURED} samples {start:,} to {end:,}{times}"
        scale = course.between(start, end)
        yield Figure(f"noise scale, {name}", scale, "samples", Origin.MEASURED, source)
    yield _inferred("steps of the run's sizes", before, "", "for the same tokens")
    yield _inferred("steps of these sizes", steps, "", "sizes by the noise scale, powers of two")
    yield _inferred("fewer steps", before - steps, "", "the difference")
    yield _inferred("tokens", samples * length, "", "whole steps of what was asked for")
    extra = missing_samples(spans, proposal.others, course)
    yield _inferred("extra tokens to the run's loss", extra * length, "", THEORY)
    yield _inferred("extra steps for them", extra / spans[-1][0], "", "of the last size")
    left = before - steps - extra / spans[-1][0]
    yield _inferred("fewer steps to that loss", left, "", THEORY)


def _show(proposal: Proposal, asked: Asked) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("batch schedule", "", "is", "from"):
        table.add_column(title, justify="left" if title else "right")
    for figure in _figures(proposal, asked):
        table.add_row(figure.name, value_of(figure), str(figure.origin), figure.source)
    console.print(table)


def _as_yaml(proposal: Proposal) -> str:
    batch, spans = proposal.config.batch, proposal.spans
    starts = accumulate(steps for _, steps in spans)
    changes = [
        f"    - {{from_step: {start}, size: {size}}}"
        for start, (size, _) in zip(starts, spans[1:], strict=False)
    ]
    lines = (
        f"steps: {sum(steps for _, steps in spans)}",
        "batch:",
        f"  size: {spans[0][0]}",
        f"  sequence_length: {batch.sequence_length}",
        f"  micro_batch_size: {batch.samples_of_piece}",
        *(["  schedule:", *changes] if changes else []),
    )
    return "\n".join(lines) + "\n"
