"""What a step learns of its gradients while they are on their way to the store."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from openwafer.training.store.layout import Part
from openwafer.training.store.record_access import Arrays
from openwafer.training.store.update_rules.clipping import tensor_norms
from openwafer.training.torch_private import unscale_and_check


@dataclass(frozen=True)
class GradientReport:
    """What a system knows of the gradients of its records, when a pass is over.

    Attributes:
        norms: by parameter; empty where nobody clips.
        has_overflowed: whether one is not finite, where losses are scaled.
    """

    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    has_overflowed: bool = False


def kept_norms(
    loan: Arrays, factors: Mapping[str, float], norm_type: float, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """Norms of gradients that the store keeps, by parameter.

    Args:
        loan: lends them.
        factors: by parameter, what its gradient is multiplied by first.
        norm_type: order of the norms.
        dtype: in which they are taken; ``None`` is that of each gradient.
    """
    with torch.no_grad():
        lent = ((loan.tensor(name, Part.GRADIENTS), factors[name]) for name in factors)
        scaled = (gradient if factor == 1.0 else gradient * factor for gradient, factor in lent)
        return dict(zip(factors, tensor_norms(scaled, norm_type, dtype=dtype), strict=True))


class StepGradients:
    """Takes the loss scale off gradients, then their norms, and notes an overflow.

    Args:
        is_clipped: whether norms are taken.
        is_scaled: whether losses are multiplied by a scale.
        norm_dtype: in which norms are taken; ``None`` is that of each gradient.

    Attributes:
        scale: what the losses of the pass are multiplied by.
        norms: of the pass, by parameter; each that of its whole step.
    """

    def __init__(
        self, *, is_clipped: bool, is_scaled: bool, norm_dtype: torch.dtype | None = None
    ) -> None:
        self._is_clipped, self._is_scaled = is_clipped, is_scaled
        self._norm_dtype = norm_dtype
        self.begin(1.0)

    def begin(self, scale: float) -> None:
        """A pass begins, whose losses are multiplied by a scale."""
        self.scale = scale
        self.norms: dict[str, torch.Tensor] = {}
        self._overflows: dict[torch.device, torch.Tensor] = {}
        self._overflows_elsewhere = False

    def watch(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Look at gradients, each that of its whole step, and unscale them in place."""
        if self._is_scaled:
            self._unscale(gradients.values())
        if self._is_clipped:
            norms = tensor_norms(gradients.values(), dtype=self._norm_dtype)
            self.norms.update(zip(gradients, norms, strict=True))

    def _unscale(self, gradients: Iterable[torch.Tensor]) -> None:
        # As in GradScaler: 1 / scale may underflow in fp32 where it does not in fp64.
        inverse = torch.tensor(self.scale, dtype=torch.float64).reciprocal().float()
        for gradient in gradients:
            device = gradient.device
            overflow = self._overflows.setdefault(device, torch.zeros(1, device=device))
            unscale_and_check([gradient], overflow, inverse.to(device))

    @property
    def has_overflowed(self) -> bool:
        """Whether a gradient of the pass is not finite."""
        return self._overflows_elsewhere or any(map(torch.Tensor.item, self._overflows.values()))

    @property
    def report(self) -> GradientReport:
        """What the other systems are told, when the pass is over."""
        return GradientReport(self.norms, self.has_overflowed)

    def add(self, report: GradientReport) -> None:
        """Learn what another system knows of its gradients."""
        self.norms.update(report.norms)
        self._overflows_elsewhere |= report.has_overflowed
