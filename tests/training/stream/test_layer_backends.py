"""A backend in this file alone: NumPy computes linear layers, forward and backward."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.device.layer_backend import (
    TORCH,
    LayerBackend,
    LayerKernel,
    OwnKernel,
    not_computed,
)
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.stream.both_loops import STREAMED

SIZE, NUM_LAYERS, NUM_STEPS = 32, 2, 2


@dataclass
class LinearByNumpy(OwnKernel):
    """Counts what it computes."""

    calls: Counter[str]

    def compute(
        self, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        self.calls["compute"] += 1
        x, weight, bias = (one.detach().numpy() for one in (*inputs, *weights))
        return torch.from_numpy(x @ weight.T + bias), (inputs[0], weights[0])

    def backward(self, saved: Sequence[Tensor], gradient: Tensor) -> Sequence[Tensor]:
        self.calls["backward"] += 1
        x, weight, grad = (one.detach().numpy() for one in (*saved, gradient))
        gradients = (grad @ weight, grad.T @ x, np.sum(grad, axis=0))
        return [torch.from_numpy(one) for one in gradients]


@dataclass
class NumpyBackend:
    """Has a kernel for linear layers, and none for others."""

    calls: Counter[str] = field(default_factory=Counter)

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        if not isinstance(module, nn.Linear):
            raise not_computed(layer, module, f"a {type(module).__name__}")
        return LinearByNumpy(self.calls)

    def try_step(self, walk: Callable[[LayerBackend], object]) -> None:
        pass

    def expect(self, layers: Sequence[str]) -> None:
        pass

    def report(self) -> None:
        return None


class Model(nn.Module):
    """Linear layers of few binary digits: sums are exact in whatever order they are made."""

    def __init__(self, last: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        torch.manual_seed(0)
        inner = [nn.Linear(SIZE, SIZE) for _ in range(NUM_LAYERS - 1)]
        self.layers = nn.ModuleList([*inner, last(SIZE, SIZE)])
        self.double()
        for weight in self.parameters():
            weight.data = torch.randint(-2, 3, weight.shape).double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x.sum()


def options_of(backend: NumpyBackend, activations: Activations) -> StreamOptions:
    return replace(STREAMED, mode=None, default_activations=activations, backend=backend)


def train(model: Model, options: StreamOptions | None) -> list[Tensor]:
    """Train, by a backend if there is one; returns a loss without gradients, and the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
    stream: AbstractContextManager[object] = nullcontext()
    if options is not None:
        stream = stream_weights(model, optimizer, device_memory="1MiB", options=options)
    with stream:
        for step in range(NUM_STEPS):
            model(torch.full((4, SIZE), step + 1.0, dtype=torch.double)).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            loss = model(torch.ones(4, SIZE, dtype=torch.double))
    return [loss, *(weight.detach().clone() for weight in model.parameters())]


@pytest.mark.parametrize("activations", list(Activations))
def test_a_backend_computes_forward_recompute_and_backward_as_torch_does(
    activations: Activations,
) -> None:
    backend = NumpyBackend()
    found, expected = train(Model(), options_of(backend, activations)), train(Model(), None)
    assert [torch.equal(*each) for each in zip(found, expected, strict=True)] == [True] * 5
    # Recomputed layers run again in each backward, and once for the check of their first call.
    again = (NUM_STEPS + 1) * NUM_LAYERS if activations is Activations.RECOMPUTE else 0
    assert backend.calls["compute"] == (NUM_STEPS + 1) * NUM_LAYERS + again
    assert backend.calls["backward"] == NUM_STEPS * NUM_LAYERS


def test_a_layer_without_a_kernel_is_refused_by_its_name_and_the_loop_is_as_it_was() -> None:
    class Other(nn.Bilinear):
        def __init__(self, size: int, out: int) -> None:
            super().__init__(size, 1, out)

        def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
            return super().forward(x, x[:, :1])

    backend, model = NumpyBackend(), Model(Other)
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(OpenwaferError, match=r"'layers\.1', a Other, is not computed") as told:
        train(model, options_of(backend, Activations.KEEP))
    assert told.value.diagnostics[0].code == "layer-not-computed"
    assert all(map(torch.equal, before, model.parameters()))
    assert not backend.calls


def test_weights_of_a_backend_cannot_be_resident() -> None:
    options = replace(options_of(NumpyBackend(), Activations.KEEP), mode=Mode.RESIDENT)
    with pytest.raises(OpenwaferError, match="backend-mode"):
        train(Model(), options)


class Routed(nn.Linear):
    """Has weights of its own beside layers inside it."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__(size, out)
        self.experts = nn.ModuleList(nn.Linear(out, out) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.stack([expert(y) for expert in self.experts]).sum(0)


class InnerByNumpy(NumpyBackend):
    """Leaves the layers that are in no other one to torch."""

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        is_inner = ".experts." in layer
        return super().kernel(layer, module) if is_inner else TORCH.kernel(layer, module)


def test_a_layer_inside_another_one_has_its_kernel_where_it_is_called_by_itself() -> None:
    backend, model, x = InnerByNumpy(), Model(Routed), torch.ones(4, SIZE, dtype=torch.double)
    expert = model.layers[1].get_submodule("experts.1")
    expected = expert(x)
    optimizer = torch.optim.SGD(model.parameters())
    options = options_of(backend, Activations.KEEP)
    with stream_weights(model, optimizer, device_memory="1MiB", options=options):
        model(x).backward()
        assert not backend.calls
        expert(x).sum().backward()
        with torch.no_grad():
            assert torch.equal(expert(x), expected)
    assert backend.calls == {"compute": 2, "backward": 1}
