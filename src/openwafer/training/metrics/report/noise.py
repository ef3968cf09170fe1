"""The gradient noise scale over the steps of a run, beside the batch that it was trained with."""

from collections.abc import Iterator, Sequence

from openwafer.training.metrics.report import html
from openwafer.training.metrics.report.curves import Level, draw_step_values
from openwafer.training.metrics.report.drawing import Color, Figure, Key, Mark, Words
from openwafer.training.metrics.run_record import RunRecord
from openwafer.training.metrics.step_metrics import StepMetrics
from openwafer.training.metrics.units import Scale


def show_noise(run: RunRecord) -> Iterator[str]:
    """The section of the report, of runs that measured it."""
    rows = run.metrics.rows
    if any(row.noise_scale is not None for row in rows):
        yield html.figure(draw_noise_scale(rows))
    elif any(row.gradient_noise is not None for row in rows):
        yield html.absent("Gradient noise scale", "The gradient's mean never rose above its noise.")


def draw_noise_scale(metrics: Sequence[StepMetrics]) -> Figure:
    """The smoothed noise scale by step, against the samples of a step; one step must have it."""
    known = {row.step: row.noise_scale for row in metrics if row.noise_scale is not None}
    caption = f"Smoothed B_simple, in samples. It ends at {[*known.values()][-1]:.3g}"
    levels = []
    # Whole numbers, but for the rounding of products.
    sizes = sorted(
        {
            round(row.tokens * row.noise_scale / row.noise_scale_tokens)
            for row in metrics
            if row.noise_scale and row.noise_scale_tokens
        }
    )
    if sizes:
        marks = (Mark.LINE, Mark.DASHES)
        levels = [
            Level(size, Key(f"batch of {size}", Color.LIMIT, mark))
            for size, mark in zip(dict.fromkeys((sizes[0], sizes[-1])), marks, strict=False)
        ]
        told = " to ".join(str(level.value) for level in levels)
        caption += f", and a step has {told}. Far below it a batch costs steps, far above tokens"
    words = Words("Gradient noise scale", f"{caption}.", tuple(level.key for level in levels))
    return draw_step_values("noise-scale", words, known, Scale(1, ""), levels)
