"""A forward that somebody has replaced by a function around it is planned on copies, too."""

from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Mode
from openwafer.training.stream import StreamOptions

OPTIONS = StreamOptions(mode=Mode.STREAMED, min_layer_bytes=256, host_memory_bytes=1 << 28)


class Inner(nn.Module):
    """Four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Outer(nn.Module):
    """Calls a model that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.inner(x) * 0.5
        return scaled


def patch(model: nn.Module) -> None:
    """Put a function around the forward, as TRL does: it holds the model by its bound method."""
    original = model.forward

    def forward(_self: nn.Module, x: Tensor, doubles: bool = False) -> Any:
        return original(x) * (2.0 if doubles else 1.0)

    model.forward = MethodType(forward, model)


def losses(path: str, *, streams: bool) -> list[float]:
    torch.manual_seed(0)
    model = Outer()
    patch(model.get_submodule(path))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if streams:
        stream_weights(model, optimizer, device_memory="1MiB", options=OPTIONS)
    found = []
    for rows in (4, 8, 16):
        with torch.no_grad():
            found.append(model(torch.randn(2 * rows, 32)).sum().item())
        loss = model(torch.randn(rows, 32)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("path", ["", "inner"])
def test_calls_of_other_sizes_are_planned_while_such_a_model_streams(path: str) -> None:
    assert losses(path, streams=True) == losses(path, streams=False)
