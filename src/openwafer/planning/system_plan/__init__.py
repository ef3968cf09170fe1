"""Plans a training on systems that are not at hand: memory, time, energy, and the limit."""

from openwafer.planning.system_plan.plan_file import write_system_plan
from openwafer.planning.system_plan.system_plan import (
    Section,
    SystemPlan,
    plan_system,
    training_section,
)
from openwafer.planning.system_plan.training_task import Activations, TrainingTask
from openwafer.planning.system_plan.ways import Mode, setting_of

__all__ = [
    "Activations",
    "Mode",
    "Section",
    "SystemPlan",
    "TrainingTask",
    "plan_system",
    "setting_of",
    "training_section",
    "write_system_plan",
]
