"""One run, from its config to its last checkpoint."""

from openwafer.training.methods.one_shot import Calibration, Pruning, PruningMethod
from openwafer.training.methods.registered import RunConfig, load_config
from openwafer.training.methods.sparsify import sparsify
from openwafer.training.session.config_sections import MatmulPrecision, Precision, Weights
from openwafer.training.session.following import follow
from openwafer.training.session.plan_table import show_plan
from openwafer.training.session.run import TrainResult
from openwafer.training.session.saved_model import ExportFormat
from openwafer.training.session.session import Session
from openwafer.training.session.systems import Systems
from openwafer.training.session.writing import Sampling

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
