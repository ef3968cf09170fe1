"""Linear layers for autograd: weights stream in, and their gradients out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.fabric_device.on_wafer import OnWafer, gradient_rested, rested
from openwafer.fabric_device.wafer import Account, Wafer
from openwafer.sdk.kernels.precision import check_range
from openwafer.sdk.kernels.resident_plan import Heads, ResidentPlan, Weights
from openwafer.sdk.kernels.sparse_tiles import Ints
from openwafer.training.sparsity.packed_linear import PackedLinear


class Wafers(Protocol):
    """Has a wafer for each number of tokens."""

    account: Account
    without_loss: set[int]

    @property
    def rows(self) -> int:
        """Of PEs."""

    def wafer(self, shape: torch.Size) -> Wafer:
        """The one for tokens of a tensor (..., features)."""

    def seen(self, ids: Tensor, num_entries: int) -> Tensor:
        """The tokens that an embedding of so many entries is taken to be asked for."""

    def widen(self, features: int) -> None:
        """Have wafers take a layer of so many inputs or outputs."""

    def attend(self, wafer: Wafer, heads: Heads) -> None:
        """Have a wafer's program compute such attention."""

    def classify(self, wafer: Wafer, num_classes: int) -> None:
        """Have a wafer's program compute the loss of so many classes."""

    def leave_loss(self, tokens: int, cause: OpenwaferError) -> None:
        """Let torch compute losses of so many tokens, or raise the cause."""


def put(wafer: Wafer, tensor: Tensor) -> Tensor:
    """A tensor on the wafer, in autograd's graph; its gradient comes back to the host."""
    if isinstance(tensor, OnWafer) and tensor.rest.wafer is wafer:
        tensor.rest.check()
        return tensor
    placed: Tensor = _Put.apply(tensor, wafer)  # type: ignore[no-untyped-call]
    return placed


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor, wafer: Wafer) -> Tensor:
        return OnWafer.of(rested(tensor, wafer), tensor.shape)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Any:
        if isinstance(gradient, OnWafer):
            gradient.rest.read("the layer before")
            gradient = gradient.plain
        return gradient, None


@dataclass(frozen=True, eq=False)
class Layer:
    """What a linear layer's passes need beside its weights.

    Attributes:
        name: of the layer in the report.
        wafer: where it is computed.
        weights: their pattern.
        shape: of a dense weight, or of a packed one's values.
        order: place of each value that streams in, among those of a packed weight; None is the
            weight's own.
    """

    name: str
    wafer: Wafer
    weights: Weights
    shape: torch.Size
    order: Ints | None = None

    def data(self, weight: Tensor) -> NDArray[np.float32]:
        """Values in the order of the matrix that streams in.

        Raises:
            OpenwaferError: ``kernel-range``, they are beyond the type that products take.
        """
        values: NDArray[np.float32] = weight.detach().numpy().ravel()
        self._check_range("weight", values)
        return values if self.order is None else values[self.order]

    def bias(self, bias: Tensor | None) -> NDArray[np.float32] | None:
        """Values of a bias; see :meth:`data`."""
        if bias is None:
            return None
        values: NDArray[np.float32] = bias.detach().numpy()
        self._check_range("bias", values)
        return values

    def _check_range(self, what: str, values: NDArray[np.float32]) -> None:
        precision = self.wafer.resident.plan.precision
        if precision.is_widened:
            check_range(f"a {what} of layer {self.name!r}", values, precision)

    def gradient(self, found: NDArray[np.float32]) -> Tensor:
        """The gradient of the weight from those of the values."""
        values = np.zeros(self.shape.numel(), np.float32)
        values[slice(None) if self.order is None else self.order] = found
        return torch.from_numpy(values.reshape(self.shape))


