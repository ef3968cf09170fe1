"""What scripts find in ``cstorch.amp``: 16-bit formats of a forward, and loss scaling."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import did_you_mean, error
from openwafer.training.frontends.present import backends
from openwafer.training.frontends.scripts.loss_scale import UnscaledLoss
from openwafer.training.store.update_rules.optimizers import parameters_of

__all__ = [
    "GradScaler",
    "autocast",
    "enable_mixed_precision",
    "get_floating_point_dtype",
    "get_floating_point_dtype_str",
    "get_half_dtype",
    "get_half_dtype_str",
    "is_cbfloat16_tensor",
    "mixed_precision",
    "optimizer_step",
    "set_half_dtype",
    "use_bfloat16",
]

_DTYPES: Final = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    # The wafer's own format has no dtype of torch.
    "cbfloat16": torch.float16,
}


class _Formats:
    half: str = "float16"
    is_mixed: bool = False


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Choose the 16-bit format of :func:`autocast`, and return it.

    Args:
        value: ``"float16"``, ``"bfloat16"`` or a dtype of torch; ``"cbfloat16"`` for a CSX run.

    Raises:
        OpenwaferError: ``present-half``.
    """
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise error(
            "present-half",
            f"{value!r} is no 16-bit format",
            help=did_you_mean(name, _DTYPES),
        )
    _Formats.half, _Formats.is_mixed = name, True
    return _DTYPES[name]


def use_bfloat16(value: bool = True) -> None:
    """Choose bfloat16, or float16 again; an older name of :func:`set_half_dtype`."""
    set_half_dtype("bfloat16" if value else "float16")


def get_half_dtype() -> torch.dtype:
    """The 16-bit format that was chosen; float16 before."""
    return _DTYPES[_Formats.half]


def get_half_dtype_str() -> str:
    """The name of that format, ``"cbfloat16"`` where the script chose it."""
    return _Formats.half


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one of the wafer's own format."""
    return _Formats.half == "cbfloat16" and tensor.dtype is get_half_dtype()


def enable_mixed_precision(enable: bool = True) -> None:
    """Say whether inputs may come in the 16-bit format."""
    _Formats.is_mixed = enable


def mixed_precision() -> bool:
    """Whether a 16-bit format was chosen."""
    return _Formats.is_mixed


def get_floating_point_dtype(default: torch.dtype = torch.float32) -> torch.dtype:
    """The format of floating-point inputs: 16-bit where :func:`autocast` will compute so."""
    return get_half_dtype() if _Formats.is_mixed and not backends.use_cs() else default


def get_floating_point_dtype_str(default: str = "float32") -> str:
    """The name of that format."""
    is_half = _Formats.is_mixed and not backends.use_cs()
    return _Formats.half if is_half else default


@contextmanager
def autocast(dtype: torch.dtype | None = None) -> Iterator[None]:
    """Context in which a forward computes in a 16-bit format, as in ``torch.autocast``.

    On a CSX backend it has no effect, as the vendor's: a step computes in the weights' format.

    Raises:
        OpenwaferError: ``present-no-backend``; ``present-half`` for float16 on the CPU.
    """
    backend = backends.current("cstorch.amp.autocast")
    chosen = get_half_dtype() if dtype is None else dtype
    if backend.is_csx:
        yield
        return
    if backend.is_cpu and chosen is not torch.bfloat16:
        raise error(
            "present-half",
            f"cstorch.amp.autocast is asked for {chosen} on the CPU, which computes in bfloat16",
            help="write cstorch.amp.set_half_dtype(torch.bfloat16) before it",
        )
    with torch.autocast(backend.torch_device.type, dtype=chosen):
        yield


class GradScaler(UnscaledLoss):
    """Gives a loss as it is; see :class:`UnscaledLoss`."""

    def __init__(self, loss_scale: float | str | None = None, **options: Any) -> None:
        backends.current("cstorch.amp.GradScaler")
        super().__init__(loss_scale, **options)

    def step(self, optimizer: Optimizer) -> Any:
        """Clip the gradients where that was asked for, and take the optimizer's step."""
        clip_gradients(optimizer, self.max_gradient_norm)
        return super().step(optimizer)

    def get_num_skipped_steps(self) -> torch.Tensor:
        """Steps that were not taken, since gradients had overflowed: 0."""
        return torch.tensor(0)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the scale that the script gave."""
        return {"loss_scale": self.loss_scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the scale that :meth:`state_dict` gave."""
        self.loss_scale = state_dict.get("loss_scale", self.loss_scale)


def clip_gradients(
    optimizer: Optimizer, most_norm: float | None, most_value: float | None = None
) -> None:
    """Clip what an optimizer is about to take: to a norm, or each element, or not at all."""
    if most_norm is not None:
        nn.utils.clip_grad_norm_(parameters_of(optimizer), most_norm)
    elif most_value is not None:
        nn.utils.clip_grad_value_(parameters_of(optimizer), most_value)


def optimizer_step(
    loss: torch.Tensor,
    optimizer: Optimizer | Sequence[Optimizer],
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Backward, clipping, the optimizers' steps, and gradients to nothing.

    Args:
        loss: of the step; its backward is called here.
        optimizer: one or several.
        grad_scaler: scales the loss, or leaves it.
        max_gradient_norm: to which each optimizer's gradients are clipped, or
        max_gradient_value: to which each element is.

    Raises:
        OpenwaferError: ``present-clip`` for both.
    """
    if max_gradient_norm is not None and max_gradient_value is not None:
        raise error(
            "present-clip",
            f"gradients are to be clipped to the norm {max_gradient_norm} and to the value "
            f"{max_gradient_value}",
            help="give one of max_gradient_norm and max_gradient_value",
        )
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    grad_scaler.scale(loss).backward()
    for one in optimizers:
        grad_scaler.unscale_(one)
        clip_gradients(one, max_gradient_norm, max_gradient_value)
    for one in optimizers:
        grad_scaler.step(one)
    grad_scaler.update()
    for one in optimizers:
        one.zero_grad()
