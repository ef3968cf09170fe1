"""Update rules keep states for a parameter and update it in place, to the bits of `torch.optim`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from openwafer.diagnostics import error
from openwafer.training.store.update_rules.optimizers import lion
from openwafer.training.torch_private import adafactor, fused_adam, fused_adamw, fused_sgd, muon

Scalar = float | torch.Tensor
"""A hyper-parameter: torch takes a tensor of one element where it takes a number."""

NUMBER_DTYPES: Mapping[type, torch.dtype] = MappingProxyType(
    {bool: torch.bool, int: torch.int64, float: torch.float64}
)
"""In what the store keeps a number, whose bits all fit."""

# One array takes 1 MiB: it stays in cache, and a kernel's call costs little beside it.
RUN_ELEMENTS = 1 << 18


class Kernel(Enum):
    """The form of torch's algorithm that makes the bits; forms may differ in the last place."""

    SINGLE_TENSOR = auto()
    FOREACH = auto()
    FUSED = auto()

    @classmethod
    def of_flags(cls, foreach: bool | None, fused: bool | None) -> "Kernel":
        """The form that torch takes on the CPU under these flags of a parameter group."""
        if fused:
            return cls.FUSED
        return cls.FOREACH if foreach else cls.SINGLE_TENSOR


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

    torch divides the root of the second moment by its bias correction before it adds `eps`.
    """

    lr: Scalar
    betas: tuple[Scalar, Scalar]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    decoupled_weight_decay: bool
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.kernel is Kernel.FUSED else Cutting.ALWAYS

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
        arrays = (
            [weight],
            [gradient],
            [states["exp_avg"]],
            [states["exp_avg_sq"]],
            [states["max_exp_avg_sq"]] if self.amsgrad else [],
        )
        if self.kernel is Kernel.FUSED:
            self._apply_fused(arrays, num_updates + 1)
            return
        adam(
            *arrays,
            [torch.full((), float(num_updates))],
            foreach=self.kernel is Kernel.FOREACH,
            amsgrad=self.amsgrad,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=self.maximize,
            decoupled_weight_decay=self.decoupled_weight_decay,
        )

    def _apply_fused(self, arrays: tuple[list[torch.Tensor], ...], time: int) -> None:
        # torch.optim's own function around the kernel takes as long as some 50000 elements.
        kernel = fused_adamw if self.decoupled_weight_decay else fused_adam
        beta1, beta2 = self.betas
        weights, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = arrays
        kernel(
            weights,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            [torch.full((), float(time))],
            lr=float(self.lr),
            beta1=float(beta1),
            beta2=float(beta2),
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=self.amsgrad,
            maximize=self.maximize,
        )


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
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The fused kernel is one pass over memory."""
        return Cutting.AT_NEED if self.kernel is Kernel.FUSED else Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One buffer, or nothing without momentum. Raises `optimizer-unsupported`, see below."""
        # https://github.com/pytorch/pytorch/issues/191763: the vector part of the kernel does not
        # write the weights, and writes whatever into the buffer.
        if self.kernel is Kernel.FUSED and dtype in (torch.bfloat16, torch.float16):
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
        if self.kernel is Kernel.FUSED:
            fused_sgd(
                [weight],
                [gradient],
                buffers,
                lr=float(self.lr),
                momentum=self.momentum,
                dampening=self.dampening,
                weight_decay=float(self.weight_decay),
                nesterov=self.nesterov,
                maximize=self.maximize,
                is_first_step=is_first,
            )
            return
        filled: list[torch.Tensor | None] = [None] if is_first or not buffers else [*buffers]
        sgd(
            [weight],
            [gradient],
            filled,
            foreach=self.kernel is Kernel.FOREACH,
            weight_decay=self.weight_decay,  # type: ignore[arg-type]  # torch's SGD takes a tensor
            momentum=self.momentum,
            lr=self.lr,  # type: ignore[arg-type]
            dampening=self.dampening,
            nesterov=self.nesterov,
            maximize=self.maximize,
        )
        if is_first and filled[0] is not None:
            buffers[0].copy_(filled[0])


@dataclass(frozen=True)
class AdafactorRule:
    """Adafactor (Shazeer and Stern 2018) in torch's reading, where `lr` bounds the relative step.

    A tensor of two or more dims keeps one mean square per row and one per column of its last two
    dims; a vector keeps one per element. `eps` is (None for the dtype's own, least scale).
    """

    lr: Scalar
    beta2_decay: float
    eps: tuple[float | None, float]
    d: float
    weight_decay: float
    maximize: bool
    kernel: Kernel

    @property
    def cutting(self) -> Cutting:
        """The step is relative to norms of the whole tensor."""
        return Cutting.NEVER

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """Row and column factors, or the whole variance of a vector or scalar."""
        if len(shape) < 2:
            return (StateSpec("variance", shape, dtype),)
        *batch, num_rows, num_columns = shape
        return (
            StateSpec("row_var", (*batch, num_rows, 1), dtype),
            StateSpec("col_var", (*batch, 1, num_columns), dtype),
        )

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and variances in place."""
        adafactor(
            [weight],
            [gradient],
            [states.get("row_var")],
            [states.get("col_var")],
            [states.get("variance")],
            [torch.full((), float(num_updates))],
            foreach=self.kernel is Kernel.FOREACH,
            d=self.d,
            lr=self.lr,
            beta2_decay=self.beta2_decay,
            weight_decay=self.weight_decay,
            eps1=self.eps[0],  # type: ignore[arg-type]  # None stands for the dtype's own
            eps2=self.eps[1],
            maximize=self.maximize,
        )


@dataclass(frozen=True)
class MuonRule:
    """Momentum made orthogonal by Newton-Schulz steps (Jordan 2024), for matrices alone."""

    lr: Scalar
    weight_decay: float
    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, float, float]
    eps: float
    ns_steps: int
    adjust_lr_fn: str | None

    @property
    def cutting(self) -> Cutting:
        """The direction is a product of whole matrices."""
        return Cutting.NEVER

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One momentum."""
        return alike(("momentum_buffer",), shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and momentum in place."""
        muon(
            [weight],
            [gradient],
            [states["momentum_buffer"]],
            lr=self.lr,  # type: ignore[arg-type]  # torch's Muon takes a tensor
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_coefficients=self.ns_coefficients,
            ns_steps=self.ns_steps,
            eps=self.eps,
            adjust_lr_fn=self.adjust_lr_fn,
            has_complex=False,
        )


@dataclass(frozen=True)
class LionRule:
    """Lion, to the bits of the optimizer of that name."""

    lr: float
    betas: tuple[float, float]
    weight_decay: float

    @property
    def cutting(self) -> Cutting:
        """Six passes over memory, unless cut."""
        return Cutting.ALWAYS

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """One momentum."""
        return alike(("exp_avg",), shape, dtype)

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and momentum in place."""
        lion(
            weight,
            gradient,
            states["exp_avg"],
            lr=self.lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
        )