def streamed_linear(
    wafers: Wafers, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """What `F.linear` gives, on the wafer of its tokens: (..., outputs)."""
    wafer = wafers.wafer(x.shape)
    outputs, features = weight.shape
    pattern = _dense(outputs, features, wafer.resident.plan, has_bias=bias is not None)
    layer = Layer(wafers.account.layer, wafer, pattern, weight.shape)
    return _product(layer, x, weight, bias)


def _product(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    placed = put(layer.wafer, x)
    result: Tensor = _Linear.apply(layer, placed, weight, bias)  # type: ignore[no-untyped-call]
    return result


@lru_cache(maxsize=256)
def _dense(outputs: int, features: int, plan: ResidentPlan, *, has_bias: bool) -> Weights:
    return Weights.of(np.ones((outputs, features), np.float32), plan, has_bias=has_bias)


@dataclass(frozen=True, eq=False)
class _Kept:
    """The pattern of a packed weight.

    Attributes:
        packed: the same as its module keeps it.
        plan: of the wafer that it streams to.
        weights: where its values go.
        order: place of each value that streams in, among those of the module.
    """

    packed: Tensor
    plan: ResidentPlan
    weights: Weights
    order: Ints

    @classmethod
    def of(
        cls, module: PackedLinear, packed: Tensor, plan: ResidentPlan, *, has_bias: bool
    ) -> Self:
        """That of a module."""
        pattern = module.room.pattern(packed)
        places = np.arange(1, pattern.columns.size + 1)
        kept = scipy.sparse.csr_array(
            (places, pattern.columns.astype(np.int64), pattern.row_starts), shape=pattern.shape
        )
        if module.multiplication.is_turned:
            kept = scipy.sparse.csr_array(kept.T)
        order = kept.data - 1
        ones = kept.astype(np.float32)
        return cls(packed.clone(), plan, Weights.of(ones, plan, has_bias=has_bias), order)


@dataclass
class StreamedPacked:
    """Multiplies a sparse weight, of which only what is kept streams in.

    It takes the place of what multiplies a packed linear module.

    Attributes:
        wafers: of the device.
        layer: name of the layer.
        module: has the pattern.
    """

    wafers: Wafers
    layer: str
    module: PackedLinear
    _known: _Kept | None = None

    def takes(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether activations are on a wafer."""
        return isinstance(inputs, OnWafer)

    def multiply(
        self, inputs: Tensor, values: Tensor, pattern: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`[..., out_features]`, on the wafer of the inputs' tokens."""
        wafer = self.wafers.wafer(inputs.shape)
        kept = self._kept_weights(pattern, wafer.resident.plan, bias is not None)
        layer = Layer(self.layer, wafer, kept.weights, values.shape, kept.order)
        return _product(layer, inputs, values, bias)

    def _kept_weights(self, packed: Tensor, plan: ResidentPlan, has_bias: bool) -> _Kept:
        known = self._known
        if known is None or known.plan != plan or not torch.equal(known.packed, packed):
            known = self._known = _Kept.of(self.module, packed, plan, has_bias=has_bias)
        return known


@contextmanager
def multiplying(products: Sequence[StreamedPacked]) -> Iterator[None]:
    """Context in which products take the place of those of their modules.

    A pass of several micro-batches puts modules back as they were before it, so none is left there.
    """
    before = [product.module.other_product for product in products]
    for product in products:
        product.module.other_product = product
    try:
        yield
    finally:
        for product, other in zip(products, before, strict=True):
            product.module.other_product = other


class _Linear(torch.autograd.Function):
    """The node of a streamed product in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, x: OnWafer, weight: Tensor, bias: Tensor | None) -> Tensor:
        weights, wafer = layer.weights, layer.wafer
        data, added = layer.data(weight), layer.bias(bias)
        with wafer.account.inside(layer.name):
            given, values = rested(x, wafer), weights.values(data, added)
            y = wafer.made(wafer.resident.forward(weights, values, given.activation))
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.rest = layer, None
        return OnWafer.of(y, (*x.shape[:-1], y.num_features))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        layer: Layer = ctx.layer
        wafer, weights = layer.wafer, layer.weights
        dy = gradient_rested(gradient, wafer)
        resident = wafer.resident
        dx = of_weight = of_bias = None
        with wafer.account.inside(layer.name):
            if ctx.needs_input_grad[1]:
                made = resident.delta(weights, layer.data(weight), dy.activation)
                dx = OnWafer.of(wafer.made(made, has_zeros=True), x.shape)
            if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
                given = rested(x, wafer)
                found = resident.gradient(weights, given.activation, dy.activation)
                wafer.count()
                of_weight = layer.gradient(found[~weights.is_of_bias])
                if weights.has_bias:
                    of_bias = torch.from_numpy(found[weights.is_of_bias])
        return None, dx, of_weight, of_bias
