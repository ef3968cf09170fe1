"""Names that look like an index are names like others."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.frontends import stream_weights
from tests.training.stream.both_loops import STREAMED, differing

KEYS = ("w[0]", "w[1]", "w[2]")
SIZE = 32


class OfModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.held = nn.ModuleDict({key: nn.Linear(SIZE, SIZE) for key in KEYS})

    def forward(self, x: Tensor) -> Tensor:
        for key in KEYS:
            x = self.held[key](x).tanh()
        return x.square().mean()


class OfParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.held = nn.ParameterDict({key: nn.Parameter(torch.randn(SIZE, SIZE)) for key in KEYS})

    def forward(self, x: Tensor) -> Tensor:
        for key in KEYS:
            x = (x @ self.held[key]).tanh()
        return x.square().mean()


def train(model: nn.Module, *, is_streamed: bool) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = replace(STREAMED, min_layer_bytes=0)
    streamed = (
        stream_weights(model, optimizer, device_memory="64 MiB", options=options)
        if is_streamed
        else None
    )
    for seed in range(3):
        model(torch.randn(4, SIZE, generator=torch.Generator().manual_seed(seed))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    if streamed is not None:
        streamed.close()
    return dict(model.state_dict())


@pytest.mark.parametrize("kind", [OfModules, OfParameters])
def test_a_model_whose_names_end_in_brackets_learns_what_it_learns_plainly(
    kind: type[nn.Module],
) -> None:
    expected = train(kind(), is_streamed=False)
    assert differing(train(kind(), is_streamed=True), expected) == []
