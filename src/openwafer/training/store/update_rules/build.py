"""Optimizers by name, for runs that are described in a config."""

import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import counted, did_you_mean, error
from openwafer.training.store.update_rules.lamb import Lamb
from openwafer.training.store.update_rules.lion import Lion
from openwafer.training.store.update_rules.rule import UpdateRule
from openwafer.training.store.update_rules.translation import from_torch

OPTIMIZERS: Mapping[str, type[Optimizer]] = MappingProxyType(
    {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "lion": Lion,
        "lamb": Lamb,
        "adafactor": torch.optim.Adafactor,
        "muon": torch.optim.Muon,
        "adagrad": torch.optim.Adagrad,
        "adadelta": torch.optim.Adadelta,
        "adamax": torch.optim.Adamax,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "rmsprop": torch.optim.RMSprop,
        "asgd": torch.optim.ASGD,
        "rprop": torch.optim.Rprop,
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
    accepted = options_of(name)
    for option, value in (options or {}).items():
        if option not in accepted:
            raise error(
                "optimizer-option",
                f"{name} has no option '{option}'",
                help=did_you_mean(option, accepted),
            )
        _require_length(name, option, value, accepted[option])
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


def options_of(name: str) -> Mapping[str, object]:
    """The options of the optimizer of that name, with their defaults."""
    _, *options = inspect.signature(OPTIMIZERS[name]).parameters.values()
    return {option.name: option.default for option in options}


def _require_length(name: str, option: str, value: object, default: object) -> None:
    """Refuse what torch's constructors index without a look."""
    if not isinstance(default, tuple):
        return
    if not isinstance(value, list | tuple) or len(value) != len(default):
        found = counted(len(value), "value") if isinstance(value, list | tuple) else repr(value)
        raise error(
            "optimizer-option",
            f"{name} takes {len(default)} values for '{option}', found {found}",
            notes=(f"{option}: {value!r}",),
            help=f"write {option}: {list(default)}",
        )


def build_rule(name: str, options: Mapping[str, object] | None = None) -> UpdateRule:
    """The rule of a single parameter group under `options`; errors as `build_optimizer`."""
    return from_torch(build_optimizer(name, [torch.empty(1, 1)], options))[0]
