"""The exact global norm of a step's gradients, taken while they are on their way to the store."""

from collections.abc import Mapping, Sequence

import torch

from openwafer.training.store.update_rules.clipping import tensor_norms, total_norm


class GradientNorm:
    """Collects the norm of every parameter's gradient.

    Args:
        names: all parameters in the model's order, which is the order of the sum.
        dtype: in which norms are taken; ``None`` is that of each gradient.
    """

    def __init__(self, names: Sequence[str], dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._names = tuple(names)
        self._norms: dict[str, torch.Tensor] = {}

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Take the norms of gradients, each that of its whole step."""
        norms = tensor_norms(gradients.values(), dtype=self._dtype)
        self._norms.update(zip(gradients, norms, strict=True))

    def take(self, norms: Mapping[str, torch.Tensor]) -> None:
        """Take norms that another system has found."""
        self._norms.update(norms)

    def give(self) -> dict[str, torch.Tensor]:
        """The norms found since the last call, for another system to take."""
        norms, self._norms = self._norms, {}
        return norms

    def total(self) -> torch.Tensor:
        """The norm over all gradients since the last call, as ``clip_grad_norm_`` has it."""
        norms = [self._norms[name] for name in self._names if name in self._norms]
        self._norms.clear()
        return total_norm(norms)
