"""What scripts find in ``cstorch.utils``."""

from openwafer.training.frontends.present import data, nest, tensorboard
from openwafer.training.frontends.present import rates as tracker
from openwafer.training.frontends.present import traced as step_closures
from openwafer.training.frontends.present.data import DataExecutor, DataLoader
from openwafer.training.frontends.present.distributed import CSConfig

__all__ = [
    "CSConfig",
    "DataExecutor",
    "DataLoader",
    "data",
    "nest",
    "step_closures",
    "tensorboard",
    "tracker",
]
