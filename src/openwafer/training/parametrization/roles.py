"""Which dims of a parameter are widths, and what muP makes of its initial values and updates.

Yang et al. 2022, arXiv:2203.03466: Table 8, with the output multiplier in the forward, and Table 3
where it is folded into initial values and rates (``Role.is_folded``). Density: Dey et al. 2024,
arXiv:2405.15743, where the fan in of a sparse matrix counts the weights that are kept. Muon: an
update of spectral norm sqrt(fan_out / fan_in), Yang et al. 2023, arXiv:2310.17813. Adam's eps: 1 /
width, as gradients are, Dey et al. 2025, arXiv:2505.01618. So is depth, with its alpha of 1, whose
multiplier of branches is folded into what ends them (``Role.ends_branch``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from openwafer.diagnostics import error
from openwafer.training.parametrization.observation import Observation

Shape = tuple[int, ...]


class Kind(StrEnum):
    """What a parameter maps between; a width may grow without limit, all else is finite."""

    FIXED = "fixed"  # finite to finite: the bias of a head
    INPUT = "input"  # finite to width: embeddings, biases, the gains of norms
    HIDDEN = "hidden"  # width to width
    OUTPUT = "output"  # width to finite: heads, routers


@dataclass(frozen=True)
class Role:
    """A parameter as muP sees it.

    Attributes:
        kind: what it maps between.
        fan_in, fan_out: the model's width on that side, in units of the base model's.
        base_shape, shape: of the parameter in the base model and in the model.
        density: share of the weights that are kept, 1 for dense ones.
        is_folded: for outputs, whether their multiplier is in their initial values and rates.
        own_scale: for tables, what the model multiplies their rows by, in units of the base's.
        depth: how many times as many branches as in the base the parameter's is one of.
        ends_branch: whether the parameter multiplies what its branch adds to the residual.
    """

    kind: Kind
    fan_in: float
    fan_out: float
    base_shape: Shape
    shape: Shape
    density: float = 1.0
    is_folded: bool = False
    own_scale: float = 1.0
    depth: float = 1.0
    ends_branch: bool = False


@dataclass(frozen=True)
class Shapes:
    """The shape of a parameter in three models that differ in their widths alone.

    Attributes:
        base, delta: of the base model, and of one whose widths are twice as large.
        model: of the model that is trained.
    """

    base: Shape
    delta: Shape
    model: Shape

    def is_width(self, dim: int) -> bool:
        """Whether a dim follows the widths."""
        return self.base[dim] != self.delta[dim]

    def ratio(self, dims: Sequence[int]) -> float:
        """How much larger than the base model's the widths among these dims are."""
        return math.prod(self.model[d] / self.base[d] for d in dims if self.is_width(d))


def roles_of(
    base: Mapping[str, Shape],
    delta: Mapping[str, Shape],
    model: Mapping[str, Shape],
    seen: Observation,
) -> dict[str, Role]:
    """The role of each parameter, by name.

    Raises:
        OpenwaferError: ``mup-parameters``, ``mup-width``, ``mup-parameter``: what muP has no rule
            for, by name.
    """
    _require_same_names(base, delta, model)
    roles = {}
    for name in model:
        shapes = Shapes(base[name], delta[name], model[name])
        _require_whole_widths(name, shapes)
        roles[name] = _role(name, shapes, seen)
    return roles


def _role(name: str, shapes: Shapes, seen: Observation) -> Role:
    dims = range(len(shapes.base))
    widths = [dim for dim in dims if shapes.is_width(dim)]
    summed = _summed_dims(name, shapes, seen) if widths else ()
    inner = [dim for dim in widths if dim in summed]
    outer = [dim for dim in widths if dim not in summed]
    if len(inner) > 1 or len(outer) > 1:
        raise _no_rule(name, shapes, "has several widths on one side")
    match bool(inner), bool(outer):
        case True, True:
            kind = Kind.HIDDEN
        case True, False:
            kind = Kind.OUTPUT
        case False, True:
            kind = Kind.INPUT
        case _:
            kind = Kind.FIXED
    return Role(kind, shapes.ratio(inner), shapes.ratio(outer), shapes.base, shapes.model)


def _summed_dims(name: str, shapes: Shapes, seen: Observation) -> tuple[int, ...]:
    """Dims that a product with the parameter sums over; none where it is a table or a vector."""
    if name in seen.unknown:
        raise _no_rule(name, shapes, f"is used by {seen.unknown[name]}")
    if name in seen.tables or (len(shapes.base) == 1 and name not in seen.contractions):
        return ()
    if name not in seen.touched:
        raise _no_rule(name, shapes, "has no part in the forward of made-up tokens")
    found = {contraction.dims for contraction in seen.contractions.get(name, ())}
    if len(found) > 1:
        raise _no_rule(name, shapes, "is multiplied from both sides")
    return next(iter(found), ())


def _no_rule(name: str, shapes: Shapes, why: str) -> Exception:
    return error(
        "mup-parameter",
        f"muP has no rule for {name!r}, which {why}",
        notes=(f"its shape is {shapes.base} at the base widths and {shapes.delta} at twice these",),
        help="leave parametrization out for this architecture, or name other widths in base",
    )


def _require_same_names(
    base: Mapping[str, Shape], delta: Mapping[str, Shape], model: Mapping[str, Shape]
) -> None:
    for other, words in ((delta, "a model of twice the base widths"), (model, "the model")):
        odd = sorted(base.keys() ^ other.keys())
        if odd:
            raise error(
                "mup-parameters",
                f"{odd[0]!r} is a parameter of only one of the base model and {words}",
                help="let base name widths alone; number of layers and options stay as they are",
            )


def _require_whole_widths(name: str, shapes: Shapes) -> None:
    for dim, (base, delta, model) in enumerate(
        zip(shapes.base, shapes.delta, shapes.model, strict=True)
    ):
        grows = base != delta
        if grows and delta != 2 * base:
            raise error(
                "mup-width",
                f"dim {dim} of {name!r} is {base} at the base widths and {delta} at twice these, "
                "so that it is a width in part",
                help="name in base the field that decides on this size, with a value of its own",
            )
        if not grows and model != base:
            raise error(
                "mup-width",
                f"dim {dim} of {name!r} is {base} in the base model and {model} in the model, and "
                "no width in base decides on it",
                help="name in base the field that decides on this size",
            )


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
