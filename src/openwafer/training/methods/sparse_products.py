"""When products skip the zeros of sparse weights: measured once, then kept in the run's config."""

import re
from collections.abc import Mapping
from glob import escape

from torch import nn

from openwafer.training.session.config import RunConfig
from openwafer.training.session.matmul_precision import multiplies_floats_on_cpu
from openwafer.training.sparsity.choice import WrittenProducts, first_match
from openwafer.training.sparsity.packed_linear import packed_linears
from openwafer.training.sparsity.products import Products, Skipping


def products_to_pack(config: RunConfig, written: WrittenProducts) -> WrittenProducts:
    """What the config says; dense ones where there are no others to compare them with."""
    if written is Products.MEASURED and not multiplies_floats_on_cpu(config):
        return Products.DENSE
    return written


def measured_products(model: nn.Module) -> WrittenProducts:
    """What was measured for the weights of a model, as a config has it."""
    return _written(_skipping(model))


def describe_products(model: nn.Module) -> list[str]:
    """A line for each group of weights that are named and multiplied alike."""
    lines: dict[tuple[str, int | None], list[float]] = {}
    for name, skipping in _skipping(model).items():
        gains = lines.setdefault((_for_all_layers(name), skipping.from_tokens), [])
        gains += [] if skipping.gain is None else [skipping.gain]
    return [
        f"products with {name} {_told(fewest)}{_gained(gains)}"
        for (name, fewest), gains in lines.items()
    ]


def _skipping(model: nn.Module) -> dict[str, Skipping]:
    linears = packed_linears(model)
    return {name: module.multiplication.skipping for name, module in linears.items()}


def _told(fewest: int | None) -> str:
    return "are dense" if fewest is None else f"skip zeros from {fewest} tokens on"


def _gained(gains: list[float]) -> str:
    if not gains:
        return ""
    least, most = f"{min(gains):.2g}", f"{max(gains):.2g}"
    span = least if least == most else f"{least} to {most}"
    return f", as skipping was measured to be {span} times as fast"


def _written(skipping: Mapping[str, Skipping]) -> dict[str, int | None]:
    """By globs for all layers where these are alike, else by the names of all weights."""
    fewest = {name: each.from_tokens for name, each in skipping.items()}
    found = {_for_all_layers(name): tokens for name, tokens in fewest.items()}
    taken = {name: first_match(name, found) for name in fewest}
    if all(glob is not None and found[glob] == fewest[name] for name, glob in taken.items()):
        return {glob: tokens for glob, tokens in found.items() if glob in taken.values()}
    return {escape(name): tokens for name, tokens in fewest.items()}


def _for_all_layers(name: str) -> str:
    """A name with a star for every number of a module."""
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1*", escape(name))
