"""Blocks that write where autograd does not look: gradients, pieces of tensors, sizes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.training.fuzz.random_blocks import WIDTH, Block

# So that activations are large enough to be moved.
ROWS = 72


class _Given(torch.autograd.Function):
    """Gives the weight that it keeps, or the one that it saved, its gradient by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, keeps: bool) -> Tensor:
        ctx.save_for_backward(x, *(() if keeps else (weight,)))
        ctx.weight = weight if keeps else None
        return x @ weight.detach().t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, *saved = ctx.saved_tensors
        weight = ctx.weight if ctx.weight is not None else saved[0]
        found = (gradient.to(x.dtype).t() @ x).to(weight.dtype)
        weight.grad = found if weight.grad is None else weight.grad + found
        return gradient.to(x.dtype) @ weight.detach(), None, None


class Giving(Block):
    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            given: Tensor = _Given.apply(x.float(), self.given, self.keeps)  # type: ignore[no-untyped-call]
        return super().forward(x + given)


class GivingSaved(Giving):
    keeps = False


class Chunking(Block):
    """Pieces of one tensor, each of which counts its own writes."""

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.unsafe_chunk(2, -1)

    def forward(self, x: Tensor) -> Tensor:
        both = self.up(x.repeat(ROWS, 1))
        first, second = self.pieces(both)
        mixed = first.sigmoid_() * second.tanh_()
        return super().forward(x + mixed[: x.shape[0]])


class Splitting(Chunking):
    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.unsafe_split(WIDTH, -1)


class Unbinding(Chunking):
    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(one.clone() for one in x.unflatten(-1, (2, WIDTH)).unbind(-2))


class WritingData(Block):
    """Writes past autograd to a tensor that it has saved, or will save."""

    def forward(self, x: Tensor) -> Tensor:
        seen = self.up(x.repeat(ROWS, 1)).sigmoid()
        seen.data.mul_(0.5)
        mixed = seen * seen.detach().add(1)
        return super().forward(x + mixed[: x.shape[0], :WIDTH])


class Celled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x.repeat(ROWS, 1))
        return super().forward(x + self.gru(hidden)[: x.shape[0]])


class Resizing(Block):
    """A buffer that its forward gives another size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        found = x.detach().float().mean(0)
        self.seen.resize_(self.seen.numel() % (3 * WIDTH) + WIDTH).zero_()
        self.seen[-WIDTH:].add_(found)
        return super().forward(x - self.seen[-WIDTH:])


class Spectral(Block):
    """A complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x.float(), norm="ortho") * self.filter
        return super().forward(x + torch.fft.irfft(spectrum, n=WIDTH, norm="ortho"))


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Giving, GivingSaved, Chunking, Splitting, Unbinding, WritingData),
        *(Celled, Resizing, Spectral),
    )
}
