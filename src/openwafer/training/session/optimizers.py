"""From the optimizer section of a config to torch optimizers, and their rates from step to step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import Diagnostic, Severity, did_you_mean, error
from openwafer.training.lr_schedules import Schedule
from openwafer.training.methods.seam import ParameterRules
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import OptimizerConfig, Settings
from openwafer.training.store.update_rules import build_optimizer
from openwafer.training.store.update_rules.optimizers import options_of

MUON = "muon"
BESIDE_MUON = "adamw"
# Their updates of a value depend on its row and column.
OF_MATRICES = frozenset({MUON, "adafactor"})
MAX_LISTED_NAMES = 1000
FIRST_SUM = "initial_accumulator_value"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters whose names match out of training.

    Raises:
        OpenwaferError: ``pattern-idle``, ``nothing-to-train``.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        for name in _matching(pattern, parameters, "optimizer.frozen"):
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise error(
            "nothing-to-train",
            f"all {len(parameters)} parameters are frozen",
            help="make the patterns of optimizer.frozen narrower",
        )


def build_optimizers(
    model: nn.Module, config: OptimizerConfig, rules: Sequence[ParameterRules] = ()
) -> tuple[Optimizer, ...]:
    """The torch optimizers over the model's trained parameters, one for each algorithm.

    Args:
        model: in its dense form or the sparse one.
        config: of the optimizers.
        rules: of the run's methods, one after the other.

    Raises:
        OpenwaferError: ``pattern-idle``, ``optimizer-option``, and what rules refuse.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    settings = _settings_by_name(model, trained, config, rules)
    for rule in rules:
        settings = {name: rule.scaled(name, own) for name, own in settings.items()}
    optimizers: dict[str, list[dict[str, object]]] = {}
    for each in _distinct(settings.values()):
        _check_options(each)
        params = [trained[name] for name, found in settings.items() if found == each]
        optimizers.setdefault(each.optimizer, []).append({"params": params, **each.torch_options()})
    return tuple(_build_without_states(name, groups) for name, groups in optimizers.items())


def _build_without_states(name: str, groups: Sequence[dict[str, Any]]) -> Optimizer:
    """An optimizer that has no state yet, as Adagrad would have one as large as the model."""
    hollow = [
        {**group, "params": [p.detach().to("meta") for p in group["params"]]} for group in groups
    ]
    shared = {
        option: value
        for option, value in groups[0].items()
        if option != "params" and all(group.get(option) == value for group in groups)
    }
    _require_shared(name, shared, groups)
    optimizer = build_optimizer(name, hollow, shared)
    for held, group in zip(optimizer.param_groups, groups, strict=True):
        held["params"] = group["params"]
    optimizer.state.clear()
    return optimizer


def _require_shared(
    name: str, shared: Mapping[str, object], groups: Sequence[Mapping[str, object]]
) -> None:
    """Refuse what torch reads from the optimizer alone, and passes over in its groups."""
    found = {group.get(FIRST_SUM, 0) for group in groups}
    if len(found) > 1 and FIRST_SUM not in shared:
        raise error(
            "optimizer-option",
            f"{name} begins all its sums with one {FIRST_SUM}, found {sorted(map(str, found))}",
            help=f"write {FIRST_SUM} in optimizer.options alone",
        )


def _settings_by_name(
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    config: OptimizerConfig,
    rules: Sequence[ParameterRules],
) -> dict[str, Settings]:
    chosen = Settings(config.name, config.learning_rate, config.weight_decay, config.options)
    tables = tables_of(model)
    hidden = {name for rule in rules for name in rule.hidden}
    in_rows = {name for rule in rules for name in rule.in_rows}
    settings = {}
    for name, parameter in trained.items():
        own = chosen
        # Muon turns a matrix as a map between features, which a table of embeddings is not.
        is_table = id(parameter) in tables and name not in hidden
        is_in_row = name in in_rows
        if config.name == MUON and (is_table or not (is_in_row or parameter.ndim == 2)):
            own = replace(own, optimizer=BESIDE_MUON, options={})
        is_matrix = parameter.ndim >= 2 or is_in_row
        decays = is_matrix or "weight_decay" not in options_of(own.optimizer)
        settings[name] = own if decays else replace(own, weight_decay=0.0)
    for group in config.groups:
        for pattern in group.match:
            for name in _matching(pattern, trained, "optimizer.groups"):
                settings[name] = settings[name].overridden(group)
    return settings


