"""Many small runs that differ in a few values of their config, and what follows for a large one."""

from openwafer.training.sweep.ablation import Ablation, Variant
from openwafer.training.sweep.difference import Difference
from openwafer.training.sweep.grid import Axis, Grid
from openwafer.training.sweep.outcome import Outcome, Setting
from openwafer.training.sweep.sweep import Sweep
from openwafer.training.sweep.sweep_file import SweptRun

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
