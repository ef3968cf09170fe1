"""The arithmetic of clipping by the global norm, cut where a streamed step has to cut it.

A resident loop has all gradients at hand and calls `torch.nn.utils.clip_grad_norm_`. Here each
tensor's norm is taken when its gradient arrives, the total once all have arrived, and the scaling
waits for the update. The bits are torch's.
"""

import math
from collections.abc import Iterable, Sequence

import torch

from openwafer.diagnostics import error
from openwafer.training.torch_private import group_tensors


def tensor_norms(
    gradients: Iterable[torch.Tensor],
    norm_type: float = 2.0,
    *,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """The norm of each gradient, a scalar tensor; taken in `dtype` when given.

    That of a complex gradient is a complex number, by which `total_norm` knows where it belongs.

    `norm_type` is any positive number or infinity. Torch adds up a norm of order 2 in one order,
    whatever the number of threads; other orders depend on it beyond some 30000 elements.
    """
    return [_norm(gradient, norm_type, dtype or gradient.dtype) for gradient in gradients]


def _norm(gradient: torch.Tensor, norm_type: float, dtype: torch.dtype) -> torch.Tensor:
    dtype = gradient.dtype if gradient.is_complex() else dtype
    # On the CPU converting first is 20 times faster, to the same bits. Other kernels convert
    # while they read, and no copy takes memory of the device.
    if gradient.device.type == "cpu":
        gradient = gradient.to(dtype)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, norm_type, dtype=dtype)
    return norm.to(dtype)


def total_norm(
    norms: Sequence[torch.Tensor],
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """The norm over all gradients, a scalar tensor; `norms` in the order of the parameters.

    Raises `gradient-nonfinite` on request, as `clip_grad_norm_` does.
    """
    if not norms:
        return torch.tensor(0.0)
    # Torch sorts gradients by dtype before it adds up, and so the norms have to be.
    groups = group_tensors([list(norms)]).values()
    ordered = [norm.real for ([members], _) in groups for norm in members if norm is not None]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(ordered), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        count = sum(not math.isfinite(norm) for norm in ordered)
        raise error(
            "gradient-nonfinite",
            f"the gradients' total norm is {total.item()}, so that they cannot be clipped",
            notes=(f"{count} of {len(norms)} tensors have a norm that is not finite",),
            help="lower the learning rate, or set error_if_nonfinite to false to go on regardless",
        )
    return total


def clip_coefficient(total: torch.Tensor, max_norm: float) -> float:
    """What every gradient is multiplied by: at most 1.0; NaN when the total norm is."""
    return float(torch.clamp(max_norm / (total + 1e-6), max=1.0))
