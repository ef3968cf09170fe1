"""In which format a trainer's forward computes, and how gradients are clipped."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.present import amp
from openwafer.training.frontends.present.backends import Backend


@dataclass
class MixedPrecision:
    """A forward in 16 bits on ``"CPU"`` and ``"GPU"``; in the weights' format on ``"CSX"``.

    Attributes:
        enabled: whether it computes in `fp16_type`; clipping is done in either case.
        fp16_type: on the CPU always bfloat16, as the vendor's.
        precision_opt_level, loss_scaling_factor, initial_loss_scale, steps_per_increase,
            min_loss_scale, max_loss_scale, log_loss_scale: of the vendor's machine; the loss is not
            scaled.
        max_gradient_norm: to which gradients are clipped, or
        max_gradient_value: to which each element is.

    Raises:
        OpenwaferError: ``trainer-precision``.
    """

    enabled: bool = True
    fp16_type: Literal["float16", "bfloat16", "cbfloat16"] = "bfloat16"
    precision_opt_level: int | None = None
    loss_scaling_factor: float | str | None = 1.0
    initial_loss_scale: float | None = None
    steps_per_increase: int = 2000
    min_loss_scale: float | None = None
    max_loss_scale: float | None = None
    max_gradient_norm: float | None = None
    max_gradient_value: float | None = None
    log_loss_scale: bool | None = None

    def __post_init__(self) -> None:
        clips = {"norm": self.max_gradient_norm, "value": self.max_gradient_value}
        given = {name: most for name, most in clips.items() if most is not None}
        if len(given) > 1 or any(most <= 0 for most in given.values()):
            raise error(
                "trainer-precision",
                "gradients are to be clipped to "
                + " and ".join(f"the {name} {most}" for name, most in given.items()),
                help="give one of max_gradient_norm and max_gradient_value, above 0",
            )

    def forward_context(self, backend: Backend) -> AbstractContextManager[Any]:
        """Context of a forward."""
        if not self.enabled or backend.is_csx:
            return nullcontext()
        is_half = backend.is_cpu or self.fp16_type != "float16"
        return amp.autocast(torch.bfloat16 if is_half else torch.float16)

    def clip_gradients(self, optimizer: Optimizer) -> None:
        """Clip what an optimizer is about to take."""
        amp.clip_gradients(optimizer, self.max_gradient_norm, self.max_gradient_value)
