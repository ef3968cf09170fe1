"""The optimizer section of a config."""

from dataclasses import dataclass, field

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import did_you_mean
from openwafer.training.store.update_rules import OPTIMIZERS


@dataclass(frozen=True)
class GroupConfig:
    """Parameters with settings of their own.

    Attributes:
        match: patterns of parameter names, such as ``*.norm.weight``; later groups win.
        name: another optimizer for them.
        learning_rate: in place of the optimizer section's.
        weight_decay: in place of the optimizer section's, for vectors too.
        options: on top of the optimizer section's; alone where `name` is another optimizer.
    """

    match: tuple[str, ...]
    name: str | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_known(self.name)
        _require_not_negative(self)


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes:
        name: adamw, adam, sgd, lion, lamb, adafactor, muon, adagrad, adadelta, adamax, nadam,
            radam, rmsprop, asgd or rprop; muon takes the hidden matrices and leaves the rest to
            adamw.
        learning_rate: at its peak; the schedule multiplies it.
        weight_decay: of matrices, as vectors (norms, biases) have none; ``None`` is the
            optimizer's own default.
        options: further arguments of the torch class of that name.
        groups: parameters with other settings.
        frozen: patterns of parameters that are never updated.
    """

    name: str = "adamw"
    learning_rate: float = 3e-4
    weight_decay: float | None = None
    options: dict[str, object] = field(default_factory=dict)
    groups: tuple[GroupConfig, ...] = ()
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_known(self.name)
        _require_not_negative(self)


def _require_known(name: str | None) -> None:
    if name is not None and name not in OPTIMIZERS:
        raise InvalidFieldError(
            "name", f"no optimizer is called '{name}'", help=did_you_mean(name, OPTIMIZERS)
        )


def _require_not_negative(config: OptimizerConfig | GroupConfig) -> None:
    for name in ("learning_rate", "weight_decay"):
        found = getattr(config, name)
        if found is not None and not found >= 0:
            raise InvalidFieldError(name, f"expected at least 0, found {found}")
    for taken, own in (("lr", "learning_rate"), ("params", "match"), ("weight_decay", "")):
        if taken in config.options:
            raise InvalidFieldError(
                "options", f"'{taken}' has a key of its own", help=f"write {own or taken}: ..."
            )
