"""What a run tells about itself: metrics a step, live progress, host memory, its files read back.

The report, which needs matplotlib, has a door of its own: `openwafer.training.metrics.report`.
"""

from openwafer.training.metrics.compute_share import ComputeShare, compute_share
from openwafer.training.metrics.environment import write_environment
from openwafer.training.metrics.host_memory import HostMemory, read_host_memory
from openwafer.training.metrics.mask_record import (
    MASKS_FORMAT,
    MaskChange,
    MaskPicture,
    picture_of,
    write_pictures,
)
from openwafer.training.metrics.progress import Progress
from openwafer.training.metrics.run_record import RunRecord, load_run
from openwafer.training.metrics.sample_record import GeneratedSample, write_sample
from openwafer.training.metrics.step_lines import StepLines, StepWriter, read_lines
from openwafer.training.metrics.step_metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    ValidationPoint,
)
from openwafer.training.metrics.step_trace import read_trace
from openwafer.training.metrics.token_identity import TokenIdentity, read_tokens, write_tokens

__all__ = [
    "MASKS_FORMAT",
    "METRICS_FORMAT",
    "VALIDATION_FORMAT",
    "ComputeShare",
    "GeneratedSample",
    "HostMemory",
    "MaskChange",
    "MaskPicture",
    "Progress",
    "RunRecord",
    "StepLines",
    "StepMetrics",
    "StepWriter",
    "TokenIdentity",
    "ValidationPoint",
    "compute_share",
    "load_run",
    "picture_of",
    "read_host_memory",
    "read_lines",
    "read_tokens",
    "read_trace",
    "write_environment",
    "write_pictures",
    "write_sample",
    "write_tokens",
]
