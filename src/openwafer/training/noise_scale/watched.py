"""Which modules' weights have per-example gradients that their inputs and outputs tell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from torch import nn
from transformers.pytorch_utils import Conv1D

from openwafer.training.noise_scale.norm_layers import NormLayer, norm_layer_of


class Watched(Enum):
    """Whose weights are measured.

    Attributes:
        NORMS: of normalisation layers, which are small and predict the noise scale of all well
            (Gray et al. 2024, arXiv:2411.00999).
        ALL: of normalisation layers, linear maps and embeddings.
    """

    NORMS = "norms"
    ALL = "all"


@dataclass(frozen=True)
class WatchedModule:
    """A module whose weights are measured.

    Attributes:
        path: in the model.
        norm: how it normalises; ``None`` for a linear map or a table of embeddings.
        weight, bias: names in the model of those that are trained.
        is_tied: whether its weight is that of another module, too.
    """

    path: str
    module: nn.Module
    norm: NormLayer | None
    weight: str | None
    bias: str | None
    is_tied: bool = False


def watched_modules(model: nn.Module, watched: Watched) -> list[WatchedModule]:
    """The modules of a model that are measured, in its order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [*_found(model, watched, names)]
    uses = [each.weight for each in found if each.weight is not None]
    return [
        WatchedModule(
            each.path,
            each.module,
            each.norm,
            each.weight,
            each.bias,
            each.weight is not None and uses.count(each.weight) > 1,
        )
        for each in found
    ]


def _found(
    model: nn.Module, watched: Watched, names: Mapping[nn.Parameter, str]
) -> Iterator[WatchedModule]:
    for path, module in model.named_modules():
        norm = norm_layer_of(module)
        if norm is None and (watched is Watched.NORMS or not is_map(module)):
            continue
        trained = {
            own: names[parameter]
            for own, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        if trained:
            yield WatchedModule(path, module, norm, trained.get("weight"), trained.get("bias"))


def is_map(module: nn.Module) -> bool:
    """Whether a module is a plain linear map or a plain table of embeddings."""
    # One with a forward of its own may do anything with its weight.
    forward = type(module).forward
    if isinstance(module, nn.Embedding):
        return forward is nn.Embedding.forward and not module.scale_grad_by_freq
    return forward is nn.Linear.forward or isinstance(module, Conv1D)
