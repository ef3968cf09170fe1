"""The coordinate check: models of some widths are trained for a few steps and watched."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from openwafer.diagnostics import error
from openwafer.training.data import Batch
from openwafer.training.methods.mup import (
    MupKeys,
    Parametrization,
    layer_fields_of,
    mup_of,
    shapes_of,
)
from openwafer.training.methods.widths import with_widths
from openwafer.training.models.build import with_vocab_size
from openwafer.training.parametrization.depth import Layers, find_branches, layers_of
from openwafer.training.session.building import build_model, expected_vocab_size, make_optimizers
from openwafer.training.session.forward import forward_loss, model_inputs

MIN_SIZES = 2
# Finite widths and few samples move slopes by a tenth or two; what is wrong, by a half or more.
FLAT: Final = 0.3
Series = Mapping[int, Sequence[float]]
"""Mean absolute activations by width: one for each layer and seed."""
Found = dict[tuple[str, int], list[float]]
"""Sizes by module and step."""


@dataclass(frozen=True)
class Growth:
    """How the activations of a module follow the width.

    Attributes:
        module: its path, with a star for the number of a layer.
        is_output: whether it may begin smaller in a wider model, as outputs do under muP.
        is_of_change: whether all sizes but the first are of changes since; the first may be smaller
            in a deeper model, as what layers begin with cancels.
        sizes: for each step from 0, the geometric mean of its sizes by width.
        slopes: for each step, of log size against log width; infinite where sizes overflow.
    """

    module: str
    is_output: bool
    sizes: tuple[Mapping[int, float], ...]
    slopes: tuple[float, ...]
    is_of_change: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether it stays as it is, at the beginning and at the end."""
        return self.distance <= FLAT

    @property
    def distance(self) -> float:
        """How far it is from flat."""
        first, last = self.slopes[0], self.slopes[-1]
        may_begin_smaller = self.is_output or self.is_of_change
        return max(first, last, 0 if may_begin_smaller else -first, 0 if self.is_output else -last)


@dataclass(frozen=True)
class CoordinateCheck:
    """What was found.

    Attributes:
        mup, standard: the growth of each module, in the model's order.
    """

    mup: tuple[Growth, ...]
    standard: tuple[Growth, ...]


class Side(StrEnum):
    """In what the models of a check differ."""

    WIDTH = "width"
    DEPTH = "depth"


@dataclass(frozen=True)
class _Check:
    """Models to train, and for how long.

    Attributes:
        side: in what they differ.
        sizes: from the smallest on.
        num_steps, num_seeds: of each.
        layers: over depths, those that repeat.
    """

    side: Side
    sizes: Sequence[int]
    num_steps: int
    num_seeds: int
    layers: Layers | None = None

    def starred(self, path: str) -> str:
        """A module's path without the numbers of layers."""
        return _starred(path) if self.layers is None else self.layers.starred(path)


@dataclass(frozen=True)
class _Modules:
    """Starred paths of modules that are looked at in another way.

    Attributes:
        outputs: that begin smaller in a wider model under muP.
        adding: whose outputs are added to the residual, in as many layers as there are.
    """

    outputs: set[str] = field(default_factory=set)
    adding: set[str] = field(default_factory=set)


def check_coordinates(
    config: MupKeys, widths: Sequence[int], num_steps: int = 4, num_seeds: int = 1
) -> CoordinateCheck:
    """Train a model at several widths, under muP and without, on made-up tokens.

    All are in memory, and learn at the config's rate from the first step on. The narrowest one is
    the base model, and the same under both.

    Args:
        config: of a run under muP; the widths of its base keep their proportions, and layers their
            number.
        widths: values of the first width of its base.
        num_steps: training steps.
        num_seeds: of weights and tokens, counted from the config's; sizes are averaged.

    Raises:
        OpenwaferError: ``coordinate-config``, ``coordinate-widths``, and what muP refuses.
    """
    return _checked(config, _Check(Side.WIDTH, sorted(set(widths)), num_steps, num_seeds))


def check_depths(
    config: MupKeys, depths: Sequence[int], num_steps: int = 4, num_seeds: int = 1
) -> CoordinateCheck:
    """Train a model at several numbers of layers; see :func:`check_coordinates`.

    After the first step, what is looked at is the change of activations since; sizes are means over
    the layers. What is added to the residual counts as often as there are layers for one of the
    shallowest model.

    Args:
        config: of a run under muP whose base names the number of layers; widths are the model's.
        depths: values of the first field of its base that is a number of layers.
        num_steps: training steps.
        num_seeds: of weights and tokens.

    Raises:
        OpenwaferError: as :func:`check_coordinates` does.
    """
    return _checked(config, _Check(Side.DEPTH, sorted(set(depths)), num_steps, num_seeds))


