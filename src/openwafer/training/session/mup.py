"""muP of a run: the base model that its config names, and what follows for the model itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor, nn

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.data import Batch
from openwafer.training.models import with_vocab_size
from openwafer.training.models.widths import width_of, with_widths
from openwafer.training.parametrization import (
    Draws,
    Mup,
    Role,
    analyse,
    depths_of,
    layers_of,
    require_same_branches,
    stds_by_layer,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.session.mup_depth import layer_fields, shapes_of
from openwafer.training.session.parameter_groups import NO_ROLES
from openwafer.training.session.parametrization import Parametrization
from openwafer.training.session.sparse_model import sparse_parameters
from openwafer.training.sparsity.masks import InitMethod, Static
from openwafer.training.sparsity.parameters import SparseParameter

# Sizes that no width is likely to have, as sums over tokens and over widths are told apart by them.
NUM_SAMPLES, NUM_TOKENS = 2, 7


@dataclass(frozen=True)
class _Asked:
    """A config with all of it that muP depends on, as a key."""

    key: str
    vocab_size: int
    config: RunConfig = field(compare=False)


def mup_of(config: RunConfig, vocab_size: int) -> Mup | None:
    """What muP does to the model of a run; ``None`` under the standard parametrization.

    Raises:
        OpenwaferError: ``mup-...`` and ``width-field``: base widths that do not fit the model, and
            what muP has no rule for, by name.
    """
    if config.parametrization is Parametrization.STANDARD:
        return None
    key = repr((config.model, config.base, config.sparsity, config.steps, config.seed))
    return _find(_Asked(key, vocab_size, config))


def roles_of_run(config: RunConfig, vocab_size: int) -> Mapping[str, Role]:
    """Roles of the parameters by name; none under the standard parametrization."""
    mup = mup_of(config, vocab_size)
    return NO_ROLES if mup is None else mup.roles


def layer_fields_of(config: RunConfig, vocab_size: int) -> tuple[str, ...]:
    """The fields of a run's base that say how many layers it has."""
    described = with_vocab_size(config.model, vocab_size)
    with torch.random.fork_rng(devices=[]):
        small = shapes_of(with_widths(described, config.base), config.seed)
        return layer_fields(described, config.base, small, config.seed)


def foldings_of(config: RunConfig, vocab_size: int, model: nn.Module) -> Mapping[str, float]:
    """Factors by name of a parameter, with which a model needs no multipliers in its forward.

    Raises:
        OpenwaferError: ``export-mup`` where no weight can stand for what muP does to a forward.
    """
    mup = mup_of(config, vocab_size)
    if mup is None:
        return {}
    for path, rule in mup.attention.items():
        if getattr(model.get_submodule(path), rule.size) != rule.base_size:
            raise error(
                "export-mup",
                f"the attention of {path!r} divides by the size of a head, and that of other "
                "programs by its root",
                notes=("the heads of this model are larger than those of its base model",),
                help="train with more heads in place of larger ones: name their number in base",
            )
    if mup.unfolded and any(mup.multipliers[path] != 1 for path in mup.unfolded):
        raise error(
            "export-mup",
            f"the input of {mup.unfolded[0]!r} is multiplied by "
            f"{mup.multipliers[mup.unfolded[0]]:g}, and no weight before it can stand for that",
            help="train a model whose head has a weight of its own",
        )
    return {name: factor for name, factor in mup.foldings.items() if factor != 1}


def require_same_base(before: RunConfig, now: RunConfig) -> None:
    """Refuse to go on with a model that computes something else.

    Raises:
        OpenwaferError: ``mup-changed``.
    """
    for key in ("parametrization", "base"):
        found, asked = getattr(before, key), getattr(now, key)
        if found != asked:
            raise error(
                "mup-changed",
                f"the run was begun with {key}: {found}, and is to go on with {asked}",
                help="leave parametrization and base of a run as they are, or begin a new run",
            )


def remark_on_widths(config: RunConfig) -> Diagnostic | None:
    """A warning where the model is as wide as its base model, so that nothing is scaled."""
    if config.parametrization is Parametrization.STANDARD:
        return None
    if any(width_of(config.model, name) != width for name, width in config.base.items()):
        return None
    return Diagnostic(
        Severity.WARNING,
        "mup-base",
        "the model has the widths of its base model, so that muP scales nothing",
        help="make the model wider than base, or leave parametrization out",
    )


# A run asks for its model, its optimizers and its room, one after the other.
@lru_cache(maxsize=1)
def _find(asked: _Asked) -> Mup:
    config = asked.config
    _require_wider(config)
    described, seed = with_vocab_size(config.model, asked.vocab_size), config.seed
    run = partial(_forward, vocab_size=asked.vocab_size)
    with torch.random.fork_rng(devices=[]):
        model = shapes_of(described, seed)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        with Draws() as draws:
            shallow = shapes_of(with_widths(described, config.base), seed)
        stds = draws.stds(shallow)
        layers = layer_fields(described, config.base, shallow, seed)
        widths = {name: size for name, size in config.base.items() if name not in layers}
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
            ratios = [width_of(described, name) / config.base[name] for name in layers]
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


def _require_wider(config: RunConfig) -> None:
    for name, width in config.base.items():
        found = width_of(config.model, name)
        if width > found:
            raise error(
                "mup-base",
                f"base.{name} is {width}, more than the model's {found}",
                help="let base describe the small model whose settings carry over",
            )


def _densities(model: nn.Module, config: RunConfig) -> dict[str, float]:
    """The share that is kept of each sparse weight."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    found = sparse_parameters(model, config)
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
