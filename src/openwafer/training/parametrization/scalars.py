"""Numbers in a forward that follow the width are multipliers too; none is to be overlooked.

Attention is scaled by 1 / size of a head in place of its root, where heads grow with the width.
Architectures of the transformers library, and the reference GPT, multiply their scores by the
attribute ``scaling`` of their attention modules; :func:`require_same_scalars` finds out where one
does not.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.parametrization.observation import Observation

SCALE: Final = "scaling"
# What attention modules call the size of a head.
SIZES: Final = (
    *("head_dim", "head_size", "attention_head_size", "key_value_proj_dim", "qk_head_dim"),
    *("d_head", "attention_head_dim", "dim_per_head"),
)


@dataclass(frozen=True)
class AttentionRule:
    """How one attention module is scaled.

    Attributes:
        size: attribute that holds the size of a head.
        base_size, delta_size: its value in the base model, and at twice the base widths.
        base_scale: what the base model multiplies its scores by.
    """

    size: str
    base_size: int
    delta_size: int
    base_scale: float

    def scale(self, size: int) -> float:
        """What scores are multiplied by with heads of that size."""
        return self.base_scale * self.base_size / size


def attention_rules(
    base: nn.Module, delta: nn.Module, seen: Observation, seen_delta: Observation
) -> dict[str, AttentionRule]:
    """The rules of modules that multiply activations with each other along a width.

    Raises:
        OpenwaferError: ``mup-attention`` for a module whose scale cannot be set, by name.
    """
    rules = {}
    for path, sizes in seen.products.items():
        grown = seen_delta.products.get(path, set())
        if sizes != grown:
            module, other = base.get_submodule(path), delta.get_submodule(path)
            rules[path] = _rule(path, module, other, (sizes - grown, grown - sizes))
    return rules


def take_rules(model: nn.Module, rules: Mapping[str, AttentionRule]) -> None:
    """Set the scale of a model's attention modules."""
    for path, rule in rules.items():
        module = model.get_submodule(path)
        setattr(module, SCALE, rule.scale(getattr(module, rule.size)))


def _rule(
    path: str, module: nn.Module, other: nn.Module, sizes: tuple[set[int], set[int]]
) -> AttentionRule:
    if len(sizes[0]) != 1 or len(sizes[1]) != 1:
        raise _no_rule(path, module, f"sums over {sorted(sizes[0])} and then {sorted(sizes[1])}")
    (base_size,), (delta_size,) = sizes
    named = [
        name
        for name in SIZES
        if vars(module).get(name) == base_size and vars(other).get(name) == delta_size
    ]
    scale = vars(module).get(SCALE)
    if not named or not isinstance(scale, int | float):
        missing = f"no attribute {SCALE!r}" if named else "no attribute with the size of a head"
        raise _no_rule(path, module, f"has {missing} to set")
    return AttentionRule(named[0], base_size, delta_size, float(scale))


def _no_rule(path: str, module: nn.Module, why: str) -> OpenwaferError:
    where = repr(path) if path else "the model itself"
    return error(
        "mup-attention",
        f"the heads of {where} grow with the widths of base, and {type(module).__name__} {why}",
        notes=("muP scales attention by 1 / size of a head, where the model divides by its root",),
        help="let more heads, not larger ones, make the model wide: name the number of heads in "
        "base, in the same proportion as the width",
    )


REMEDY: Final = (
    "leave parametrization out for this architecture, or take one whose forward has the same "
    "numbers at every width"
)
Scalar = tuple[tuple[str, str], float]
"""A module and an operation, and the number."""
Pair = tuple[Scalar, Scalar]
"""Of the base model, and of one of twice its widths."""
VERBS: Final = {"multiply": "multiplies", "divide": "divides"}