def _checked(config: MupKeys, check: _Check) -> CoordinateCheck:
    _require_sizes(config, check)
    layers = layer_fields_of(config, config.base, expected_vocab_size(config))
    is_depth = check.side is Side.DEPTH
    fields = {name: size for name, size in config.base.items() if (name in layers) == is_depth}
    if not fields:
        raise error(
            "coordinate-config",
            f"base has no {'number of layers' if is_depth else 'width'} to vary",
            notes=(f"base has {_listed(config.base)}",),
            help="name one in base, by its field of the model's config",
        )
    config = replace(config, base=fields)
    config = replace(config, base=proportional(config, check.sizes[0]))
    if is_depth:
        check = replace(check, layers=_layers(config, check))
    return CoordinateCheck(
        _growths(config, check), _growths(config, check, Parametrization.STANDARD)
    )


def _layers(config: MupKeys, check: _Check) -> Layers:
    """The layers that the second model has more of than the first."""
    vocab_size = expected_vocab_size(config)
    described = (with_widths(config.model, proportional(config, size)) for size in check.sizes[:2])
    with torch.random.fork_rng(devices=[]):
        models = [shapes_of(with_vocab_size(each, vocab_size), config.seed) for each in described]
    return layers_of(*models)


def proportional(config: MupKeys, width: int) -> dict[str, int]:
    """The widths of the config's base in proportion, with another value for the first.

    Raises:
        OpenwaferError: ``coordinate-widths`` where one would be no whole number.
    """
    first = next(iter(config.base.values()))
    found = {}
    for name, value in config.base.items():
        found[name], rest = divmod(value * width, first)
        if rest:
            raise error(
                "coordinate-widths",
                f"at {width}, {name} would be {value * width / first:g}",
                notes=(f"base has {_listed(config.base)}",),
                help=f"take multiples of {first}, or another base",
            )
    return found


def _listed(base: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in base.items())


def _require_sizes(config: MupKeys, check: _Check) -> None:
    if not config.is_mup:
        raise error(
            "coordinate-config",
            "the coordinate check compares muP with the standard parametrization, and this config "
            "has no base model",
            help="set parametrization: mup, and base: {hidden_size: ...}",
        )
    if len(check.sizes) < MIN_SIZES or check.sizes[0] < 1:
        raise error(
            "coordinate-widths",
            f"expected at least {MIN_SIZES} different {check.side}s above 0, found "
            f"{list(check.sizes)}",
            help="such as 64, 128 and 256",
        )


def _growths(
    config: MupKeys, check: _Check, parametrization: Parametrization = Parametrization.MUP
) -> tuple[Growth, ...]:
    by_size: dict[int, Found] = {}
    special = _Modules()
    for size in check.sizes:
        found: Found = defaultdict(list)
        model = with_widths(config.model, proportional(config, size))
        for seed in range(config.seed, config.seed + check.num_seeds):
            own = replace(config, model=model, seed=seed)
            if check.side is Side.WIDTH:
                special.outputs.update(_outputs(own))
            if parametrization is Parametrization.STANDARD:
                own = replace(own, parametrization=parametrization, base={})
            _train(own, check, found, special)
        by_size[size] = found
    if check.side is Side.DEPTH:
        _count_layers(by_size, special.adding)
    first = by_size[check.sizes[0]]
    # What is zero everywhere, such as a mask, has no logarithm.
    modules = dict.fromkeys(
        module for module, _ in first if all(_has_sizes(f, module) for f in by_size.values())
    )
    return tuple(
        growth_of(
            module,
            [
                {size: by_size[size][module, step] for size in check.sizes}
                for step in range(check.num_steps + 1)
            ],
            is_output=module in special.outputs,
            is_of_change=check.side is Side.DEPTH,
        )
        for module in modules
    )


def _count_layers(by_size: Mapping[int, Found], adding: set[str]) -> None:
    """Let what a layer adds to the residual count as often as layers repeat."""
    least = min(by_size)
    for size, found in by_size.items():
        for key, sizes in found.items():
            if key[0] in adding:
                found[key] = [each * size / least for each in sizes]


def _has_sizes(found: Mapping[tuple[str, int], Sequence[float]], module: str) -> bool:
    return all(0 not in sizes for (name, _), sizes in found.items() if name == module)


