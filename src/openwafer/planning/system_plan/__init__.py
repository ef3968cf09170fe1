"""What a training takes on systems that are not at hand: memory, time, energy, and what limits."""

from openwafer.planning.system_plan.plan_file import write_system_plan
from openwafer.planning.system_plan.system_plan import (
    Section,
    SystemPlan,
    plan_system,
    training_section,
)
from openwafer.planning.system_plan.training_task import TrainingTask
from openwafer.planning.system_plan.ways import Mode

__all__ = [
    "Mode",
    "Section",
    "SystemPlan",
    "TrainingTask",
    "plan_system",
    "training_section",
    "write_system_plan",
]
