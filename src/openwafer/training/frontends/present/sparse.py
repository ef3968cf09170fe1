"""What scripts find in ``cstorch.sparse``: weights that are masked while they train.

Which weights are kept, and when that changes, is decided by :mod:`openwafer.training.sparsity`; the
mask of a parameter ``w`` is the buffer ``w_mask`` beside it, and in checkpoints.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.config import parse
from openwafer.diagnostics import error
from openwafer.source import SourceText
from openwafer.training.frontends.present import backends
from openwafer.training.frontends.scripts.program import kind_of
from openwafer.training.sparsity.masks import algorithms
from openwafer.training.sparsity.masks.algorithms import (
    Algorithm,
    is_update,
    updated,
    wants_gradient,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask
from openwafer.training.sparsity.options import (
    SparsityGroup,
    WrittenSparsity,
    choose_groups,
    sparsity_groups,
)

__all__ = ["GMP", "SET", "Group", "RigL", "SparsityAlgorithm", "Static", "configure"]

_DENSE: Final = ("embedding", "norm", "lm_head", "pe_helper")


@dataclass(frozen=True)
class _Written:
    """What a script writes, as a config has it."""

    sparsity: WrittenSparsity


@dataclass
class _Masked:
    """A sparse parameter.

    Attributes:
        owner, name: the module that has it, and its name there.
        algorithm, init_method: see :class:`SparsityGroup`.
        is_loaded: whether its mask came from a checkpoint.
        has_gradient: whether one has arrived since the last step.
        dense: its whole gradient in a step that asks for it.
    """

    owner: nn.Module
    name: str
    algorithm: Algorithm
    init_method: InitMethod
    is_loaded: bool = False
    has_gradient: bool = False
    dense: Tensor | None = field(default=None, repr=False)

    @property
    def weight(self) -> nn.Parameter:
        """The parameter."""
        return self.owner.get_parameter(self.name)

    @property
    def mask(self) -> Tensor:
        """Its mask, bool of its shape."""
        return self.owner.get_buffer(f"{self.name}_mask")


class SparsityAlgorithm:
    """Masks the weights of a model, and changes the masks behind steps of its optimizer.

    A gradient is masked where it arrives, so that weights which are not kept stay 0, and their
    optimizer states. ``model.apply(sparsity)`` and ``optimizer.apply(sparsity)`` call it.

    Args:
        groups: as ``cstorch.sparse.configure`` takes them.

    Attributes:
        groups: see :class:`SparsityGroup`; for a parameter, the first that matches.
        step: steps that the optimizer has taken.

    Raises:
        OpenwaferError: ``present-no-backend``, and what a config of sparse weights raises.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        backend = backends.current("cstorch.sparse")
        self.groups = _read(groups)
        self._seed = torch.initial_seed() % 2**62
        self._algorithms = [_rounding(group.build(self._seed)) for group in self.groups]
        self._masked: dict[str, _Masked] = {}
        self._following: dict[Optimizer, RemovableHandle] = {}
        self._is_begun = False
        self.step = 0
        backend.sparsities.append(self)

    @property
    def num_sparse_params(self) -> int:
        """How many parameters are sparse."""
        return len(self._masked)

    def __call__(self, target: nn.Module | Optimizer) -> None:
        # torch calls it for each module of the model that it is applied to.
        model = backends.current("model.apply(sparsity)").program.model
        if isinstance(target, Optimizer) or target is model:
            self.apply(target)

    def apply(self, target: nn.Module | Optimizer) -> None:
        """Make the parameters of a module sparse, or follow the steps of an optimizer.

        Raises:
            OpenwaferError: ``present-sparsity`` for what is neither; ``sparsity-filter``.
        """
        if isinstance(target, Optimizer):
            self._following[target] = target.register_step_post_hook(self._after_step)
        elif isinstance(target, nn.Module):
            self._mask(target)
        else:
            raise error(
                "present-sparsity",
                f"sparsity is applied to {kind_of(target)}",
                help="write model.apply(sparsity), and optimizer.apply(sparsity)",
            )

    def _mask(self, module: nn.Module) -> None:
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        dense = [name for name in shapes if any(word in name.lower() for word in _DENSE)]
        for name, number in choose_groups(self.groups, shapes, dense).items():
            path, _, leaf = name.rpartition(".")
            owner = module.get_submodule(path)
            chosen = self.groups[number].init_method
            masked = _Masked(owner, leaf, self._algorithms[number], chosen)
            owner.register_buffer(f"{leaf}_mask", torch.ones_like(masked.weight, dtype=torch.bool))
            owner.register_load_state_dict_pre_hook(partial(_note_loaded, masked))
            masked.weight.register_hook(partial(self._masked_gradient, masked))
            self._masked[name] = masked
        module.register_forward_hook(self._follow_last)

    def _follow_last(self, *_: Any) -> None:
        # A stream that has begun meanwhile ends a step in a hook of its own, which has to be first.
        for optimizer, handle in self._following.items():
            handle.remove()
            self._following[optimizer] = optimizer.register_step_post_hook(self._after_step)

    @torch.no_grad()
    def initialize(self) -> None:
        """Choose the masks that no checkpoint has brought, and set what they drop to 0.

        Raises:
            OpenwaferError: ``present-sparsity`` where it was applied to no model.
        """
        if not self._masked:
            raise error(
                "present-sparsity",
                "a loop begins, and its sparsity was applied to no model",
                help="write model.apply(sparsity) behind cstorch.compile",
            )
        if self._is_begun:
            return
        self._is_begun = True
        for name, masked in self._masked.items():
            weight, mask = masked.weight, masked.mask
            if not masked.is_loaded and _begins_sparse(masked.algorithm):
                sparsity = masked.algorithm.target.sparsity_at(0)
                values = weight.detach()
                mask.copy_(initial_mask(masked.init_method, values, sparsity, name, self._seed))
            weight.mul_(mask)

    def _masked_gradient(self, masked: _Masked, gradient: Tensor) -> Tensor:
        masked.has_gradient = True
        if wants_gradient(masked.algorithm, self.step + 1):
            before = masked.dense
            masked.dense = gradient.detach().clone() if before is None else before + gradient
        mask = masked.mask.to(gradient.device)
        # A gradient that is not finite, of a weight that is not kept, does no harm.
        return torch.where(mask, gradient, torch.zeros_like(gradient))

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        for name, masked in self._masked.items():
            if masked.has_gradient and is_update(masked.algorithm, self.step):
                self._update(name, masked, optimizer)
            masked.has_gradient = False

    def _update(self, name: str, masked: _Masked, optimizer: Optimizer) -> None:
        weight, mask, algorithm = masked.weight, masked.mask, masked.algorithm
        candidates = None
        if isinstance(algorithm, algorithms.RigL) and masked.dense is not None:
            candidates = algorithm.candidates(self.step, masked.dense.to(mask.device), mask)
        masked.dense = None
        values = weight.detach().clone()
        found = updated(algorithm, self.step, name, values, mask, candidates)
        mask.copy_(found.mask)
        kept = found.mask & ~found.regrown
        weight.mul_(kept.to(weight.device))
        for state in optimizer.state[weight].values():
            if torch.is_tensor(state) and state.shape == kept.shape:
                state.mul_(kept.to(state.device))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the model's masks."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on behind the step that :meth:`state_dict` gave."""
        self.step = int(state_dict["step"])