def _distinct(settings: Iterable[Settings]) -> list[Settings]:
    found: list[Settings] = []
    for each in settings:
        if each not in found:
            found.append(each)
    return found


def _check_options(settings: Settings) -> None:
    # torch takes any key of a group without a word; arguments it checks.
    build_optimizer(settings.optimizer, [torch.zeros(1, 1)], settings.torch_options())


def tables_of(model: nn.Module) -> set[int]:
    """Identities of the weights of embeddings and of heads."""
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return {id(module.weight) for module in (*embeddings, *_heads(model, embeddings))}


def _heads(model: nn.Module, embeddings: Sequence[nn.Embedding]) -> list[nn.Linear]:
    """The head that a model names, or else linear maps to as many as an embedding has rows.

    A table of positions may have as many rows as a hidden map has features.
    """
    named = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(named, nn.Linear):
        return [named]
    num_rows = {embedding.num_embeddings for embedding in embeddings}
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [linear for linear in linears if linear.out_features in num_rows]


def _matching(pattern: str, parameters: Mapping[str, nn.Parameter], key: str) -> list[str]:
    found = [name for name in parameters if fnmatchcase(name, pattern)]
    if not found:
        raise error(
            "pattern-idle",
            f"the pattern '{pattern}' of {key} matches none of {len(parameters)} parameters",
            help=did_you_mean(pattern, list(parameters)[:MAX_LISTED_NAMES]),
        )
    return found


class LearningRates:
    """Sets those of all parameter groups, whose present ones are the highest of the schedule.

    Args:
        optimizers: of the run.
        config: of the run.
    """

    def __init__(self, optimizers: Sequence[Optimizer], config: RunConfig) -> None:
        self._groups = list(chain.from_iterable(one.param_groups for one in optimizers))
        self._peaks = [float(str(group["lr"])) for group in self._groups]
        self._schedule = config.schedule.build(config.steps)

    def at(self, step: int) -> float:
        """That of the first group."""
        return self._peaks[0] * self._schedule(step)

    def set(self, step: int) -> None:
        """Make them those of a step."""
        factor = self._schedule(step)
        for group, peak in zip(self._groups, self._peaks, strict=True):
            group["lr"] = peak * factor


def remark_on_schedule(before: RunConfig, now: RunConfig, step: int) -> Diagnostic | None:
    """A warning where a run goes on by another schedule than its steps so far had.

    A schedule whose end is not written ends with the run, so that other ``steps`` change it.

    Args:
        before: as the run went until now.
        now: as it goes on.
        step: the next one.
    """
    old, new = before.schedule.build(before.steps), now.schedule.build(now.steps)
    if old == new:
        return None
    as_before = f"{{name: {before.schedule.name}, options: {{{_written(old)}}}}}"
    return Diagnostic(
        Severity.WARNING,
        "schedule-changed",
        f"the learning rate goes on by another schedule than it had before step {step}, where "
        f"this one gives {new(step):.4g} of the highest rate and that one {old(step):.4g}: a run "
        f"of {now.steps} steps from its beginning ends with other weights",
        notes=(
            f"before: {before.schedule.name}, {_written(old)}",
            f"now: {now.schedule.name}, {_written(new)}",
        ),
        help=f"to go on by the one before, add --set 'schedule={as_before}'; a run that may be "
        "extended names its last step in schedule.options.num_steps when it begins",
    )


def _written(schedule: Schedule) -> str:
    return ", ".join(f"{name}: {value}" for name, value in vars(schedule).items())
