"""Optimizers by name, for runs that are described in a config."""

import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import did_you_mean, error
from openwafer.training.store.update_rules.lion import Lion
from openwafer.training.store.update_rules.rule import UpdateRule
from openwafer.training.store.update_rules.translation import from_torch

OPTIMIZERS: Mapping[str, type[Optimizer]] = MappingProxyType(
    {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "lion": Lion,
        "adafactor": torch.optim.Adafactor,
        "muon": torch.optim.Muon,
    }
)


def build_optimizer(
    name: str, params: Iterable[Any], options: Mapping[str, object] | None = None
) -> Optimizer:
    """Build an optimizer over parameters or parameter groups; fused where torch has a fused form.

    `options` are the arguments of that torch class. Raises `optimizer-unknown` and
    `optimizer-option`, the latter with torch's own words for a value it refuses.
    """
    if name not in OPTIMIZERS:
        raise error(
            "optimizer-unknown",
            f"no optimizer is called '{name}'",
            help=did_you_mean(name, OPTIMIZERS),
        )
    accepted = list(inspect.signature(OPTIMIZERS[name]).parameters)[1:]
    for option in options or {}:
        if option not in accepted:
            raise error(
                "optimizer-option",
                f"{name} has no option '{option}'",
                help=did_you_mean(option, accepted),
            )
    chosen = {"fused": True} if "fused" in accepted and "foreach" not in (options or {}) else {}
    try:
        return OPTIMIZERS[name](params, **{**chosen, **(options or {})})  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as refusal:
        raise error(
            "optimizer-option",
            f"{name} refuses its options: {refusal}",
            notes=tuple(f"{option}: {value!r}" for option, value in (options or {}).items()),
            help=f"its options are {', '.join(accepted)}",
        ) from refusal


def build_rule(name: str, options: Mapping[str, object] | None = None) -> UpdateRule:
    """The rule of a single parameter group under `options`; errors as `build_optimizer`."""
    return from_torch(build_optimizer(name, [torch.empty(1, 1)], options))[0]
