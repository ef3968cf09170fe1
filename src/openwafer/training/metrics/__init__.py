"""What a run tells about itself: metrics a step, live progress, host memory, its files read back.

The report, which needs matplotlib, has a door of its own: `openwafer.training.metrics.report`.
"""

from openwafer.training.metrics.run_record import RunRecord, load_run
from openwafer.training.metrics.step_lines import (
    MASKS_FORMAT,
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    MaskChange,
    StepMetrics,
    StepWriter,
    ValidationPoint,
    read_lines,
)
from openwafer.training.metrics.step_trace import read_trace

__all__ = [
    "MASKS_FORMAT",
    "METRICS_FORMAT",
    "VALIDATION_FORMAT",
    "MaskChange",
    "RunRecord",
    "StepMetrics",
    "StepWriter",
    "ValidationPoint",
    "load_run",
    "read_lines",
    "read_trace",
]