def require_same_scalars(
    seen: Observation,
    seen_delta: Observation,
    attention: Mapping[str, AttentionRule],
    known: Collection[Pair],
) -> None:
    """Refuse a forward whose numbers follow the width, but where they are accounted for.

    Args:
        seen: a forward of the base model.
        seen_delta: one of a model of twice its widths, with the scales of ``attention``.
        attention: rules by module.
        known: numbers of both that are taken into a multiplier or into a table.

    Raises:
        OpenwaferError: ``mup-forward``, with the module and both numbers.
    """
    for key in sorted(seen.scalars.keys() | seen_delta.scalars.keys()):
        base, delta = seen.scalars.get(key, set()), seen_delta.scalars.get(key, set())
        odd, odd_delta = sorted(base - delta), sorted(delta - base)
        rule = attention.get(key[0])
        pairs = {((key, a), (key, b)) for a in odd for b in odd_delta}
        if pairs and pairs <= set(known):
            continue
        ratio = 1.0 if rule is None else rule.base_size / rule.delta_size
        if not _are_close([value * ratio for value in odd], odd_delta):
            raise _overlooked(key, odd, odd_delta)


def require_same_sums(seen: Observation, seen_delta: Observation) -> None:
    """Refuse a forward that sums activations over a width: the sum grows with it.

    Raises:
        OpenwaferError: ``mup-forward``, with the module and both sizes.
    """
    for path, name in sorted(seen.sums.keys() | seen_delta.sums.keys()):
        sizes, grown = (each.sums.get((path, name), set()) for each in (seen, seen_delta))
        if sizes != grown:
            raise error(
                "mup-forward",
                f"the forward takes a {name} over a width {_where(path)}, and muP has no rule for "
                "it",
                notes=(_both([*sizes - grown], [*grown - sizes]),),
                help=REMEDY,
            )


def scale_of_head(path: str, seen: Observation, seen_delta: Observation) -> tuple[Pair, ...]:
    """The number that a model multiplies the input of an output module by, in both models."""
    if path not in seen.head_scales or path not in seen_delta.head_scales:
        return ()
    return ((seen.head_scales[path], seen_delta.head_scales[path]),)


def scales_of_table(name: str, seen: Observation, seen_delta: Observation) -> tuple[Pair, ...]:
    """The numbers that a model multiplies all that it looks up in a table by, in both models."""
    scales, grown = (each.table_scales.get(name, {}) for each in (seen, seen_delta))
    return tuple(((key, scales[key]), (key, grown[key])) for key in scales if key in grown)


def own_exponent(pairs: Sequence[Pair]) -> float:
    """The power of the width by which a model scales by itself.

    Raises:
        OpenwaferError: ``mup-forward`` for no power that is a whole number of halves, or several.
    """
    found = set()
    for (key, base), (_, delta) in pairs:
        exponent = math.log2(delta / base) * (1 if key[1] == "multiply" else -1)
        halves = round(2 * exponent) / 2
        found.add(halves)
        if not math.isclose(exponent, halves, abs_tol=1e-6) or len(found) > 1:
            raise _overlooked(key, [base], [delta])
    return found.pop() if found else 0.0


def _are_close(left: list[float], right: list[float]) -> bool:
    return len(left) == len(right) and all(
        math.isclose(a, b, rel_tol=1e-6) for a, b in zip(left, right, strict=True)
    )


def _overlooked(key: tuple[str, str], base: list[float], delta: list[float]) -> Exception:
    path, operation = key
    return error(
        "mup-forward",
        f"the forward {VERBS[operation]} activations {_where(path)} by a number that follows the "
        "width, and muP has no rule for it",
        notes=(_both(base, delta),),
        help=REMEDY,
    )


def _where(path: str) -> str:
    return f"in {path!r}" if path else "in the model itself"


def _both(base: Sequence[float], delta: Sequence[float]) -> str:
    found, grown = (
        ", ".join(f"{value:.6g}" for value in values) or "nothing" for values in (base, delta)
    )
    return f"at the base widths {found}, at twice these {grown}"
