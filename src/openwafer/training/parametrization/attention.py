"""The scale of attention, 1 / size of a head in place of its root, where heads grow with the width.

Architectures of the transformers library, and the reference GPT, multiply their scores by the
attribute ``scaling`` of their attention modules; see ``require_same_scalars``, which finds out
where one does not.
"""

from collections.abc import Mapping
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
