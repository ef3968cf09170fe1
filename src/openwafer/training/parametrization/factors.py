"""The table of muP: what a parameter's role does to its initial values and to its updates.

Yang et al. 2022, arXiv:2203.03466: Table 8, with the output multiplier in the forward, and Table 3
where it is folded into initial values and rates (``Role.is_folded``). Density: Dey et al. 2024,
arXiv:2405.15743, where the fan in of a sparse matrix counts the weights that are kept. Muon: an
update of spectral norm sqrt(fan_out / fan_in), Yang et al. 2023, arXiv:2310.17813. Adam's eps: 1 /
width, as gradients are, Dey et al. 2025, arXiv:2505.01618. So is depth, with its alpha of 1, whose
multiplier of branches is folded into what ends them (``Role.ends_branch``).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import error
from openwafer.training.parametrization.roles import Kind, Role

MATCHED_RMS: Final = "match_rms_adamw"
PROPORTIONAL: Final = "sgd"


@dataclass(frozen=True)
class Factors:
    """What multiplies the settings of the base model.

    Attributes:
        std: of the initial standard deviation.
        learning_rate: of the learning rate.
        weight_decay: of the weight decay; the product with the learning rate stays, which is what
            an update subtracts.
        multiplier: of the output, in the forward.
        gradient: of the size of a gradient's elements, and so of what stands beside them: Adam's
            eps.
    """

    std: float
    learning_rate: float
    weight_decay: float
    multiplier: float
    gradient: float


def factors_of(role: Role, optimizer: str, options: Mapping[str, object] | None = None) -> Factors:
    """The factors of a parameter under an optimizer, by the names of a config.

    Args:
        role: of the parameter.
        optimizer: one of :data:`RATES`.
        options: of that optimizer.

    Raises:
        OpenwaferError: ``mup-optimizer`` for any other.
    """
    if optimizer not in RATES:
        raise error(
            "mup-optimizer",
            f"muP has no rule for the learning rates of {optimizer}",
            help=f"it has one for: {', '.join(RATES)}",
        )
    rate = RATES[optimizer](role, options or {}) * _depth_rate(role, optimizer)
    is_multiplied = role.kind is Kind.OUTPUT and not role.is_folded
    multiplier = 1 / role.fan_in if is_multiplied else 1.0
    return Factors(std_factor(role), rate, 1 / rate, multiplier, gradient_factor(role))


def std_factor(role: Role) -> float:
    """What multiplies the initial standard deviation, under any optimizer."""
    if role.kind is Kind.OUTPUT:
        width = 1 / role.fan_in if role.is_folded else 1.0
    else:
        width = 1 / (math.sqrt(role.fan_in * role.density) * role.own_scale)
    return width * branch_factor(role)


def branch_factor(role: Role) -> float:
    """What multiplies a branch, in the values of the parameters that it ends with."""
    return 1 / role.depth if role.ends_branch else 1.0


def gradient_factor(role: Role) -> float:
    """How large the elements of a gradient are.

    What goes back through the output's multiplier, or its initial values, is 1 / width; the
    gradient of a folded output does not pass it. What goes back into a branch passes the parameters
    that it ends with, which are 1 / depth.
    """
    depth = 1.0 if role.ends_branch else 1 / role.depth
    if role.kind is Kind.OUTPUT:
        return depth if role.is_folded else depth / role.fan_in
    return depth * role.own_scale / role.fan_out


def _per_element(role: Role, _options: Mapping[str, object]) -> float:
    """Of optimizers whose updates do not depend on how large gradients are."""
    if role.kind is Kind.OUTPUT:
        return 1 / role.fan_in if role.is_folded else 1.0
    return 1 / (role.fan_in * role.density * role.own_scale)


def _proportional(role: Role, _options: Mapping[str, object]) -> float:
    """Of SGD, whose updates are as large as gradients are."""
    if role.kind is Kind.OUTPUT:
        return 1 / role.fan_in if role.is_folded else role.fan_in
    return role.fan_out / (role.fan_in * role.density * role.own_scale**2)


def _orthogonal(role: Role, options: Mapping[str, object]) -> float:
    """Of Muon, whose updates have a spectral norm that torch adjusts to the shape."""
    adjust = options.get("adjust_lr_fn")

    def adjusted(shape: tuple[int, ...]) -> float:
        rows, columns = shape[:2]
        if adjust == MATCHED_RMS:
            return math.sqrt(max(rows, columns))
        return math.sqrt(max(1, rows / columns))

    wanted = math.sqrt(role.fan_out / role.fan_in)
    if role.kind is Kind.OUTPUT:
        wanted = 1 / math.sqrt(role.fan_in) if role.is_folded else math.sqrt(role.fan_in)
    return wanted * adjusted(role.base_shape) / adjusted(role.shape)


def _depth_rate(role: Role, optimizer: str) -> float:
    """Of a branch: its updates stay as they are, but for those of what ends it, which shrink.

    The size of a gradient in a branch is 1 / depth, and SGD makes up for that.
    """
    if role.ends_branch or optimizer != PROPORTIONAL:
        return branch_factor(role)
    return role.depth


RATES: Final[Mapping[str, Callable[[Role, Mapping[str, object]], float]]] = {
    "adamw": _per_element,
    "adam": _per_element,
    "nadam": _per_element,
    "lion": _per_element,
    PROPORTIONAL: _proportional,
    "muon": _orthogonal,
}
