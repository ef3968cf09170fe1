"""muP: initial values, learning rates and multipliers that let settings carry over widths."""

from openwafer.training.parametrization.depth import (
    Layers,
    depths_of,
    layers_of,
    require_same_branches,
    sequence_lengths,
    stds_by_layer,
)
from openwafer.training.parametrization.draws import Draws
from openwafer.training.parametrization.factors import (
    Factors,
    branch_factor,
    factors_of,
    std_factor,
)
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
    "Layers",
    "Mup",
    "Role",
    "analyse",
    "branch_factor",
    "depths_of",
    "factors_of",
    "layers_of",
    "require_same_branches",
    "scale_initial_weights",
    "sequence_lengths",
    "std_factor",
    "stds_by_layer",
    "take_mup",
]
