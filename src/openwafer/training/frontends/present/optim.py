"""What scripts find in ``cstorch.optim``: optimizers whose states exist before their first step."""

from openwafer.training.frontends.present import lr_scheduler, weight_decay_scheduler
from openwafer.training.frontends.present.adam_variants import Adamax, NAdam, RAdam
from openwafer.training.frontends.present.configured import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_param_groups,
)
from openwafer.training.frontends.present.optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Muon,
    Optimizer,
    RMSprop,
    Rprop,
)

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_param_groups",
    "lr_scheduler",
    "weight_decay_scheduler",
]
