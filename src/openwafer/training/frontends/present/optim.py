"""What scripts find in ``cstorch.optim``: optimizers whose states exist before their first step."""

from openwafer.training.frontends.present import lr_scheduler, weight_decay_scheduler
from openwafer.training.frontends.present.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lamb,
    Lion,
    Optimizer,
    RMSprop,
)

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
    "weight_decay_scheduler",
]
