"""Which dims of a parameter are widths, and so what the parameter is to muP."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
