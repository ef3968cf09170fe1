"""muP as a method: its keys, what it does to a model, to its parameters' settings and exports."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.methods.mup.base_model import mup_of
from openwafer.training.methods.mup.rates import require_clippable, scaled
from openwafer.training.methods.seam import Method, ParameterRules
from openwafer.training.methods.sparsity.method import SparsityKeys
from openwafer.training.models import CheckpointFolder
from openwafer.training.models.build import width_of
from openwafer.training.parametrization.mup import Mup, scale_initial_weights, take_mup
from openwafer.training.parametrization.observation import Draws
from openwafer.training.parametrization.roles import Kind, Role
from openwafer.training.session.config_sections import Settings


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
