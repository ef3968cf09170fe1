"""Update rules keep states for a parameter and update it in place, to the bits of `torch.optim`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from openwafer.diagnostics import error
from openwafer.training.torch_private import fused_adam, fused_adamw, fused_sgd

Scalar = float | torch.Tensor
"""A hyper-parameter: torch takes a tensor of one element where it takes a number."""

NUMBER_DTYPES: Mapping[type, torch.dtype] = MappingProxyType(
    {bool: torch.bool, int: torch.int64, float: torch.float64}
)
"""In what the store keeps a number, whose bits all fit."""

# One array takes 1 MiB: it stays in cache, and a kernel's call costs little beside it.
RUN_ELEMENTS = 1 << 18


class Cutting(Enum):
    """Whether a tensor may be updated one run of elements after the other, to the same bits."""

    NEVER = auto()  # the rule sums over the whole tensor
    AT_NEED = auto()  # one pass over memory as it is
    ALWAYS = auto()  # several passes, whose temporaries stay in cache when the runs are short


@dataclass(frozen=True)
class StateSpec:
    """An array kept for a parameter: `shape` in elements of `dtype`, at first all `fill`.

    With `is_number` the optimizer has a Python number where the store has the array: an int of
    int64, a float of float64, a bool of bool.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: float = 0.0
    is_number: bool = False

    def fits(self, value: object) -> bool:
        """Whether the array can keep the value, to the bit."""
        if self.is_number:
            return NUMBER_DTYPES.get(type(value)) is self.dtype
        if not isinstance(value, torch.Tensor):
            return False
        return (tuple(value.shape), value.dtype) == (self.shape, self.dtype)

    def write(self, array: torch.Tensor, value: Any) -> None:
        """Keep a value that fits, in an array of this kind."""
        if self.is_number:
            array.fill_(value)
        else:
            array.copy_(value)

    def read(self, array: torch.Tensor) -> Any:
        """The number that is kept, or the array itself."""
        return array.item() if self.is_number else array


@lru_cache(maxsize=1 << 12)
def alike(
    names: tuple[str, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[StateSpec, ...]:
    """States that have the shape and the dtype of their weight; an update asks at every step."""
    return tuple(StateSpec(name, shape, dtype) for name in names)


class UpdateRule(Protocol):
    """An optimizer's algorithm with its hyper-parameters as they stand at one step."""

    @property
    def cutting(self) -> Cutting:
        """Whether long tensors may be cut."""

    @property
    def counts(self) -> bool:
        """Whether the optimizer's state `step` is the number of updates, which is kept apart."""

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """What is kept for a parameter, under torch's names."""

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and states in place, for the time `num_updates + 1`.

        The gradient stays, but for an optimizer whose own step writes to it.
        """


@dataclass(frozen=True)
class AdamRule:
    """Adam (Kingma and Ba 2014); with `decoupled_weight_decay` AdamW (Loshchilov and Hutter 2017).

    torch divides the root of the second moment by its bias correction before it adds `eps`. Its
    three forms, by element, `foreach` and `fused`, may differ in the last place.
    """

    lr: Scalar
    betas: tuple[Scalar, Scalar]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    decoupled_weight_decay: bool
    foreach: bool | None
    fused: bool | None
    counts: ClassVar = True

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.fused else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """Two moments; with amsgrad also the largest second moment so far."""
        names = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * self.amsgrad
        return alike(names, shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and moments in place."""
        mean, square = states["exp_avg"], states["exp_avg_sq"]
        largest = [states["max_exp_avg_sq"]] if self.amsgrad else []
        beta1, beta2 = self.betas
        options: dict[str, Any] = {
            "weight_decay": self.weight_decay,
            "eps": self.eps,
            "amsgrad": self.amsgrad,
            "maximize": self.maximize,
        }
        if self.fused:
            # torch.optim's own function around the kernel takes as long as some 50000 elements.
            kernel = fused_adamw if self.decoupled_weight_decay else fused_adam
            time = torch.full((), float(num_updates + 1))
            options |= {"lr": float(self.lr), "beta1": float(beta1), "beta2": float(beta2)}
            kernel([weight], [gradient], [mean], [square], largest, [time], **options)
            return
        time = torch.full((), float(num_updates))
        options |= {"lr": self.lr, "beta1": beta1, "beta2": beta2, "foreach": bool(self.foreach)}
        options["decoupled_weight_decay"] = self.decoupled_weight_decay
        adam([weight], [gradient], [mean], [square], largest, [time], **options)


@dataclass(frozen=True)
class SgdRule:
    """SGD with momentum, dampening and Nesterov's variant, as torch writes them.

    The momentum buffer starts as the first gradient, without dampening.
    """

    lr: Scalar
    momentum: float
    dampening: float
    weight_decay: Scalar
    nesterov: bool
    maximize: bool
    foreach: bool | None
    fused: bool | None
    counts: ClassVar = False

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.fused else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One buffer, or nothing without momentum. Raises `optimizer-unsupported`, see below."""
        # https://github.com/pytorch/pytorch/issues/191763: the vector part of the kernel does not
        # write the weights, and writes whatever into the buffer.
        if self.fused and dtype in (torch.bfloat16, torch.float16):
            raise error(
                "optimizer-unsupported",
                f"torch's fused SGD does not update weights of {dtype} on the CPU",
                notes=("a bug of torch, pytorch/pytorch issue 191763",),
                help="build the optimizer with fused=False, or keep fp32 master weights",
            )
        return alike(("momentum_buffer",) if self.momentum else (), shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and buffer in place."""
        is_first = num_updates == 0
        buffers = [states["momentum_buffer"]] if self.momentum else []
        options: dict[str, Any] = {
            "momentum": self.momentum,
            "dampening": self.dampening,
            "nesterov": self.nesterov,
            "maximize": self.maximize,
        }
        if self.fused:
            lr, decay = float(self.lr), float(self.weight_decay)
            options |= {"lr": lr, "weight_decay": decay, "is_first_step": is_first}
            fused_sgd([weight], [gradient], buffers, **options)
            return
        options |= {"lr": self.lr, "weight_decay": self.weight_decay}
        filled: list[torch.Tensor | None] = [None] if is_first or not buffers else [*buffers]
        sgd([weight], [gradient], filled, foreach=bool(self.foreach), **options)
        if is_first and filled[0] is not None:
            buffers[0].copy_(filled[0])
