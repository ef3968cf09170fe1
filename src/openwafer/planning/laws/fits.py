"""A law of any kind, fitted to points."""

from collections.abc import Sequence

from openwafer.loss_laws import LawKind
from openwafer.planning.laws.compute_law import fit_compute_law
from openwafer.planning.laws.fit_checks import check_losses
from openwafer.planning.laws.fitted import USUAL_RESAMPLING, Fitted, Law, Resampling
from openwafer.planning.laws.frontier import fit_envelope, fit_isoflop
from openwafer.planning.laws.points import TrainedPoint, check_points
from openwafer.planning.laws.size_law import fit_size_law


def fit_law(
    points: Sequence[TrainedPoint], kind: LawKind, resampling: Resampling = USUAL_RESAMPLING
) -> Fitted[Law]:
    """Fit a law of that kind.

    Raises:
        OpenwaferError: as the fit of the kind tells, ``points-rise``.
    """
    check_points(points)
    check_losses(points)
    match kind:
        case LawKind.COMPUTE:
            return fit_compute_law(points, resampling)
        case LawKind.ENVELOPE:
            return fit_envelope(points, resampling)
        case LawKind.ISOFLOP:
            return fit_isoflop(points, resampling)
        case LawKind.PARAMETRIC | LawKind.KAPLAN:
            return fit_size_law(points, kind, resampling)
