"""muP: initial values, learning rates and multipliers that let settings carry over widths."""

from openwafer.training.parametrization.draws import Draws
from openwafer.training.parametrization.factors import Factors, factors_of, std_factor
from openwafer.training.parametrization.mup import (
    Mup,
    analyse,
    scale_initial_weights,
    take_mup,
)
from openwafer.training.parametrization.roles import Kind, Role

__all__ = [
    "Draws",
    "Factors",
    "Kind",
    "Mup",
    "Role",
    "analyse",
    "factors_of",
    "scale_initial_weights",
    "std_factor",
    "take_mup",
]
