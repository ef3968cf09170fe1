"""The coordinate check: models of some widths are trained for a few steps and watched."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.data import Batch
from openwafer.training.models.widths import with_widths
from openwafer.training.parametrization.slopes import Growth, growth_of
from openwafer.training.session.building import build_model, expected_vocab_size, make_optimizers
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.session.mup import mup_of
from openwafer.training.session.parametrization import Parametrization

MIN_WIDTHS = 2

Found = dict[tuple[str, int], list[float]]
"""Sizes by module and step."""


@dataclass(frozen=True)
class CoordinateCheck:
    """What was found.

    Attributes:
        mup, standard: the growth of each module, in the model's order.
    """

    mup: tuple[Growth, ...]
    standard: tuple[Growth, ...]


def check_coordinates(
    config: RunConfig, widths: Sequence[int], num_steps: int = 4, num_seeds: int = 1
) -> CoordinateCheck:
    """Train a model at several widths, under muP and without, on made-up tokens.

    All are in memory, and learn at the config's rate from the first step on. The narrowest one is
    the base model, and the same under both.

    Args:
        config: of a run under muP; the fields of its base keep their proportions.
        widths: values of the first field of its base.
        num_steps: training steps.
        num_seeds: of weights and tokens, counted from the config's; sizes are averaged.

    Raises:
        OpenwaferError: ``coordinate-config``, ``coordinate-widths``, and what muP refuses.
    """
    widths = _require_widths(config, widths)
    base = proportional(config, widths[0])
    config = replace(config, base=base)
    return CoordinateCheck(
        _growths(config, widths, (num_steps, num_seeds)),
        _growths(config, widths, (num_steps, num_seeds), Parametrization.STANDARD),
    )


def proportional(config: RunConfig, width: int) -> dict[str, int]:
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
                f"at width {width}, {name} would be {value * width / first:g}",
                notes=(f"base has {', '.join(f'{k}: {v}' for k, v in config.base.items())}",),
                help=f"take multiples of {first}, or another base",
            )
    return found


def _require_widths(config: RunConfig, widths: Sequence[int]) -> list[int]:
    if config.parametrization is not Parametrization.MUP:
        raise error(
            "coordinate-config",
            "the coordinate check compares muP with the standard parametrization, and this config "
            "has no base model",
            help="set parametrization: mup, and base: {hidden_size: ...}",
        )
    different = sorted(set(widths))
    if len(different) < MIN_WIDTHS or different[0] < 1:
        raise error(
            "coordinate-widths",
            f"expected at least {MIN_WIDTHS} different widths above 0, found {list(widths)}",
            help="such as 64, 128 and 256",
        )
    return different


def _growths(
    config: RunConfig,
    widths: Sequence[int],
    lengths: tuple[int, int],
    parametrization: Parametrization = Parametrization.MUP,
) -> tuple[Growth, ...]:
    num_steps, num_seeds = lengths
    by_width: dict[int, Found] = {}
    outputs: set[str] = set()
    for width in widths:
        found: Found = defaultdict(list)
        model = with_widths(config.model, proportional(config, width))
        for seed in range(config.seed, config.seed + num_seeds):
            own = replace(config, model=model, seed=seed)
            outputs = _outputs(own)
            if parametrization is Parametrization.STANDARD:
                own = replace(own, parametrization=parametrization, base={})
            _train(own, num_steps, found, outputs)
        by_width[width] = found
    first = by_width[widths[0]]
    # What is zero everywhere, such as a mask, has no logarithm.
    modules = dict.fromkeys(
        module for module, _ in first if all(_has_sizes(f, module) for f in by_width.values())
    )
    return tuple(
        growth_of(
            module,
            [{w: by_width[w][module, step] for w in widths} for step in range(num_steps + 1)],
            is_output=module in outputs,
        )
        for module in modules
    )


def _has_sizes(found: Mapping[tuple[str, int], Sequence[float]], module: str) -> bool:
    return all(0 not in sizes for (name, _), sizes in found.items() if name == module)


def _outputs(config: RunConfig) -> set[str]:
    """Modules that begin smaller in a wider model under muP."""
    mup = mup_of(config, expected_vocab_size(config))
    assert mup is not None
    # What is looked up in a table may be multiplied only behind the table's own module.
    smaller = [name for name, role in mup.roles.items() if role.is_folded or role.own_scale > 1]
    paths = [name.rpartition(".")[0] for name in smaller]
    return {_starred(path) for path in (*mup.multipliers, *paths)}


def _train(config: RunConfig, num_steps: int, found: Found, outputs: set[str]) -> None:
    vocab_size = expected_vocab_size(config)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_model(config, vocab_size, Path(scratch))
    optimizers = make_optimizers(model, config, vocab_size)
    shape = (config.batch.size, config.batch.sequence_length)
    generator = torch.Generator().manual_seed(config.seed)
    ids = torch.randint(vocab_size, shape, generator=generator)
    inputs = model_inputs(model, Batch(ids, ids.clone()))
    for step in range(num_steps + 1):
        # The same dropout in every step, as sizes are compared over steps too.
        torch.manual_seed(config.seed)
        with _recording(model, step, found, outputs):
            loss = forward_loss(model, inputs)
        loss.backward()
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@contextmanager
def _recording(model: nn.Module, step: int, found: Found, outputs: set[str]) -> Iterator[None]:
    """Context in which the sizes of what modules put out are recorded."""
    tensors_of_outputs: list[Tensor] = []

    def record(_module: nn.Module, _inputs: object, output: object, path: str) -> None:
        tensor = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(tensor, Tensor) or not tensor.requires_grad or not tensor.numel():
            return
        # A module around an output that passes it on is one as well.
        if path in outputs:
            tensors_of_outputs.append(tensor)
        elif any(tensor is other for other in tensors_of_outputs):
            outputs.add(path)
        found[path, step].append(tensor.detach().abs().mean().item())

    handles = [
        module.register_forward_hook(partial(record, path=_starred(path)))
        for path, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _starred(path: str) -> str:
    """A module's path without the numbers of layers."""
    return re.sub(r"\b\d+\b", "*", path)
