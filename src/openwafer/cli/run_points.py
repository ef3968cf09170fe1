"""Reads the points of scaling laws from run folders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.planning.laws import CurvePoint, TrainedPoint, read_points
from openwafer.training.methods.step_count import StepCount, count_step
from openwafer.training.metrics import RunRecord, ValidationPoint, load_run
from openwafer.training.metrics.run_record import TOKENS
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.held_out_losses import HeldOutLosses
from openwafer.training.session.run_conditions import run_conditions

DIVERGED = 1.05
"""A run has diverged whose last held-out loss is so many times its least."""


@dataclass(frozen=True)
class Reading:
    """Rules for reading runs: whether to leave out those that are no points, and to trust code."""

    leaves_out: bool
    trusts_code: bool


def read_sources(
    sources: Sequence[Path], reading: Reading
) -> tuple[list[TrainedPoint], list[Diagnostic]]:
    """The points of files and of run folders, and warnings of runs that are left out.

    Raises:
        OpenwaferError: ``runs-unfinished`` for runs that ended early or diverged, all of them,
            unless they are to be left out; ``run-without-evaluation``; and what `read_points` and
            `load_run` raise.
    """
    points: list[TrainedPoint] = []
    unfit: list[str] = []
    counts = StepCounts()
    for source in sources:
        if not source.is_dir():
            points += read_points(source)
            continue
        run = load_run(source)
        config = Session(source, trusts_code=reading.trusts_code).config
        reason = _why_unfit(run, config)
        if reason:
            unfit.append(f"{source} {reason}")
        else:
            points.append(point_of(source, run, config, counts.of(config)))
    if unfit and not reading.leaves_out:
        raise error(
            "runs-unfinished",
            f"{unfit[0]}, so its loss is not one that a law can tell of",
            notes=tuple(unfit[1:]),
            help="go on with it: openwafer resume RUN, with --set early_stopping=null where that "
            "ended it; or leave such runs out: --leave-out-unfinished",
        )
    return points, [
        Diagnostic(Severity.WARNING, "runs-unfinished", f"{text}; it is left out") for text in unfit
    ]


def _why_unfit(run: RunRecord, config: RunConfig) -> str:
    """Why the end of a run is none; empty where it is one."""
    rows, held_out = run.metrics.rows, _held_out(run)
    done = rows[-1].step + 1 if rows else 0
    if rows and not math.isfinite(rows[-1].loss):
        return f"diverged: the loss of step {rows[-1].step} is {rows[-1].loss}"
    if done < config.steps:
        by = "was ended by early_stopping" if _is_spent(config, held_out) else "ended"
        return f"{by} after {done} of {config.steps} steps"
    if config.evaluate is None or not held_out or held_out[-1].step + 1 < config.steps:
        raise error(
            "run-without-evaluation",
            f"{run.name} has no held-out loss of its last step",
            help="train with evaluate: {every: ...}, as laws are fitted to held-out losses",
        )
    last, least = held_out[-1].loss, min(point.loss for point in held_out)
    if not last <= DIVERGED * least:
        return f"diverged: its held-out loss rose from {least:.4g} to {last:.4g}"
    return ""


def _is_spent(config: RunConfig, held_out: Sequence[ValidationPoint]) -> bool:
    losses = HeldOutLosses(config.early_stopping)
    for point in held_out:
        losses.add(point)
    return losses.is_spent


def _held_out(run: RunRecord) -> tuple[ValidationPoint, ...]:
    return () if run.validation is None else run.validation.rows


class StepCounts:
    """Counts the operators of a step, once for all runs of one model."""

    def __init__(self) -> None:
        self._known: list[tuple[object, StepCount]] = []

    def of(self, config: RunConfig) -> StepCount:
        """The count of a config's steps. Raises OpenwaferError, as `count_step`."""
        # The sparsity of a run may change along its steps.
        steps = config.steps if config.sparsity is not None else 0
        key = (config.model, config.data, config.batch.sequence_length, config.sparsity, steps)
        for known, count in self._known:
            if known == key:
                return count
        self._known.append((key, count_step(config)))
        return self._known[-1][1]


def point_of(folder: Path, run: RunRecord, config: RunConfig, count: StepCount) -> TrainedPoint:
    """A run that has ended and was evaluated then; `count` is of its config."""
    rows, held_out = run.metrics.rows, _held_out(run)
    sizes = config.batch.sizes
    # A kill may have cost a line of a step that was done.
    sample_tokens = sum(row.tokens for row in rows) / sum(sizes.at(row.step) for row in rows)
    tokens = sample_tokens * sizes.before(config.steps)
    conditions = run_conditions(config, count.sparsity)
    identity = TOKENS.read(folder)
    return TrainedPoint(
        loss=held_out[-1].loss,
        flops=(count.forward_flops + count.backward_flops) * tokens,
        parameters=count.parameters,
        tokens=tokens,
        tokenizer=identity.tokenizer,
        data=identity.data,
        name=run.name,
        precision=conditions.precision,
        sequence_length=conditions.sequence_length,
        sparsity=conditions.sparsity,
        schedule=conditions.schedule,
        held_out_tokens=conditions.held_out_tokens,
        batch_tokens=tokens / config.steps,
        learning_rate=config.optimizer.learning_rate,
        parametrization=str(config.parametrization),
        noise_scale_tokens=rows[-1].noise_scale_tokens,
        curve=tuple(
            CurvePoint(sizes.before(row.step + 1) * sample_tokens, row.loss) for row in held_out
        ),
    )
