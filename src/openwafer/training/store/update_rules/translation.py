"""Translates a torch optimizer, as it stands at one step, into rules that make the same bits."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.own_step import (
    SEPARABLE,
    KnownStates,
    OwnStepRule,
    Snapshot,
    hyper_parameters,
)
from openwafer.training.store.update_rules.rules import AdamRule, SgdRule, UpdateRule
from openwafer.training.store.update_rules.trial import require_separable

RuleClass = type[AdamRule | SgdRule]

RULE_CLASSES: Mapping[type[Optimizer], RuleClass] = MappingProxyType(
    {torch.optim.AdamW: AdamRule, torch.optim.Adam: AdamRule, torch.optim.SGD: SgdRule}
)
"""Optimizers whose kernels are called without their class; every other takes its own step."""

_REMEDIES = MappingProxyType(
    {
        "capturable": "it serves CUDA graphs, and the store updates on the host: leave it out",
        "differentiable": "streamed weights keep no graph between steps: leave it out",
    }
)


class Translator:
    """Reads the rules of an optimizer, step after step.

    Args:
        optimizer: stays the loop's; it is only read.
        keeps_masters: whether its bf16 weights are updated as fp32 masters.

    Attributes:
        writes_gradients: whether its step has been seen to write to the gradients, as no rule does.
    """

    def __init__(self, optimizer: Optimizer, *, keeps_masters: bool = False) -> None:
        self.writes_gradients = False
        self._optimizer = optimizer
        self._keeps_masters = keeps_masters
        # A subclass may override anything, so that only the classes themselves are known.
        self._rule_class = RULE_CLASSES.get(type(optimizer))
        self._is_known = self._rule_class is not None or type(optimizer) in SEPARABLE
        self._tried: set[object] = set()
        self._states: KnownStates = {}

    def rules(self) -> tuple[UpdateRule, ...]:
        """The rule of each parameter group with the hyper-parameters of this moment.

        Call it once a step, where the plain loop has `optimizer.step()`: later changes by a
        scheduler do not reach the rules. Raises `optimizer-unsupported` for a flag that the store
        cannot honour, and for an optimizer that cannot update one parameter at a time, which is
        tried at first and whenever options change that may decide it.
        """
        optimizer = self._optimizer
        _require_no_flags(optimizer)
        if self._rule_class is not None:
            return tuple(_read(self._rule_class, group) for group in optimizer.param_groups)
        options = tuple(_switches(hyper_parameters(group)) for group in optimizer.param_groups)
        if not self._is_known and options not in self._tried:
            writes = require_separable(optimizer, keeps_masters=self._keeps_masters)
            self.writes_gradients |= writes
            self._tried.add(options)
        snapshot = Snapshot.of(optimizer)
        return tuple(
            OwnStepRule(snapshot, number, self.writes_gradients, self._states)
            for number in range(len(optimizer.param_groups))
        )


def from_torch(optimizer: Optimizer) -> tuple[UpdateRule, ...]:
    """The rule of each parameter group at this moment; see :meth:`Translator.rules`."""
    return Translator(optimizer).rules()


def _require_no_flags(optimizer: Optimizer) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for flag, remedy in _REMEDIES.items():
            if group.get(flag, False):
                raise error(
                    "optimizer-unsupported",
                    f"{type(optimizer).__name__} has {flag}=True in parameter group {number}",
                    help=remedy,
                )


def _switches(value: Any) -> object:
    """What of an option may change the course of a step: of a number, whether it is zero."""
    if isinstance(value, Mapping):
        return tuple((name, _switches(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_switches, value))
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int | float):
        return type(value), value == 0
    return type(value)


def _read(rule_class: RuleClass, group: Mapping[str, Any]) -> UpdateRule:
    """Fill a rule's fields from the entries of the same names."""
    return rule_class(*(_snapshot(group[name]) for name in rule_class.__match_args__))


def _snapshot(value: Any) -> Any:
    """A hyper-parameter that a scheduler cannot change any more, lists as tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return tuple(_snapshot(item) for item in value)
    return value
