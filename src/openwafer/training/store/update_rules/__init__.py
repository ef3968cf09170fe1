"""Optimizers as rules that update one parameter at a time, in place, to torch's bits."""

from openwafer.training.store.update_rules.optimizers import OPTIMIZERS, Lamb, Lion, build_optimizer
from openwafer.training.store.update_rules.rules import UpdateRule
from openwafer.training.store.update_rules.translation import from_torch
from openwafer.training.store.update_rules.update_pass import ParamUpdate, update_parameter

__all__ = [
    "OPTIMIZERS",
    "Lamb",
    "Lion",
    "ParamUpdate",
    "UpdateRule",
    "build_optimizer",
    "from_torch",
    "update_parameter",
]
