"""Many small runs that differ in a few values of their config, and what follows for a large one."""

from openwafer.training.sweep.ablation import (
    Ablation,
    Choice,
    Variant,
    require_variants,
    telling_of,
    variants_of,
)
from openwafer.training.sweep.difference import Difference, difference_of, standard_errors
from openwafer.training.sweep.grid import Axis, Grid, parse_axis
from openwafer.training.sweep.outcome import Outcome, Setting, best_of, noise_of, outcomes_of
from openwafer.training.sweep.sweep import Progress, Sweep
from openwafer.training.sweep.sweep_file import SweptRun
from openwafer.training.sweep.transfer import parse_widths, transferred
from openwafer.training.sweep.variant_file import read_variants

__all__ = [
    "Ablation",
    "Axis",
    "Choice",
    "Difference",
    "Grid",
    "Outcome",
    "Progress",
    "Setting",
    "Sweep",
    "SweptRun",
    "Variant",
    "best_of",
    "difference_of",
    "noise_of",
    "outcomes_of",
    "parse_axis",
    "parse_widths",
    "read_variants",
    "require_variants",
    "standard_errors",
    "telling_of",
    "transferred",
    "variants_of",
]
