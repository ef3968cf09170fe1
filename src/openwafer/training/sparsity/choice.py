"""Which sparse weights of a model are multiplied by products that skip zeros, and from when on."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.training.sparsity.measurement import WeightKind, measured
from openwafer.training.sparsity.multiplication import Products, Skipping

WrittenProducts: TypeAlias = Products | dict[str, int | None]
"""For all weights alike, or the fewest tokens with which zeros are skipped, ``None`` for never, by
globs of names: the first that matches wins."""


def choose(written: WrittenProducts, weights: Mapping[str, WeightKind]) -> dict[str, Skipping]:
    """When products with each weight skip zeros.

    Args:
        written: for all of them.
        weights: by name.

    Raises:
        OpenwaferError: ``sparse-products`` where a glob matches no weight, or none a weight.
    """
    match written:
        case Products.AUTO:
            return {name: Skipping.by_rule(kind.room) for name, kind in weights.items()}
        case Products.DENSE:
            return dict.fromkeys(weights, Skipping(None))
        case Products.SPARSE:
            return dict.fromkeys(weights, Skipping(1))
        case Products.MEASURED:
            found = measured([*weights.values()])
            return {name: found[kind] for name, kind in weights.items()}
        case dict():
            return _by_name(written, weights)


def first_match(name: str, globs: Iterable[str]) -> str | None:
    """The glob that says it for a weight."""
    return next((glob for glob in globs if fnmatchcase(name, glob)), None)


def _by_name(
    written: Mapping[str, int | None], weights: Mapping[str, WeightKind]
) -> dict[str, Skipping]:
    taken = {name: first_match(name, written) for name in weights}
    chosen = {name: glob for name, glob in taken.items() if glob is not None}
    for glob in written:
        if weights and glob not in chosen.values():
            raise _mistake(
                f"{glob!r} is the first that matches for none of "
                f"{counted(len(weights), 'sparse weight')}",
                did_you_mean(glob, [*weights]),
            )
    missed = next((name for name in weights if name not in chosen), None)
    if missed is not None:
        raise _mistake(f"nothing matches the sparse weight {missed!r}", 'add "*": null for others')
    return {name: Skipping(written[glob]) for name, glob in chosen.items()}


def _mistake(what: str, remedy: str) -> OpenwaferError:
    return error("sparse-products", f"in sparse_products {what}", help=remedy)
