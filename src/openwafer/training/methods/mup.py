"""muP as a method: settings that were tuned on a small model, scaled to a larger one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Self

import torch
from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.training.data import Batch
from openwafer.training.methods.seam import Method, ParameterRules
from openwafer.training.methods.sparsity import SparsityKeys
from openwafer.training.methods.widths import width_of, with_widths
from openwafer.training.models import CheckpointFolder, ModelConfig, build
from openwafer.training.models.build import build_without_weights, with_vocab_size
from openwafer.training.parametrization.depth import (
    depths_of,
    layers_of,
    require_same_branches,
    sequence_lengths,
    stds_by_layer,
)
from openwafer.training.parametrization.mup import Mup, analyse, scale_initial_weights, take_mup
from openwafer.training.parametrization.observation import Draws
from openwafer.training.parametrization.roles import Kind, Role, branch_factor, factors_of
from openwafer.training.session.config_sections import OptimizerConfig, Settings
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.sparsity.masks.algorithms import Static
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.options import SparseParameter
from openwafer.training.store.update_rules.optimizers import options_of

DECAY = "weight_decay"
DECOUPLED = "decoupled_weight_decay"
# Of these, weight decay is part of the gradient, whose size their updates do not see.
NORMALISING = ("adam", "nadam")
PROPORTIONAL = "sgd"
EPS = "eps"
ADAMS = ("adamw", *NORMALISING)
# Sizes that no width is likely to have, as sums over tokens and over widths are told apart by them.
NUM_SAMPLES, NUM_TOKENS = 2, 7


def scaled(settings: Settings, role: Role) -> Settings:
    """Settings of the base model, for a parameter of a model of another width.

    Raises:
        OpenwaferError: ``mup-optimizer``, ``mup-weight-decay``.
    """
    name = settings.optimizer
    factors = factors_of(role, name, settings.options)
    decay = settings.weight_decay
    if decay is None:
        default = options_of(name)[DECAY]
        assert isinstance(default, int | float)
        decay = default
    if decay and name in NORMALISING and not settings.options.get(DECOUPLED):
        raise error(
            "mup-weight-decay",
            f"{name} adds weight decay to the gradient, for which muP has no rule",
            help=f"set optimizer.name to adamw, or options: {{{DECOUPLED}: true}}",
        )
    return Settings(
        name,
        settings.learning_rate * factors.learning_rate,
        decay * factors.weight_decay,
        _beside(settings, factors.gradient),
    )


def _beside(settings: Settings, gradient: float) -> Mapping[str, object]:
    """Options whose eps, where it is added to the root of squared gradients, is of their size."""
    if settings.optimizer not in ADAMS or gradient == 1:
        return settings.options
    eps = settings.options.get(EPS, options_of(settings.optimizer)[EPS])
    assert isinstance(eps, int | float)
    return {**settings.options, EPS: eps * gradient}


def require_clippable(roles: Mapping[str, Role], config: OptimizerConfig) -> None:
    """Refuse a clip that would make updates depend on the width or the depth.

    What is in weights in place of a multiplier of the forward has gradients that do not shrink with
    the width, or the depth, and the norm of all gradients grows. The updates of SGD would shrink
    with it; those of the others do not follow the size of gradients.

    Raises:
        OpenwaferError: ``mup-clip``.
    """
    names = {config.name, *(group.name for group in config.groups)}
    if PROPORTIONAL not in names:
        return
    for side, folded in (
        ("width", [name for name, role in roles.items() if role.is_folded]),
        ("depth", [name for name, role in roles.items() if branch_factor(role) != 1]),
    ):
        if folded:
            raise error(
                "mup-clip",
                f"the norm of all gradients grows with the {side} by that of {folded[0]!r}, and "
                "SGD's updates shrink where it is clipped",
                help="set clip_norm: null, or take adamw",
            )


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


class Parametrization(StrEnum):
    """By which rule a model of another width is trained."""

    STANDARD = "standard"  # every setting as it is written, at every width
    MUP = "mup"  # settings are those of a base model, and are scaled to the model's widths


@dataclass(frozen=True)
class MupKeys(SparsityKeys):
    """The keys of muP.

    Attributes:
        parametrization: standard, or mup: initial weights, learning rates and weight decay are
            then those of a base model, and are scaled to the model's widths.
        base: the base model's widths, and its number of layers if that shall count, by the fields
            of the model's config, such as ``{hidden_size: 256, num_attention_heads: 4}``; all other
            fields are the model's.
    """

    parametrization: Parametrization = Parametrization.STANDARD
    base: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_mup and not self.base:
            raise InvalidFieldError(
                "parametrization",
                "mup scales from a base model, and no widths of one are given",
                help="write base: {hidden_size: ...} with the widths that settings were tuned at",
            )
        if self.base and not self.is_mup:
            raise InvalidFieldError(
                "base",
                "the standard parametrization has no base model",
                help="set parametrization: mup, or leave base out",
            )
        for name, width in self.base.items():
            if width < 1:
                raise InvalidFieldError("base", f"expected at least 1 for {name}, found {width}")
        if self.is_mup and isinstance(self.model, CheckpointFolder):
            raise InvalidFieldError(
                "parametrization",
                "mup decides on initial weights, and those of a saved model are there already",
                help="leave parametrization out, or describe the model by its architecture",
            )

    @property
    def is_mup(self) -> bool:
        """Whether settings are those of a base model."""
        return self.parametrization is Parametrization.MUP

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found = super().methods()
        return (*found, WidthScaling(self, self.base)) if self.is_mup else found

    def require_same(self, before: Self, model: nn.Module) -> None:
        """Refuse to go on with a model that computes something else.

        Raises:
            OpenwaferError: ``mup-changed``.
        """
        super().require_same(before, model)
        for key in ("parametrization", "base"):
            found, asked = getattr(before, key), getattr(self, key)
            if found != asked:
                raise error(
                    "mup-changed",
                    f"the run was begun with {key}: {found}, and is to go on with {asked}",
                    help="leave parametrization and base of a run as they are, or begin a new run",
                )


@dataclass(frozen=True)
class WidthScaling(Method):
    """Scales the settings of a base model to those of the run's."""

    config: SparsityKeys
    base: Mapping[str, int]

    key = "parametrization"
    not_in_stages = ""

    def draw(self, build: Callable[[], nn.Module], vocab_size: int) -> nn.Module:
        """The model with initial weights of the sizes that muP gives them."""
        mup = self._mup(vocab_size)
        with Draws() as draws:
            model = build()
        scale_initial_weights(model, mup, draws.stds(model))
        return model

    def shape_forward(self, model: nn.Module, vocab_size: int) -> None:
        """Give the forward its multipliers."""
        take_mup(model, self._mup(vocab_size))

    def parameter_rules(self, model: nn.Module, vocab_size: int) -> ParameterRules:
        """Learning rates and decays by the role of each parameter.

        Raises:
            OpenwaferError: ``mup-clip``.
        """
        roles = self._mup(vocab_size).roles
        if self.config.clip_norm is not None:
            require_clippable(roles, self.config.optimizer)
        return _RulesByRole(roles)

    def remarks(self, model: nn.Module) -> Iterator[Diagnostic]:
        """A warning where the model is as wide as its base model, so that nothing is scaled."""
        if all(width_of(self.config.model, name) == width for name, width in self.base.items()):
            yield Diagnostic(
                Severity.WARNING,
                "mup-base",
                "the model has the widths of its base model, so that muP scales nothing",
                help="make the model wider than base, or leave parametrization out",
            )

    def export_factors(self, model: nn.Module, vocab_size: int) -> Mapping[str, float]:
        """With these a model needs no multipliers in its forward.

        Raises:
            OpenwaferError: ``export-mup`` where no weight can stand for what muP does to a forward.
        """
        mup = self._mup(vocab_size)
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

    def _mup(self, vocab_size: int) -> Mup:
        return mup_of(self.config, self.base, vocab_size)


class _RulesByRole(ParameterRules):
    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = roles
        self.hidden = {name for name, role in roles.items() if role.kind is Kind.HIDDEN}

    def scaled(self, name: str, settings: Settings) -> Settings:
        return scaled(settings, self._roles[name])
