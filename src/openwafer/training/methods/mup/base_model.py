"""What a base model that a config names says of the run's own model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.data import Batch
from openwafer.training.methods.sparsity.method import SparsityKeys
from openwafer.training.models import ModelConfig, build
from openwafer.training.models.build import (
    build_without_weights,
    width_of,
    with_vocab_size,
    with_widths,
)
from openwafer.training.parametrization.depth import (
    depths_of,
    layers_of,
    require_same_branches,
    sequence_lengths,
    stds_by_layer,
)
from openwafer.training.parametrization.mup import Mup, analyse
from openwafer.training.parametrization.observation import Draws
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.sparsity.masks.algorithms import Static
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.options import SparseParameter

# Sizes that no width is likely to have, as sums over tokens and over widths are told apart by them.
NUM_SAMPLES, NUM_TOKENS = 2, 7


@dataclass(frozen=True)
class _Asked:
    """A config with all of it that muP depends on, as a key."""

    key: str
    vocab_size: int
    config: SparsityKeys = field(compare=False)
    base: Mapping[str, int] = field(compare=False)


def mup_of(config: SparsityKeys, base: Mapping[str, int], vocab_size: int) -> Mup:
    """What muP does to the model of a run, by the fields of its base model.

    Raises:
        OpenwaferError: ``mup-...`` and ``width-field``: base widths that do not fit the model, and
            what muP has no rule for, by name.
    """
    key = repr((config.model, base, config.sparsity, config.steps, config.seed))
    return _find(_Asked(key, vocab_size, config, base))


def layer_fields_of(
    config: SparsityKeys, base: Mapping[str, int], vocab_size: int
) -> tuple[str, ...]:
    """The fields of a base model that say how many layers it has."""
    described = with_vocab_size(config.model, vocab_size)
    with torch.random.fork_rng(devices=[]):
        small = shapes_of(with_widths(described, base), config.seed)
        return layer_fields(described, base, small, config.seed)


# A run asks for its model, its optimizers and its room, one after the other.
@lru_cache(maxsize=1)
def _find(asked: _Asked) -> Mup:
    config, base_fields = asked.config, asked.base
    _require_wider(config, base_fields)
    described, seed = with_vocab_size(config.model, asked.vocab_size), config.seed
    run = partial(_forward, vocab_size=asked.vocab_size)
    with torch.random.fork_rng(devices=[]):
        model = shapes_of(described, seed)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        with Draws() as draws:
            shallow = shapes_of(with_widths(described, base_fields), seed)
        stds = draws.stds(shallow)
        layers = layer_fields(described, base_fields, shallow, seed)
        widths = {name: size for name, size in base_fields.items() if name not in layers}
        wider = {name: 2 * width for name, width in widths.items()}
        base = shapes_of(with_widths(described, widths), seed) if layers else shallow
        delta = shapes_of(with_widths(described, wider), seed)
        for small in (shallow, base, delta):
            _fill(small)
        if layers:
            stds = stds_by_layer(stds, shapes, layers_of(shallow, base))
        mup = analyse(base, delta, shapes, stds, run)
        require_same_branches(base, delta, run)
        if layers:
            ratios = [width_of(described, name) / base_fields[name] for name in layers]
            mup = mup.with_depths(depths_of(shallow, base, ratios, run))
    return mup.with_densities(_densities(model, config))


def _fill(model: nn.Module) -> None:
    """Give a model zeros for weights: pages that take no memory, as nobody writes to them."""
    for parameter in model.parameters():
        num_bytes = max(parameter.numel(), 1) * parameter.element_size()
        pages = mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        zeros = torch.frombuffer(pages, dtype=parameter.dtype)[: parameter.numel()]
        parameter.data = zeros.reshape(parameter.shape)


def _forward(model: nn.Module, vocab_size: int) -> Tensor:
    """The loss of made-up tokens."""
    ids = (torch.arange(NUM_SAMPLES * NUM_TOKENS) % vocab_size).reshape(NUM_SAMPLES, NUM_TOKENS)
    try:
        return forward_loss(model, model_inputs(model, Batch(ids, ids.clone())))
    except (ArithmeticError, AssertionError, RuntimeError) as cause:
        raise error(
            "mup-forward",
            f"{type(model).__name__} refuses {NUM_SAMPLES} samples of {NUM_TOKENS} tokens while "
            f"its weights are zero: {cause}",
            notes=("muP looks at one forward of the base model to see what it does",),
            help="leave parametrization out for this architecture",
        ) from cause


def _require_wider(config: SparsityKeys, base: Mapping[str, int]) -> None:
    for name, width in base.items():
        found = width_of(config.model, name)
        if width > found:
            raise error(
                "mup-base",
                f"base.{name} is {width}, more than the model's {found}",
                help="let base describe the small model whose settings carry over",
            )


def _densities(model: nn.Module, config: SparsityKeys) -> dict[str, float]:
    """The share that is kept of each sparse weight."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    found = config.sparse_parameters(model)
    for name, parameter in found.items():
        _require_random(name, parameter)
    return {name: parameter.capacity / sizes[name] for name, parameter in found.items()}


def _require_random(name: str, parameter: SparseParameter) -> None:
    algorithm, method = parameter.algorithm, parameter.init_method
    if isinstance(algorithm, Static) and method is not InitMethod.TOPK:
        return
    found = f"init_method {method}" if isinstance(algorithm, Static) else type(algorithm).__name__
    raise error(
        "mup-sparsity",
        f"muP has a rule for weights that random masks keep throughout, and {name!r} has {found}",
        help="set algorithm: static and init_method: random, or leave parametrization out",
    )


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
