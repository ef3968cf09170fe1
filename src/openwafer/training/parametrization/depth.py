"""Which parameters are in branches that repeat with the number of layers, and how often.

Two forwards show it, of models that differ in their number of layers alone.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.parametrization.branches import Branches, find_branches
from openwafer.training.parametrization.observation import observe

REMEDY: Final = "leave the number of layers out of base: it then is the model's own"
Run = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Depth:
    """Of a parameter; see ``Role``."""

    factor: float = 1.0
    ends_branch: bool = False


@dataclass(frozen=True)
class _Use:
    """In how many branches of which stream a parameter is, and whether one ends with it."""

    stream: int
    count: int
    ends_branch: bool


@dataclass(frozen=True)
class Layers:
    """The sequences of modules that are longer in a model than in its base model.

    Attributes:
        paths: of these sequences.
    """

    paths: tuple[str, ...]

    def starred(self, name: str) -> str:
        """A name with a star for the number of its layer."""
        for path in self.paths:
            number, *rest = name.removeprefix(f"{path}.").split(".")
            if name.startswith(f"{path}.") and number.isdecimal():
                return ".".join((path, "*", *rest))
        return name


def layers_of(shallow: nn.Module, deep: nn.Module) -> Layers:
    """The layers of a model that differs from its base model in their number alone."""
    before, lengths = sequence_lengths(shallow), sequence_lengths(deep)
    return Layers(tuple(path for path in lengths if lengths[path] != before.get(path)))


def sequence_lengths(model: nn.Module) -> dict[str, int]:
    """By path, how many modules each sequence of them has."""
    return {
        path: len(module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    }


def depths_of(
    shallow: nn.Module, deep: nn.Module, ratios: Collection[float], run: Run
) -> dict[str, Depth]:
    """The depth of each parameter of a model, by name.

    Args:
        shallow: with the layers of the base model.
        deep: with the model's number of layers, else the same.
        ratios: how many times as many these may be.
        run: calls a model with made-up inputs, and returns the loss.

    Raises:
        OpenwaferError: ``mup-depth`` for what there is no rule for, by name.
    """
    _require_same_numbers(shallow, deep, run)
    few, many = find_branches(run(shallow), shallow), find_branches(run(deep), deep)
    factors = _stream_factors(few, many, ratios)
    layers = layers_of(shallow, deep)
    uses, uses_before = _uses(deep, layers, many, factors), _uses(shallow, layers, few, factors)
    depths = {}
    for name, parameter in deep.named_parameters():
        use, before = uses[layers.starred(name)], uses_before.get(layers.starred(name))
        depths[name] = Depth()
        if use is None and layers.starred(name) != name and parameter.requires_grad:
            raise _no_rule(f"{name!r} repeats with the layers and is in no residual branch")
        if use is not None and parameter.requires_grad:
            if before is None or use.stream != before.stream:
                raise _no_rule(f"{name!r} is in a branch that the base model does not have")
            depths[name] = _depth(name, use, before, factors[use.stream])
    return depths


def require_same_branches(base: nn.Module, delta: nn.Module, run: Run) -> None:
    """Refuse a base that makes layers repeat more often without parameters of their own.

    Raises:
        OpenwaferError: ``mup-depth``.
    """
    few, many = (len(find_branches(run(each), each).branches) for each in (base, delta))
    if few != many:
        raise _no_rule(
            "layers share their weights",
            f"{few} residual branches at the base widths, {many} at twice these",
        )


def stds_by_layer(
    shallow: Mapping[str, float | None], names: Collection[str], layers: Layers
) -> dict[str, float | None]:
    """What the base model draws with, for the parameters of a model of other depth.

    Args:
        shallow: what each parameter of the base model is drawn with.
        names: of the model's parameters.
        layers: of the model.

    Raises:
        OpenwaferError: ``mup-depth`` where layers draw with different deviations.
    """
    found: dict[str, set[float | None]] = defaultdict(set)
    for name, std in shallow.items():
        found[layers.starred(name)].add(std)
    stds = {}
    for name in names:
        drawn = found[layers.starred(name)]
        if len(drawn) > 1:
            raise _no_rule(f"{name!r} is drawn in other ways from layer to layer of the base model")
        if not drawn:
            raise _no_rule(f"the base model has no parameter such as {name!r}")
        [stds[name]] = drawn
    return stds


def _depth(name: str, use: _Use, before: _Use, factor: float) -> Depth:
    if use.ends_branch and (use.count, before.count) != (1, 1):
        raise _no_rule(f"{use.count} branches end with {name!r}")
    return Depth(factor * before.count / use.count, use.ends_branch)


def _stream_factors(few: Branches, many: Branches, ratios: Collection[float]) -> dict[int, float]:
    """How many times as many branches each stream has; 1 for those that stay as they are."""
    for found in (few, many):
        if found.unclear:
            raise _no_rule(f"{min(found.unclear)!r} adds to the residual in no branch of its own")
    if not many.num_streams:
        raise _no_rule("the forward has no sum h + branch(h) with weights in the branch")
    if few.num_streams != many.num_streams:
        raise _no_rule(
            "the sum of a layer does not reach the next one as it is, as where norms follow the "
            "sum (post-norm)",
            f"{few.num_streams} sums are changed with the layers of base, "
            f"{many.num_streams} with the model's",
        )
    before, counts = (Counter(each.stream for each in found.branches) for found in (few, many))
    factors = {stream: counts[stream] / before[stream] for stream in counts}
    for stream, factor in factors.items():
        if factor != 1 and not any(math.isclose(factor, ratio) for ratio in ratios):
            raise _no_rule(
                "the residual branches do not repeat as often as the layers",
                f"{before[stream]} with the layers of base, {counts[stream]} with the model's",
            )
    for branch in many.branches:
        if factors[branch.stream] != 1 and not branch.ends:
            raise _no_rule(
                f"the residual branch of {min(branch.parameters)!r} ends with no weights that "
                "multiply all of it"
            )
    return factors


def _uses(
    model: nn.Module, layers: Layers, found: Branches, factors: Mapping[int, float]
) -> dict[str, _Use | None]:
    """What the parameters are to branches that repeat, by starred name."""
    reached = found.outside.union(*(branch.parameters for branch in found.branches))
    by_name: dict[str, _Use] = {}
    for branch in found.branches:
        if factors[branch.stream] == 1:
            continue
        for name in branch.parameters:
            own = by_name.get(name, _Use(branch.stream, 0, ends_branch=False))
            if name in found.outside or own.stream != branch.stream:
                raise _no_rule(f"{name!r} has a part both in a residual branch and elsewhere")
            ends = own.ends_branch or name in branch.ends
            by_name[name] = _Use(own.stream, own.count + 1, ends)
    uses: dict[str, _Use | None] = {}
    for name, parameter in model.named_parameters():
        use = by_name.get(name)
        if parameter.requires_grad and name not in reached:
            raise _no_rule(f"{name!r} has no part in the forward of made-up tokens")
        if parameter.requires_grad and uses.setdefault(layers.starred(name), use) != use:
            raise _no_rule(f"{name!r} is used in another way than in the layers before")
        uses.setdefault(layers.starred(name), use)
    return uses


def _require_same_numbers(shallow: nn.Module, deep: nn.Module, run: Run) -> None:
    """Refuse a forward whose own numbers follow the number of layers, or that of a layer."""
    layers = layers_of(shallow, deep)
    found: list[dict[str, set[float]]] = []
    for model in (shallow, deep):
        seen = observe(model, run)
        numbers: dict[str, set[float]] = defaultdict(set)
        for (path, operation), values in seen.scalars.items():
            numbers[f"{operation} {layers.starred(path)}"] |= values
        for (path, operation), sizes in seen.sums.items():
            numbers[f"{operation} {layers.starred(path)}"] |= {float(size) for size in sizes}
        found.append(numbers)
    for key in sorted(found[0].keys() | found[1].keys()):
        if found[0][key] != found[1][key]:
            operation, _, path = key.partition(" ")
            raise _no_rule(
                f"a number of the forward's own follows the layers, in {path or 'the model'!r} "
                f"({operation})",
                f"{sorted(found[0][key])} with the layers of base, {sorted(found[1][key])} with "
                "the model's",
            )


def _no_rule(why: str, *notes: str) -> OpenwaferError:
    return error("mup-depth", f"muP has no rule for this depth: {why}", notes=notes, help=REMEDY)
