"""Which fields of a base model say how many layers it has."""

from collections.abc import Mapping

from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import ModelConfig, build
from openwafer.training.models.build import build_without_weights
from openwafer.training.models.widths import with_widths
from openwafer.training.parametrization import sequence_lengths


def layer_fields(
    described: ModelConfig, base: Mapping[str, int], small: nn.Module, seed: int
) -> tuple[str, ...]:
    """The fields of a base model that say how often layers repeat.

    A model that is twice as large in all of them has parameters that the base model does not, and
    loses them where it is not in this one.

    Args:
        described: the model.
        base: fields of its base model.
        small: the base model.
        seed: to build others with.
    """
    lengths = sequence_lengths(small).values()
    candidates = [name for name, size in base.items() if size in lengths]
    if not candidates:
        return ()
    doubled = {name: 2 * size for name, size in base.items()}
    names = _names(shapes_of(with_widths(described, doubled), seed))
    if names == _names(small):
        return ()
    found = []
    for name in candidates:
        try:
            halved = shapes_of(with_widths(described, {**doubled, name: base[name]}), seed)
        except OpenwaferError:
            # Two widths that do not go together, such as a size and a number of heads.
            continue
        if _names(halved) != names:
            found.append(name)
    return tuple(found)


def shapes_of(described: ModelConfig, seed: int) -> nn.Module:
    """A model, without weights where it can be built so."""
    found = build_without_weights(described, seed)
    return build(described, seed) if found is None else found


def _names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}
