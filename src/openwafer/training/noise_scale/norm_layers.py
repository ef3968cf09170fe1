"""Normalisation layers, known by what they compute: a normalised input times weights.

Libraries have a class of their own for each model, and some add 1 to the weights. So layers that
are not torch's are run on a few numbers and compared with torch's functions.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

TOLERANCE = 1e-4
# The mean squares of the rows that a layer is tried on: what is added to them must show.
SCALES = (1e-6, 1e-3, 1.0)


@dataclass(frozen=True)
class NormLayer:
    """How a layer normalises.

    Attributes:
        shape: of its weights, the last dims of its input.
        epsilon: added to the mean square; ``None`` for torch's own choice.
        is_centred: whether the mean is taken off before, as LayerNorm does.
    """

    shape: tuple[int, ...]
    epsilon: float | None
    is_centred: bool

    def normalise(self, x: Tensor) -> Tensor:
        """The input as it is before weights and bias."""
        if self.is_centred:
            assert self.epsilon is not None
            return F.layer_norm(x, self.shape, None, None, self.epsilon)
        return F.rms_norm(x, self.shape, None, self.epsilon)


def norm_layer_of(module: nn.Module) -> NormLayer | None:
    """How a module normalises; ``None`` for one that does something else, or has no weights."""
    if isinstance(module, nn.LayerNorm):
        is_weighed = module.elementwise_affine
        return NormLayer(module.normalized_shape, module.eps, True) if is_weighed else None
    if isinstance(module, nn.RMSNorm):
        is_weighed = module.elementwise_affine
        return NormLayer(module.normalized_shape, module.eps, False) if is_weighed else None
    parameters = dict(module.named_parameters())
    if "weight" not in parameters or parameters.keys() - {"weight", "bias"}:
        return None
    shape = parameters["weight"].shape
    if len(shape) != 1 or any(each.shape != shape for each in parameters.values()):
        return None
    return _compared(module, parameters)


def _compared(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> NormLayer | None:
    [size] = parameters["weight"].shape
    scales = torch.tensor(SCALES)[:, None]
    x = torch.randn(len(SCALES), size, generator=torch.Generator().manual_seed(0)) * scales.sqrt()
    outputs = [_with_weights(module, parameters, x, value) for value in (0.0, 1.0, 2.0)]
    if any(output is None for output in outputs):
        return None
    none, once, twice = (output for output in outputs if output is not None)
    found = once - none
    if not torch.allclose(twice - none, 2 * found, rtol=TOLERANCE):
        return None
    for candidate in _candidates(module, (size,)):
        if torch.allclose(found, candidate.normalise(x), rtol=TOLERANCE, atol=TOLERANCE):
            return candidate
    return None


def _with_weights(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], x: Tensor, value: float
) -> Tensor | None:
    """Output for these weights and no bias; ``None`` from a module that takes no such input."""
    weights = {name: torch.zeros(p.shape) for name, p in parameters.items()}
    weights["weight"] += value
    try:
        with torch.no_grad():
            output = functional_call(module, weights, (x,))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    return output if isinstance(output, Tensor) and output.shape == x.shape else None


def _candidates(module: nn.Module, shape: tuple[int, ...]) -> Iterator[NormLayer]:
    numbers = [v for v in vars(module).values() if isinstance(v, float) and 0 < v < math.inf]
    for epsilon in numbers:
        yield NormLayer(shape, epsilon, False)
        yield NormLayer(shape, epsilon, True)
