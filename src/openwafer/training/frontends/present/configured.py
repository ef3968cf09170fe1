"""Optimizers and schedules by the names of a config, as scripts of the releases 2.0 to 2.2 ask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from torch import nn

from openwafer.diagnostics import did_you_mean, error
from openwafer.training.frontends.present import adam_variants, lr_scheduler, optimizers
from openwafer.training.frontends.present.optimizers import Optimizer
from openwafer.training.frontends.scripts.param_groups import param_groups

__all__ = ["configure_lr_scheduler", "configure_optimizer", "configure_param_groups"]

_OPTIMIZERS: Final = {
    kind.__name__.lower(): kind
    for module in (optimizers, adam_variants)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}
_SCHEDULES: Final = {
    name.lower().removesuffix("lr"): getattr(lr_scheduler, name) for name in lr_scheduler.__all__
}
# Groups of muP, where a model names none of its own (`lr_adjustment_groups`).
_ADJUSTED: Final = {
    "embedding": "*embedding*weight",
    "decoder_kernel": ("*decoder*dense*weight", "*decoder*linear*weight"),
}
_RENAMED: Final = {"steps": "total_iters", "decay_steps": "total_iters"}
_MOST_LR: Final = 0.1


def configure_param_groups(
    model: nn.Module, optimizer_params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Parameters that train, with and without weight decay, by the factor of their learning rate.

    Args:
        model: whose parameters they are.
        optimizer_params: ``weight_decay``, and ``adjust_learning_rate``, which gives groups of
            names their factors.

    Raises:
        OpenwaferError: ``present-config`` for a group that is not known; ``trainer-groups``.
    """
    factors: Mapping[str, float] = optimizer_params.get("adjust_learning_rate") or {}
    known = getattr(model, "lr_adjustment_groups", _ADJUSTED)
    tagged = [
        {"params": _known("group of adjust_learning_rate", name, known), "tag": name}
        for name in factors
    ]
    groups = param_groups(model, float(optimizer_params.get("weight_decay") or 0.0), tagged)
    for group in groups:
        for tag in group.pop("tags", ()):
            group["adjust_learning_rate"] = float(factors[tag])
    return groups


def configure_optimizer(optimizer_type: str, params: Iterable[Any], **options: Any) -> Optimizer:
    """An optimizer of :mod:`optim` by its name, in any case of letters.

    Args:
        optimizer_type: see above.
        params: parameters, or groups of them.
        options: of the optimizer; ``learning_rate`` stands for its first ``lr`` where it is a
            number, else a schedule sets it.

    Raises:
        OpenwaferError: ``present-config`` for a name or an option that is not known.
    """
    kind = _known("optimizer", optimizer_type, _OPTIMIZERS)
    rate = options.pop("learning_rate", None)
    if "lr" not in options:
        options["lr"] = float(rate) if isinstance(rate, int | float | str) else _MOST_LR
    return _made(kind, params, options)  # type: ignore[no-any-return]


def configure_lr_scheduler(
    optimizer: Optimizer, learning_rate: Any, adjust_learning_rate: Any = None
) -> lr_scheduler.LRScheduler | None:
    """A schedule of :mod:`lr_scheduler` by its name, ``Linear`` for ``LinearLR``.

    Args:
        optimizer: whose groups it sets.
        learning_rate: a number, a mapping of ``scheduler`` and its options, or a list of these, of
            which each lasts its ``total_iters``; None for no schedule.
        adjust_learning_rate: whether groups have factors, as :func:`configure_param_groups` makes.

    Raises:
        OpenwaferError: ``present-config`` for what is not known, or says not how long it lasts.
    """
    if learning_rate is None:
        return None
    listed = learning_rate if isinstance(learning_rate, list | tuple) else [learning_rate]
    made = [_schedule(optimizer, one) for one in listed]
    found = made[0]
    if len(made) > 1:
        found = lr_scheduler.SequentialLR(optimizer, made, _milestones(listed[:-1]))
    return lr_scheduler.ScalePerParamLR(optimizer, found) if adjust_learning_rate else found


def _schedule(optimizer: Optimizer, written: Any) -> lr_scheduler.LRScheduler:
    if isinstance(written, int | float | str):
        return lr_scheduler.ConstantLR(optimizer, float(written))
    options = _renamed(written)
    name = str(options.pop("scheduler", ""))
    kind = _known("schedule", name.lower().removesuffix("lr"), _SCHEDULES)
    return _made(kind, optimizer, options)  # type: ignore[no-any-return]


def _renamed(written: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in written.items()}


def _milestones(written: Sequence[Mapping[str, Any]]) -> list[int]:
    found, reached = list[int](), 0
    for one in map(_renamed, written):
        if "total_iters" not in one:
            raise error(
                "present-config",
                f"the schedule {one} is followed by another one, and has no total_iters",
                help="say how many steps it lasts",
            )
        reached += one["total_iters"]
        found.append(reached)
    return found


def _known(what: str, name: str, known: Mapping[str, Any]) -> Any:
    found = known.get(name, known.get(str(name).lower()))
    if found is None:
        raise error(
            "present-config", f"there is no {what} {name!r}", help=did_you_mean(str(name), known)
        )
    return found


def _made(kind: Any, first: Any, options: Mapping[str, Any]) -> Any:
    try:
        return kind(first, **options)
    except TypeError as cause:
        raise error(
            "present-config",
            f"{kind.__name__} is made from {dict(options)}: {cause}",
            help=f"write options that cstorch's {kind.__name__} has",
        ) from cause
