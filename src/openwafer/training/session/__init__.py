"""One run, from its config to its last checkpoint."""

from openwafer.training.methods.counts.layer_count import LayerCount, count_layers
from openwafer.training.methods.counts.step_count import StepCount, count_step
from openwafer.training.methods.mup.coordinates import (
    CoordinateCheck,
    check_coordinates,
    check_depths,
)
from openwafer.training.methods.pruning.options import Calibration, Pruning, PruningMethod
from openwafer.training.methods.pruning.sparsify import PrunedModel, sparsify
from openwafer.training.methods.registered import RunConfig, load_config
from openwafer.training.session.export import ExportFormat
from openwafer.training.session.following import follow
from openwafer.training.session.generation import GeneratedTexts, Sampling
from openwafer.training.session.plan_table import show_plan
from openwafer.training.session.precision import MatmulPrecision, Precision, Weights
from openwafer.training.session.run_conditions import RunConditions, run_conditions
from openwafer.training.session.session import Session
from openwafer.training.session.systems import Systems
from openwafer.training.session.training_loop import TrainResult

__all__ = [
    "Calibration",
    "CoordinateCheck",
    "ExportFormat",
    "GeneratedTexts",
    "LayerCount",
    "MatmulPrecision",
    "Precision",
    "PrunedModel",
    "Pruning",
    "PruningMethod",
    "RunConditions",
    "RunConfig",
    "Sampling",
    "Session",
    "StepCount",
    "Systems",
    "TrainResult",
    "Weights",
    "check_coordinates",
    "check_depths",
    "count_layers",
    "count_step",
    "follow",
    "load_config",
    "run_conditions",
    "show_plan",
    "sparsify",
]
