"""Layers that write in place to pieces of one tensor, each of which counts its own writes.

`unsafe_chunk` and the like give pieces that share memory and no version counter; the cells of
recurrent networks use them. What autograd saves of a piece is what the plain loop finds there.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.tables import checkerboard, some
from tests.training.stream.foreign_loops import SIZE, Loop, are_equal, outcome

# Large enough that activations are moved.
ROWS = 64

Pieces = Callable[[Tensor], tuple[Tensor, Tensor]]


def unsafe_chunk(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.unsafe_chunk(2, -1)
    return first, second


def unsafe_split(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.unsafe_split(SIZE, -1)
    return first, second


def unsafe_split_sizes(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.unsafe_split_with_sizes([SIZE, SIZE], -1)
    return first, second


def unbound_copies(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (piece.clone() for piece in x.unflatten(-1, (2, SIZE)).unbind(-2))
    return first, second


class Gate(nn.Module):
    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.both, self.pieces = nn.Linear(SIZE, 2 * SIZE), pieces

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.pieces(self.both(x))
        return first.sigmoid_() * second.tanh_()


class Recurrent(nn.Module):
    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x)
        hidden: Tensor = state[0] if isinstance(state, tuple) else state
        return hidden


class Stack(nn.Module):
    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(ROWS // x.shape[0], 1)
        for layer in self.layers:
            x = x + layer(x)
        return x


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "unsafe_chunk": lambda: Gate(unsafe_chunk),
    "unsafe_split": lambda: Gate(unsafe_split),
    "unsafe_split_with_sizes": lambda: Gate(unsafe_split_sizes),
    "unbind and clone": lambda: Gate(unbound_copies),
    "LSTMCell": lambda: Recurrent(nn.LSTMCell(SIZE, SIZE)),
    "GRUCell": lambda: Recurrent(nn.GRUCell(SIZE, SIZE)),
}


class WritesPast(nn.Module):
    """Writes to what it has saved through `data`, which torch does not count."""

    def __init__(self, *, saves_again: bool) -> None:
        super().__init__()
        self.linear, self.saves_again = nn.Linear(SIZE, SIZE), saves_again

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.tanh(self.linear(x))
        seen.data.mul_(0.5)
        return seen * seen if self.saves_again else seen + 1


def trains(loop: Loop) -> None:
    loop.train(2)


@pytest.mark.parametrize(
    ("layer", "policy"),
    checkerboard(tuple(LAYERS), (Activations.OFFLOAD, Activations.RECOMPUTE), one_in=4),
)
def test_pieces_are_saved_as_the_plain_loop_finds_them(layer: str, policy: Activations) -> None:
    def build() -> nn.Module:
        return Stack(LAYERS[layer])

    expected = outcome(trains, build=build, streams=False)
    assert are_equal(outcome(trains, build=build, policy=policy), expected)


@pytest.mark.parametrize("saves_again", some([False, True], True))
def test_a_layer_that_writes_to_what_it_saved_keeps_it(saves_again: bool) -> None:
    def build() -> nn.Module:
        return Stack(lambda: WritesPast(saves_again=saves_again))

    expected = outcome(trains, build=build, streams=False)
    assert are_equal(outcome(trains, build=build), expected)


@pytest.mark.parametrize("policy", [Activations.OFFLOAD, Activations.RECOMPUTE])
def test_a_layer_that_writes_to_what_it_saved_is_refused_elsewhere(policy: Activations) -> None:
    with pytest.raises(OpenwaferError, match=r"'layers.0' are set to .*tensor\.data") as found:
        outcome(trains, build=lambda: Stack(lambda: WritesPast(saves_again=False)), policy=policy)
    assert "keep its activations" in (found.value.diagnostics[0].help or "")
