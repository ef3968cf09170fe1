"""Scaling laws: fitted to trained models, published, and what they say of a budget."""

from openwafer.planning.figures import Figure, Origin
from openwafer.planning.laws.compute_law import ComputeLaw, fit_compute_law
from openwafer.planning.laws.expectation import expected_loss, propose, require_near
from openwafer.planning.laws.fit_record import Answer, ComparedPoint, FitRecord, write_fit
from openwafer.planning.laws.fitted import Allocation, Fitted, Law
from openwafer.planning.laws.point_files import read_points
from openwafer.planning.laws.points import TrainedPoint, check_points
from openwafer.planning.laws.published import (
    CEREBRAS_GPT,
    KAPLAN_BATCH,
    KAPLAN_COMPUTE,
    KAPLAN_SIZE,
    CriticalBatch,
    SizeLaw,
)

__all__ = [
    "CEREBRAS_GPT",
    "KAPLAN_BATCH",
    "KAPLAN_COMPUTE",
    "KAPLAN_SIZE",
    "Allocation",
    "Answer",
    "ComparedPoint",
    "ComputeLaw",
    "CriticalBatch",
    "Figure",
    "FitRecord",
    "Fitted",
    "Law",
    "Origin",
    "SizeLaw",
    "TrainedPoint",
    "check_points",
    "expected_loss",
    "fit_compute_law",
    "propose",
    "read_points",
    "require_near",
    "write_fit",
]
