"""What computes a layer: the seam between the executor and torch, or who computes in its place.

A device has a :class:`LayerBackend`, which is asked for the :class:`LayerKernel` of each layer.
The executor asks a kernel for the forward of each call, and again where activations are recomputed.
Both leave nodes in autograd's graph, which comes to their backward: that of torch's operators, or
of an :class:`OwnKernel`. Weights are on the device whenever a kernel is asked: as parameters of the
layer's module in a forward, as saved tensors in its backward.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.metrics.fabric_report import FabricReport
from openwafer.training.stream.layers import Partition


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer.

    Attributes:
        layer: its name.
        module: has its weights.
        function: what torch computes for it.
        args, kwargs: its arguments.
    """

    layer: str
    module: nn.Module
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def by_torch(self) -> Any:
        """Have torch compute it."""
        return self.function(*self.args, **self.kwargs)


class LayerKernel(Protocol):
    """Computes the calls of one layer."""

    def forward(self, call: LayerCall) -> Any:
        """The result of a call, in autograd's graph where gradients are wanted."""

    def recompute(self, call: LayerCall) -> Any:
        """The same again, in the backward pass: what it saves is what the forward saved."""


class LayerBackend(Protocol):
    """Knows who computes which layer."""

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        """What computes a layer.

        It is asked for when a step is planned, and where an execution first comes to the layer.

        Raises:
            OpenwaferError: ``layer-not-computed``.
        """

    def expect(self, layers: Sequence[str]) -> None:
        """Take note of all layers' names, when a step is planned.

        Raises:
            OpenwaferError: options have names that no layer has.
        """

    def try_step(self, walk: Callable[["LayerBackend"], object]) -> None:
        """See whether a step has room, or a call of sizes that no step has, when it is planned.

        Args:
            walk: walks it, with weights and data of no meaning, each layer by the kernel of a
                backend. A loop's own loss is :func:`stand_in_loss`.

        Raises:
            OpenwaferError: it has none, or cannot be computed.
        """

    def report(self) -> FabricReport | None:
        """What layers took up to now, where that is not torch's time."""


class _Torch:
    """Torch computes every layer, and autograd knows the backward of its operators."""

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        return self

    def expect(self, layers: Sequence[str]) -> None:
        """See :class:`LayerBackend`."""

    def try_step(self, walk: Callable[[LayerBackend], object]) -> None:
        """See :class:`LayerBackend`."""

    def report(self) -> None:
        return None

    def forward(self, call: LayerCall) -> Any:
        return call.by_torch()

    def recompute(self, call: LayerCall) -> Any:
        return call.by_torch()


def check_kernels(
    split: Partition,
    model: nn.Module,
    backend: LayerBackend,
    walk: Callable[[LayerBackend], object],
) -> None:
    """See that every layer is computed; one inside another by whoever computes that one.

    Args:
        split: of the model.
        model: whose layers they are.
        backend: computes them.
        walk: see :meth:`LayerBackend.try_step`.

    Raises:
        OpenwaferError: ``layer-not-computed``, options of the backend name no layer, or a step has
            no room.
    """
    backend.expect([layer.name for layer in split.modules])
    for layer in split.modules:
        if layer.parent is None:
            backend.kernel(layer.name, model.get_submodule(layer.name))
    backend.try_step(walk)


TORCH: Final[LayerBackend] = _Torch()
"""The backend of a device on which torch computes."""


def stand_in_loss(output: torch.Tensor) -> torch.Tensor:
    """What a plan takes for a loop's own loss of a model's output, of which it knows nothing.

    It takes the memory of a cross entropy and of a mean square. Tensors of a backend may have it
    computed otherwise, by ``__torch_function__``.

    Args:
        output: (..., classes).
    """
    if has_torch_function_unary(output):
        found: torch.Tensor = handle_torch_function(stand_in_loss, (output,), output)
        return found
    return output.log_softmax(-1).square().sum()


class OwnKernel(ABC):
    """Computes a layer of positional tensors, and its backward, by itself."""

    @abstractmethod
    def compute(
        self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """The result, a new tensor, and the tensors that the backward wants.

        Args:
            inputs: the arguments of the call.
            weights: the parameters of the layer, in the order of its module.
        """

    @abstractmethod
    def backward(
        self, saved: Sequence[torch.Tensor], gradient: torch.Tensor
    ) -> Sequence[torch.Tensor | None]:
        """Gradients of the inputs and behind them of the weights; ``None`` is no gradient.

        Args:
            saved: what the forward has said that the backward wants.
            gradient: of the result.
        """

    def forward(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        if call.kwargs or not all(isinstance(one, torch.Tensor) for one in call.args):
            raise not_computed(call.layer, call.module, "arguments that are no positional tensors")
        return _Computed.apply(  # type: ignore[no-untyped-call]
            self, len(call.args), *call.args, *call.module.parameters()
        )

    def recompute(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        return self.forward(call)


class _Computed(torch.autograd.Function):
    """The node of autograd's graph in whose place a kernel computes."""

    @staticmethod
    def forward(
        ctx: Any, kernel: OwnKernel, num_inputs: int, *tensors: torch.Tensor
    ) -> torch.Tensor:
        out, saved = kernel.compute(tensors[:num_inputs], tensors[num_inputs:])
        ctx.kernel = kernel
        ctx.save_for_backward(*saved)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None, *ctx.kernel.backward(ctx.saved_tensors, gradient)


def not_computed(layer: str, module: nn.Module, why: str) -> OpenwaferError:
    """The error of a layer that a backend does not compute.

    Args:
        layer: its name.
        module: it.
        why: what the backend has no kernel for.
    """
    return error(
        "layer-not-computed",
        f"layer {layer!r}, a {type(module).__name__}, is not computed by this device, which has no "
        f"kernel for {why}",
        help="train on device: cpu, or build the model from layers that the device computes",
    )
