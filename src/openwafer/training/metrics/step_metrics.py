"""The rows of metrics.jsonl and validation.jsonl in a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.training.metrics.step_lines import LineFormat


@dataclass(frozen=True)
class StepMetrics:
    """The work and the cost of one training step.

    `step` counts from 0. `grad_norm` is the global norm before clipping, None when it was not
    computed. `tokens` were trained on in this step, in `seconds` of wall time. Fetch and push
    bytes crossed the link between store and device; `host_bytes` is the resident set.
    `device_bytes_peak` is None where the step was not metered. `expert_bytes` are those of the
    experts' weights that the step used, None where no experts stream one by one. Where several
    systems ran the step, there is a number for each, in the order of ranks: `system_seconds` from
    the beginning of its forward to the end of its backward, `system_waiting_seconds` of these in
    which it waited for others, and `system_received_bytes` that came from them; None otherwise.
    Where it is measured, there are the gradient noise scale, smoothed, in samples (`noise_scale`)
    and in tokens, and of this step alone squared norm of the gradient (`gradient_signal`) and
    variance of one sample's gradient (`gradient_noise`), both unbiased.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    tokens: int
    tokens_per_second: float
    seconds: float
    fetch_bytes: int
    push_bytes: int
    disk_read_bytes: int
    disk_write_bytes: int
    device_bytes_peak: int | None
    host_bytes: int
    expert_bytes: int | None = None
    system_seconds: tuple[float, ...] | None = None
    system_waiting_seconds: tuple[float, ...] | None = None
    system_received_bytes: tuple[int, ...] | None = None
    noise_scale: float | None = None
    noise_scale_tokens: float | None = None
    gradient_signal: float | None = None
    gradient_noise: float | None = None


def measured_peaks(metrics: Sequence[StepMetrics]) -> dict[int, int]:
    """The highest device memory by step, of the steps that were metered."""
    return {row.step: row.device_bytes_peak for row in metrics if row.device_bytes_peak is not None}


@dataclass(frozen=True)
class ValidationPoint:
    """The loss on held-out data with the parameters that step `step` left behind.

    Where a scaling law judges it, it has the bounds that the law expects, and whether the loss is
    between them.
    """

    step: int
    loss: float
    expected_low: float | None = None
    expected_high: float | None = None
    is_on_track: bool | None = None


METRICS_FORMAT: Final = LineFormat("openwafer-metrics", 2, StepMetrics, oldest=1)
VALIDATION_FORMAT: Final = LineFormat("openwafer-validation", 2, ValidationPoint, oldest=1)
