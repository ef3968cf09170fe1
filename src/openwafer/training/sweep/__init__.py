"""Many small runs that differ in a few values of their config, and what follows for a large one."""

from openwafer.training.sweep.grid import Axis, Grid, parse_axis
from openwafer.training.sweep.outcome import Outcome, Setting, best_of, noise_of, outcomes_of
from openwafer.training.sweep.sweep import Progress, Sweep
from openwafer.training.sweep.sweep_file import SweptRun
from openwafer.training.sweep.transfer import parse_widths, transferred

__all__ = [
    "Axis",
    "Grid",
    "Outcome",
    "Progress",
    "Setting",
    "Sweep",
    "SweptRun",
    "best_of",
    "noise_of",
    "outcomes_of",
    "parse_axis",
    "parse_widths",
    "transferred",
]
