"""Optimizers as rules that update one parameter at a time, in place, to torch's bits."""

from openwafer.training.store.update_rules.adafactor import AdafactorRule
from openwafer.training.store.update_rules.adam import AdamRule
from openwafer.training.store.update_rules.build import (
    OPTIMIZERS,
    build_optimizer,
    build_rule,
    options_of,
)
from openwafer.training.store.update_rules.clipping import (
    clip_coefficient,
    tensor_norms,
    total_norm,
)
from openwafer.training.store.update_rules.lamb import Lamb
from openwafer.training.store.update_rules.lion import Lion, LionRule
from openwafer.training.store.update_rules.master_weights import (
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
    split_master,
)
from openwafer.training.store.update_rules.muon import MuonRule
from openwafer.training.store.update_rules.own_step import MASTER, OwnStepRule
from openwafer.training.store.update_rules.rule import Cutting, Kernel, StateSpec, UpdateRule
from openwafer.training.store.update_rules.sgd import SgdRule
from openwafer.training.store.update_rules.translation import Translator, from_torch
from openwafer.training.store.update_rules.update_pass import (
    AVERAGE,
    Averaging,
    ParamUpdate,
    state_specs,
    update_parameter,
)

__all__ = [
    "AVERAGE",
    "LOW_BITS",
    "MASTER",
    "OPTIMIZERS",
    "TIE_BITS",
    "AdafactorRule",
    "AdamRule",
    "Averaging",
    "Cutting",
    "Kernel",
    "Lamb",
    "Lion",
    "LionRule",
    "MuonRule",
    "OwnStepRule",
    "ParamUpdate",
    "SgdRule",
    "SplitMaster",
    "StateSpec",
    "Translator",
    "UpdateRule",
    "build_optimizer",
    "build_rule",
    "clip_coefficient",
    "from_torch",
    "join_master",
    "options_of",
    "split_master",
    "state_specs",
    "tensor_norms",
    "total_norm",
    "update_parameter",
]