Group = SparsityAlgorithm


def _rounding(algorithm: Algorithm) -> Algorithm:
    """An algorithm with the style's rounding of drop fractions."""
    if isinstance(algorithm, algorithms.SET | algorithms.RigL):
        return replace(algorithm, floors_left=True)
    return algorithm


def _begins_sparse(algorithm: Algorithm) -> bool:
    """Whether the mask of step 0 drops weights: updates that begin later find a dense weight."""
    updates = algorithm.target.updates
    is_late = getattr(updates, "start", 0) > 0 or 0 not in getattr(updates, "steps", (0,))
    return isinstance(algorithm, algorithms.Static) or not is_late


def _note_loaded(
    masked: _Masked, module: nn.Module, state: Mapping[str, Any], prefix: str, *rest: Any
) -> None:
    masked.is_loaded = masked.is_loaded or f"{prefix}{masked.name}_mask" in state


def _read(groups: Sequence[Mapping[str, Any]]) -> tuple[SparsityGroup, ...]:
    written = json.dumps({"sparsity": [_completed(group) for group in groups]})
    return sparsity_groups(parse(SourceText("cstorch.sparse", written), _Written).sparsity)


def _completed(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {"algorithm": "static", **group, **group.get("params", {})}
    found.pop("params", None)
    found["algorithm"] = str(found["algorithm"]).lower()
    if found["algorithm"] != "static":
        found.setdefault("update", {"freq": 1})
    # So the vendor's own examples of GMP call it. With both of them, the second is refused.
    if found.get("sparsity") is None and "schedule" in found:
        found["sparsity"] = found.pop("schedule")
    return {name: value for name, value in found.items() if value is not None}


class _OneGroup(SparsityAlgorithm):
    """One algorithm for all that its filter takes."""

    algorithm: ClassVar[str]

    def __init__(self, sparsity: Any = None, **options: Any) -> None:
        super().__init__([{"algorithm": self.algorithm, "sparsity": sparsity, **options}])


class Static(_OneGroup):
    """One mask for the whole run."""

    algorithm = "static"


class GMP(_OneGroup):
    """Gradual magnitude pruning."""

    algorithm = "gmp"


class SET(_OneGroup):
    """Sparse evolutionary training."""

    algorithm = "set"


class RigL(_OneGroup):
    """Rigging the lottery."""

    algorithm = "rigl"


def configure(config: Any) -> SparsityAlgorithm:
    """The sparsity that a script's config describes.

    Args:
        config: a number, a group, a list of groups, or ``{"groups": ...}``. A group has the keys
            of :class:`SparsityGroup`.

    Raises:
        OpenwaferError: as :class:`SparsityAlgorithm`.
    """
    if isinstance(config, int | float):
        config = {"sparsity": float(config)}
    if isinstance(config, Mapping):
        config = config.get("groups", config)
    return SparsityAlgorithm([config] if isinstance(config, Mapping) else config)
