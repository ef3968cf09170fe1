"""Layer norm and RMS norm for autograd, whose scales and shifts the host copies onto the wafer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openwafer.fabric_device.linear import Wafers, put
from openwafer.fabric_device.on_wafer import OnWafer, gradient_rested, kept, rested
from openwafer.fabric_device.wafer import Wafer
from openwafer.sdk.kernels.resident_plan import Norm, Normalised


def norm_of(module: nn.RMSNorm | nn.LayerNorm) -> Norm | None:
    """What a module asks of a program; None where no kernel has it."""
    has_mean = isinstance(module, nn.LayerNorm)
    num_numbers = len(list(module.parameters(recurse=False)))
    if len(module.normalized_shape) != 1 or num_numbers != 1 + has_mean:
        return None
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    return Norm(module.normalized_shape[0], epsilon, has_mean)


def rms_norm(
    wafers: Wafers,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """What `F.rms_norm` gives, on the wafer of its tokens."""
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    wafer = _planned(wafers, x, normalized_shape, epsilon, weight)
    result: Tensor = _Norm.apply(wafers.account.layer, wafer, put(wafer, x), weight)  # type: ignore[no-untyped-call]
    return result


def layer_norm(
    wafers: Wafers,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """What `F.layer_norm` gives, on the wafer of its tokens."""
    wafer = _planned(wafers, x, normalized_shape, eps, weight, bias)
    result: Tensor = _Norm.apply(wafers.account.layer, wafer, put(wafer, x), weight, bias)  # type: ignore[no-untyped-call]
    return result


def _planned(
    wafers: Wafers, x: Tensor, shape: Sequence[int], epsilon: float, *numbers: Tensor | None
) -> Wafer:
    """The wafer of the tokens, if its program has such a norm; refuses a layer's other ones."""
    wafer, has_mean = wafers.wafer(x.shape), len(numbers) == 2
    has_all = all(number is not None for number in numbers)
    if (
        not has_all
        or len(shape) != 1
        or wafer.resident.plan.norm != Norm(shape[0], epsilon, has_mean)
    ):
        name = "layer_norm" if has_mean else "rms_norm"
        what = f"{name} of {tuple(shape)} with eps {epsilon:g}"
        raise wafers.account.refusal(f"{what}, which no norm module of the model has,")
    return wafer


class _Norm(torch.autograd.Function):
    """The node of a norm in autograd's graph; its numbers stay on the wafer until the backward."""

    @staticmethod
    def forward(ctx: Any, layer: str, wafer: Wafer, x: OnWafer, *numbers: Tensor) -> Tensor:
        scales = np.stack([one.detach().numpy() for one in numbers])
        with wafer.account.inside(layer):
            wafer.account.copies_on += 1
            given = rested(x, wafer)
            made = wafer.resident.normalise(given.activation, scales)
            y = OnWafer.of(wafer.made(made.y), x.shape)
        ctx.layer, ctx.wafer, ctx.y = layer, wafer, made.y
        ctx.save_for_backward(*kept(wafer, made.normal, made.scales, made.roots))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wafer: Wafer = ctx.wafer
        # Held until the end: of what is computed again nobody else does.
        held = ctx.saved_tensors
        made = Normalised(ctx.y, *(one.rest.activation for one in held))
        dy = gradient_rested(gradient, wafer)
        with wafer.account.inside(ctx.layer):
            dx, of_numbers = wafer.resident.normalise_delta(made, dy.activation)
            of_x = OnWafer.of(wafer.made(dx, has_zeros=True), gradient.shape)
        return None, None, of_x, *map(torch.from_numpy, of_numbers)
