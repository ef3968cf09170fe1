"""muP on the settings of parameters: learning rates, weight decay and Adam's eps."""

from collections.abc import Mapping

from openwafer.diagnostics import error
from openwafer.training.parametrization.roles import Role, branch_factor, factors_of
from openwafer.training.session.config_sections import OptimizerConfig, Settings
from openwafer.training.store.update_rules.optimizers import options_of

DECAY = "weight_decay"
DECOUPLED = "decoupled_weight_decay"
# Of these, weight decay is part of the gradient, whose size their updates do not see.
NORMALISING = ("adam", "nadam")
PROPORTIONAL = "sgd"
EPS = "eps"
ADAMS = ("adamw", *NORMALISING)


def scaled(settings: Settings, role: Role) -> Settings:
    """Settings of the base model, for a parameter of a model of another width.

    Raises:
        OpenwaferError: ``mup-optimizer``, ``mup-weight-decay``.
    """
    name = settings.optimizer
    factors = factors_of(role, name, settings.options)
    decay = settings.weight_decay
    if decay is None:
        default = options_of(name)[DECAY]
        assert isinstance(default, int | float)
        decay = default
    if decay and name in NORMALISING and not settings.options.get(DECOUPLED):
        raise error(
            "mup-weight-decay",
            f"{name} adds weight decay to the gradient, for which muP has no rule",
            help=f"set optimizer.name to adamw, or options: {{{DECOUPLED}: true}}",
        )
    return Settings(
        name,
        settings.learning_rate * factors.learning_rate,
        decay * factors.weight_decay,
        _beside(settings, factors.gradient),
    )


def _beside(settings: Settings, gradient: float) -> Mapping[str, object]:
    """Options whose eps, where it is added to the root of squared gradients, is of their size."""
    if settings.optimizer not in ADAMS or gradient == 1:
        return settings.options
    eps = settings.options.get(EPS, options_of(settings.optimizer)[EPS])
    assert isinstance(eps, int | float)
    return {**settings.options, EPS: eps * gradient}


def require_clippable(roles: Mapping[str, Role], config: OptimizerConfig) -> None:
    """Refuse a clip that would make updates depend on the width or the depth.

    What is in weights in place of a multiplier of the forward has gradients that do not shrink with
    the width, or the depth, and the norm of all gradients grows. The updates of SGD would shrink
    with it; those of the others do not follow the size of gradients.

    Raises:
        OpenwaferError: ``mup-clip``.
    """
    names = {config.name, *(group.name for group in config.groups)}
    if PROPORTIONAL not in names:
        return
    for side, folded in (
        ("width", [name for name, role in roles.items() if role.is_folded]),
        ("depth", [name for name, role in roles.items() if branch_factor(role) != 1]),
    ):
        if folded:
            raise error(
                "mup-clip",
                f"the norm of all gradients grows with the {side} by that of {folded[0]!r}, and "
                "SGD's updates shrink where it is clipped",
                help="set clip_norm: null, or take adamw",
            )
