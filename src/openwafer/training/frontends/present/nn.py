"""What scripts find in ``cstorch.nn``: torch's losses, and weights that change in part."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.nn import (
    BCELoss,
    BCEWithLogitsLoss,
    Buffer,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    CTCLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    Parameter,
    PoissonNLLLoss,
    SmoothL1Loss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from openwafer.diagnostics import error
from openwafer.training.frontends.present import backends, functional
from openwafer.training.frontends.present.annotations import FilterCallable, make_param_filter
from openwafer.training.frontends.scripts.program import kind_of

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "Buffer",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "Parameter",
    "PoissonNLLLoss",
    "Scope",
    "SelectiveGrad",
    "SmoothL1Loss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "functional",
]

_OUTLIER = 2.25


class Scope(nn.Module):
    """Names a part of a step for the vendor's compiler: here its tensors pass as they are.

    Args:
        scope_name: the name.
    """

    def __init__(self, scope_name: str) -> None:
        super().__init__()
        self.scope_name = scope_name

    def forward(self, tensor: Tensor) -> Tensor:
        """A tensor that enters the part."""
        return tensor

    def exit(self, tensor: Tensor) -> Tensor:
        """A tensor that leaves it."""
        return tensor


Filter = str | Sequence[str] | FilterCallable
Choice = Callable[[nn.Parameter], Any]


def _outliers(weight: nn.Parameter) -> Tensor:
    size = weight.detach().abs()
    return size >= _OUTLIER * size.std(dim=0, keepdim=True)


class _Selected(NamedTuple):
    """A weight that changes in part: the buffer ``NAME_requires_grad`` beside it says where."""

    owner: nn.Module
    name: str

    @property
    def weight(self) -> nn.Parameter:
        return self.owner.get_parameter(self.name)

    @property
    def mask(self) -> Tensor:
        return self.owner.get_buffer(f"{self.name}_requires_grad")


class SelectiveGrad:
    """Lets a part of each chosen weight train: what is not chosen keeps its bits.

    ``model.apply(selective_grad)``, behind ``cstorch.compile``, chooses by the weights as they are
    then. Gradients and optimizer states of what is not chosen are 0.

    Args:
        param_filter: globs of parameters' names, or a function of name and parameter.
        init_method: ``"outlier"``, for values beyond 2.25 standard deviations of their column's
            magnitudes; or a function of a parameter that returns a bool tensor of its shape.

    Raises:
        OpenwaferError: ``present-selective``.
    """

    def __init__(self, param_filter: Filter, init_method: str | Choice = "outlier") -> None:
        if init_method != "outlier" and not callable(init_method):
            raise error(
                "present-selective",
                f"SelectiveGrad knows no init_method {init_method!r}",
                help='write "outlier", or a function of a parameter that returns a bool tensor',
            )
        self._filter, self._takes = param_filter, make_param_filter(param_filter)
        self._choose: Choice = _outliers if isinstance(init_method, str) else init_method
        self._selected: list[_Selected] = []
        self._before: list[Tensor] = []

    def __call__(self, module: nn.Module) -> None:
        # torch calls it for each module of the model that it is applied to.
        if module is backends.current("model.apply(selective_grad)").program.model:
            self.apply(module)

    def apply(self, module: nn.Module) -> None:
        """Choose of a module's parameters.

        Raises:
            OpenwaferError: ``present-selective`` where none matches, or what `init_method` returned
                is no mask.
        """
        if not isinstance(module, nn.Module):
            raise error(
                "present-selective",
                f"selective gradients are applied to {kind_of(module)}",
                help="write model.apply(selective_grad)",
            )
        found = [name for name, weight in module.named_parameters() if self._takes(name, weight)]
        if not found:
            raise error(
                "present-selective",
                f"no parameter of the {type(module).__name__} matches {self._filter!r}",
                help="give a glob, as *.weight; it compares whole names",
            )
        for name in found:
            path, _, leaf = name.rpartition(".")
            self._select(_Selected(module.get_submodule(path), leaf), name)
        # The hooks end with the model, whose gradients' hooks hold this object.
        this = ref(self)
        before = register_optimizer_step_pre_hook(lambda *args: _called(this, "_keep", args[0]))
        after = register_optimizer_step_post_hook(lambda *args: _called(this, "_restore", args[0]))
        for handle in (before, after):
            finalize(self, handle.remove)

    def _select(self, selected: _Selected, name: str) -> None:
        weight = selected.weight
        mask = self._choose(weight)
        if not isinstance(mask, Tensor) or mask.shape != weight.shape or mask.dtype != torch.bool:
            raise error(
                "present-selective",
                f"the init_method returned {_described(mask)} for {name!r}, whose shape is "
                f"{tuple(weight.shape)}",
                help="return a bool tensor of the parameter's shape",
            )
        selected.owner.register_buffer(f"{selected.name}_requires_grad", mask)
        weight.register_hook(partial(self._masked, selected))
        self._selected.append(selected)

    def _masked(self, selected: _Selected, gradient: Tensor) -> Tensor:
        return torch.where(selected.mask.to(gradient.device), gradient, 0)

    def _steps(self, optimizer: Optimizer) -> bool:
        return backends.is_over(optimizer, {id(each.weight) for each in self._selected})

    @torch.no_grad()
    def _keep(self, optimizer: Optimizer) -> None:
        if self._steps(optimizer):
            self._before = [each.weight.detach().clone() for each in self._selected]

    @torch.no_grad()
    def _restore(self, optimizer: Optimizer) -> None:
        if not self._steps(optimizer):
            return
        for selected, before in zip(self._selected, self._before, strict=True):
            weight, mask = selected.weight, selected.mask
            # A decay moves weights without a gradient, too.
            weight.copy_(torch.where(mask.to(weight.device), weight, before.to(weight.device)))
            for state in optimizer.state[weight].values():
                if torch.is_tensor(state) and state.shape == mask.shape:
                    state.mul_(mask.to(state.device))
        self._before = []


def _called(this: "ref[SelectiveGrad]", method: str, optimizer: Optimizer) -> None:
    selective = this()
    if selective is not None:
        getattr(selective, method)(optimizer)


def _described(mask: Any) -> str:
    is_tensor = isinstance(mask, Tensor)
    return f"{mask.dtype} of {tuple(mask.shape)}" if is_tensor else kind_of(mask)
