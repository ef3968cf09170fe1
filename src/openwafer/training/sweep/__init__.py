"""Many small runs that differ in a few values of their config, and what follows for a large one."""

from openwafer.training.sweep.ablation import Ablation, Axis, Grid, Variant
from openwafer.training.sweep.sweep import Difference, Outcome, Setting, Sweep, SweptRun

__all__ = [
    "Ablation",
    "Axis",
    "Difference",
    "Grid",
    "Outcome",
    "Setting",
    "Sweep",
    "SweptRun",
    "Variant",
]
