"""Predicts the time of a pass, a step and a training on published systems, and its limit.

Every formula has its source where it stands; the page docs/guide/systems.md gathers them.
"""

from openwafer.planning.throughput.passes import (
    ModelShape,
    Pass,
    PassTime,
    Resource,
    Setting,
    balance_tokens,
    pass_time,
    transformer,
)
from openwafer.planning.throughput.published_runs import PUBLISHED_RUNS, PublishedRun
from openwafer.planning.throughput.sparse_cores import (
    core_rate,
    folding_tokens,
    greatest_gain,
    row_folding,
    sparse_gain,
)
from openwafer.planning.throughput.steps import StepTime, step_time
from openwafer.planning.throughput.training import (
    affordable_flops,
    critical_batch_tokens,
    energy_joules,
    most_systems_in_proportion,
    reached_utilisation,
    speedup_to_loss,
    tokens_without_overfitting,
    training_seconds,
)

__all__ = [
    "PUBLISHED_RUNS",
    "ModelShape",
    "Pass",
    "PassTime",
    "PublishedRun",
    "Resource",
    "Setting",
    "StepTime",
    "affordable_flops",
    "balance_tokens",
    "core_rate",
    "critical_batch_tokens",
    "energy_joules",
    "folding_tokens",
    "greatest_gain",
    "most_systems_in_proportion",
    "pass_time",
    "reached_utilisation",
    "row_folding",
    "sparse_gain",
    "speedup_to_loss",
    "step_time",
    "tokens_without_overfitting",
    "training_seconds",
    "transformer",
]
