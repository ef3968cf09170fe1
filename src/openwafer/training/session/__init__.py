"""One run, from its config to its last checkpoint."""

from openwafer.training.methods.pruning.options import Calibration, Pruning, PruningMethod
from openwafer.training.methods.pruning.sparsify import sparsify
from openwafer.training.methods.registered import RunConfig, load_config
from openwafer.training.session.export import ExportFormat
from openwafer.training.session.following import follow
from openwafer.training.session.generation import Sampling
from openwafer.training.session.plan_table import show_plan
from openwafer.training.session.precision import MatmulPrecision, Precision, Weights
from openwafer.training.session.session import Session
from openwafer.training.session.systems import Systems
from openwafer.training.session.training_loop import TrainResult

__all__ = [
    "Calibration",
    "ExportFormat",
    "MatmulPrecision",
    "Precision",
    "Pruning",
    "PruningMethod",
    "RunConfig",
    "Sampling",
    "Session",
    "Systems",
    "TrainResult",
    "Weights",
    "follow",
    "load_config",
    "show_plan",
    "sparsify",
]