def _outputs(config: MupKeys) -> set[str]:
    """Modules that begin smaller in a wider model under muP."""
    mup = mup_of(config, config.base, expected_vocab_size(config))
    # What is looked up in a table may be multiplied only behind the table's own module.
    smaller = [name for name, role in mup.roles.items() if role.is_folded or role.own_scale > 1]
    paths = [name.rpartition(".")[0] for name in smaller]
    return {_starred(path) for path in (*mup.multipliers, *paths)}


def _train(config: MupKeys, check: _Check, found: Found, special: _Modules) -> None:
    vocab_size = expected_vocab_size(config)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_model(config, vocab_size, Path(scratch))
    optimizers = make_optimizers(model, config, vocab_size)
    shape = (config.batch.size, config.batch.sequence_length)
    generator = torch.Generator().manual_seed(config.seed)
    ids = torch.randint(vocab_size, shape, generator=generator)
    inputs = model_inputs(model, Batch(ids, ids.clone()))
    first: dict[str, list[Tensor]] = {}
    for step in range(check.num_steps + 1):
        # The same dropout in every step, as sizes are compared over steps too.
        torch.manual_seed(config.seed)
        with _recording(model, special.outputs) as outputs:
            loss = forward_loss(model, inputs)
        for path, sizes in _sizes(outputs, first, check).items():
            found[path, step] += sizes
        if check.layers is not None and not first:
            adding = _adding(model, loss, outputs)
            special.adding.update(map(check.layers.starred, adding))
            first = {path: [each.detach().clone() for each in outputs[path]] for path in outputs}
        loss.backward()
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def _sizes(
    outputs: Mapping[str, Sequence[Tensor]], first: Mapping[str, Sequence[Tensor]], check: _Check
) -> dict[str, list[float]]:
    """The sizes of what modules put out, or of its change since the first step, by starred path."""
    sizes: dict[str, list[float]] = defaultdict(list)
    for path, tensors in outputs.items():
        changes = [tensor.detach() for tensor in tensors]
        if path in first:
            changes = [now - before for now, before in zip(changes, first[path], strict=True)]
        sizes[check.starred(path)] += [each.abs().mean().item() for each in changes]
    if check.layers is None:
        return sizes
    return {path: [fmean(each)] for path, each in sizes.items()}


def _adding(model: nn.Module, loss: Tensor, outputs: Mapping[str, Sequence[Tensor]]) -> set[str]:
    """Paths of modules that put out what is added to the residual, or some multiple of it."""
    multiples = set[Node]().union(
        *(branch.multiples for branch in find_branches(loss, model).branches)
    )
    return {
        path
        for path, tensors in outputs.items()
        if any(tensor.grad_fn in multiples for tensor in tensors)
    }


@contextmanager
def _recording(model: nn.Module, outputs: set[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Context in which what modules put out is recorded, by their paths."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    tensors_of_outputs: list[Tensor] = []

    def record(_module: nn.Module, _inputs: object, output: object, path: str) -> None:
        tensor = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(tensor, Tensor) or not tensor.requires_grad or not tensor.numel():
            return
        # A module around an output that passes it on is one as well.
        if _starred(path) in outputs:
            tensors_of_outputs.append(tensor)
        elif any(tensor is other for other in tensors_of_outputs):
            outputs.add(_starred(path))
        found[path].append(tensor)

    handles = [
        module.register_forward_hook(partial(record, path=path))
        for path, module in model.named_modules()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _starred(path: str) -> str:
    """A module's path without the numbers of layers."""
    return re.sub(r"\b\d+\b", "*", path)


def growth_of(
    module: str, steps: Sequence[Series], *, is_output: bool, is_of_change: bool = False
) -> Growth:
    """The growth of a module, from its sizes at each step."""
    sizes = tuple({width: _mean(found) for width, found in step.items()} for step in steps)
    slopes = tuple(slope_of(each) for each in sizes)
    return Growth(module, is_output, sizes, slopes, is_of_change)


def steepest(growths: Sequence[Growth]) -> Growth:
    """The module that is furthest from flat."""
    return max(growths, key=lambda growth: growth.distance)


def slope_of(sizes: Mapping[int, float]) -> float:
    """Of log size against log width, by least squares."""
    if not all(math.isfinite(size) for size in sizes.values()):
        return math.inf
    points = [(math.log(width), math.log(size)) for width, size in sizes.items()]
    x_mean = math.fsum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    covariance = math.fsum((x - x_mean) * (y - y_mean) for x, y in points)
    return covariance / math.fsum((x - x_mean) ** 2 for x, _ in points)


def _mean(sizes: Sequence[float]) -> float:
    if not all(math.isfinite(size) for size in sizes):
        return math.inf
    return math.exp(math.fsum(math.log(size) for size in sizes) / len(sizes))
