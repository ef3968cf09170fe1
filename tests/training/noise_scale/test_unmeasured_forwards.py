"""Forwards that nobody measures are as without the hooks; tables of positions for all examples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openwafer import stream_weights
from openwafer.diagnostics import OpenwaferError
from openwafer.training.noise_scale import ExampleNorms, PerExampleNorms, Watched
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.stream_options import StreamOptions

IDS_BT = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(2))
POSITIONS = {"(tokens,)": torch.arange(6), "(1, tokens)": torch.arange(6)[None]}
shapes = pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
AGAIN = StreamOptions(device="cpu", mode=Mode.STREAMED, default_activations=Activations.RECOMPUTE)


class Embedded(nn.Module):
    """The sum of a token's row and its position's, normalised."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(8, 16)
        self.norm = nn.LayerNorm(16)
        self.register_buffer("positions", positions)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.norm(self.tokens(ids_BT) + self.places(self.positions))
        return x_BTD


class Tiny(nn.Module):
    """Embeddings and two layers; `calling` runs each of them."""

    def __init__(self, positions: Tensor, calling: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Embedded(positions), nn.Linear(16, 16), nn.Linear(16, 9)])
        self.calling = calling or (lambda layer, x: layer(x))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.calling(layer, x)
        return x.square().mean()


def measured(model: nn.Module, norms: PerExampleNorms) -> ExampleNorms:
    with norms.measuring() as examples:
        loss = model(IDS_BT)
    loss.backward()
    return examples


def expected(positions: Tensor) -> dict[str, Tensor]:
    """Squared norms of each example's eighth of the gradient, by a backward an example."""
    model, rows = Tiny(positions), []
    for ids_T in IDS_BT:
        model.zero_grad()
        (model(ids_T[None]) / 8).backward()
        rows.append({n: w.grad.square().sum() for n, w in model.named_parameters()})  # type: ignore[union-attr]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@shapes
def test_a_table_of_positions_is_asked_once_for_all_examples(positions: Tensor) -> None:
    model = Tiny(positions)
    found = measured(model, PerExampleNorms(model, 8, Watched.ALL))
    torch.testing.assert_close(found.by_name, expected(positions), rtol=1e-4, atol=1e-12)


@shapes
def test_a_forward_that_is_not_measured_is_as_without_hooks(positions: Tensor) -> None:
    model = Tiny(positions)
    measured(model, PerExampleNorms(model, 8, Watched.ALL))
    assert model.layers[0](IDS_BT[:1]).shape == (1, 6, 16)
    assert model(IDS_BT[:3]) == Tiny(positions)(IDS_BT[:3])


def run_again(layer: nn.Module, x: Tensor) -> Tensor:
    again: Tensor = checkpoint(layer, x, use_reentrant=False)
    return again


@shapes
def test_what_a_backward_runs_again_is_as_its_forward_was(positions: Tensor) -> None:
    """Measured or not, in turns."""
    model = Tiny(positions, run_again)
    norms = PerExampleNorms(model, 8, Watched.ALL)
    for _ in range(2):
        found = measured(model, norms)
        torch.testing.assert_close(found.by_name, expected(positions), rtol=1e-4, atol=1e-12)
        model(IDS_BT[:1]).backward()


@shapes
@pytest.mark.parametrize("turns", ["measured, not", "not, measured"])
def test_a_streamed_model_is_measured_in_turns_too(positions: Tensor, turns: str) -> None:
    model, plain = Tiny(positions), Tiny(positions)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms = PerExampleNorms(model, 8, Watched.ALL)
    with stream_weights(model, optimizer, device_memory="1MiB", options=AGAIN):
        for turn in 2 * turns.split(", "):
            if turn == "measured":
                found = measured(model, norms).by_name
                torch.testing.assert_close(found, expected(positions), rtol=1e-4, atol=1e-12)
            else:
                (loss := model(IDS_BT[:1])).backward()
                assert loss == plain(IDS_BT[:1])
            optimizer.step()
            optimizer.zero_grad()


def test_ids_that_may_be_one_of_each_example_are_refused() -> None:
    model = Tiny(torch.arange(6))
    norms = PerExampleNorms(model, 6, Watched.ALL)
    with (
        pytest.raises(OpenwaferError, match=r"(?s)\(6,\), .*a table of positions \(1, tokens\)"),
        norms.measuring(),
    ):
        model(IDS_BT[:6])
