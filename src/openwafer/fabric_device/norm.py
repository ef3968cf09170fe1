"""Layer norm and RMS norm for autograd, whose scales and shifts the host copies onto the wafer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openwafer.fabric_device.linear import Wafers, put
from openwafer.fabric_device.on_wafer import OnWafer
from openwafer.fabric_device.wafer import Room, Wafer
from openwafer.sdk.kernels.resident_plan import Norm


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
    layer: str,
    x: Tensor,
    _shape: Sequence[int],
    weight: Tensor,
    eps: float | None = None,  # noqa: ARG001  (that of the program)
) -> Tensor:
    """What `F.rms_norm` gives, on the wafer of its tokens."""
    wafer = wafers.wafer(x.shape)
    result: Tensor = _Norm.apply(layer, wafer, put(wafer, x), weight)  # type: ignore[no-untyped-call]
    return result


def layer_norm(
    wafers: Wafers,
    layer: str,
    x: Tensor,
    _shape: Sequence[int],
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,  # noqa: ARG001  (that of the program)
) -> Tensor:
    """What `F.layer_norm` gives, on the wafer of its tokens."""
    wafer = wafers.wafer(x.shape)
    result: Tensor = _Norm.apply(layer, wafer, put(wafer, x), weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Norm(torch.autograd.Function):
    """The node of a norm in autograd's graph; its numbers stay on the wafer until the backward."""

    @staticmethod
    def forward(ctx: Any, layer: str, wafer: Wafer, x: OnWafer, *numbers: Tensor) -> Tensor:
        scales = np.stack([one.detach().numpy() for one in numbers])
        with wafer.account.inside(layer):
            wafer.account.copies_on += 1
            made = wafer.resident.normalise(x.rest.activation, scales)
            y = OnWafer.of(wafer.made(made.y, x.shape))
        ctx.layer, ctx.wafer, ctx.made = layer, wafer, made
        ctx.room = Room(wafer, made.normal, made.scales, made.roots)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wafer: Wafer = ctx.wafer
        dy = gradient.rest if isinstance(gradient, OnWafer) else wafer.rest(gradient)
        with wafer.account.inside(ctx.layer):
            dx, of_numbers = wafer.resident.normalise_delta(ctx.made, dy.activation)
            made = wafer.made(dx, gradient.shape)
        return None, None, OnWafer.of(made), *map(torch.from_numpy, of_numbers)
