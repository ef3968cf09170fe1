"""Scaling laws, fitted and published, say what a budget can reach."""

from openwafer.figures import Figure, Origin
from openwafer.loss_laws import LawKind
from openwafer.planning.laws.compute_law import ComputeLaw, fit_compute_law
from openwafer.planning.laws.course import course_of
from openwafer.planning.laws.expectation import (
    expected_loss,
    propose,
    require_near,
    sizes_outside,
)
from openwafer.planning.laws.fit_checks import check_fit
from openwafer.planning.laws.fit_record import Answer, ComparedPoint, FitRecord, write_fit
from openwafer.planning.laws.fits import fit_law
from openwafer.planning.laws.fitted import Allocation, Fitted, Law, Resampling
from openwafer.planning.laws.frontier import FrontierLaw, fit_envelope, fit_isoflop
from openwafer.planning.laws.point_files import read_points
from openwafer.planning.laws.points import (
    CurvePoint,
    TrainedPoint,
    check_points,
    conditions_of,
)
from openwafer.planning.laws.published import (
    CEREBRAS_GPT,
    KAPLAN_BATCH,
    KAPLAN_COMPUTE,
    KAPLAN_SIZE,
    CriticalBatch,
    SizeLaw,
)
from openwafer.planning.laws.run_settings import (
    best_of_rates,
    critical_batch,
    learning_rate,
)
from openwafer.planning.laws.size_law import SizeTokensLaw, fit_size_law

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
    "CurvePoint",
    "Figure",
    "FitRecord",
    "Fitted",
    "FrontierLaw",
    "Law",
    "LawKind",
    "Origin",
    "Resampling",
    "SizeLaw",
    "SizeTokensLaw",
    "TrainedPoint",
    "best_of_rates",
    "check_fit",
    "check_points",
    "conditions_of",
    "course_of",
    "critical_batch",
    "expected_loss",
    "fit_compute_law",
    "fit_envelope",
    "fit_isoflop",
    "fit_law",
    "fit_size_law",
    "learning_rate",
    "propose",
    "read_points",
    "require_near",
    "sizes_outside",
    "write_fit",
]
