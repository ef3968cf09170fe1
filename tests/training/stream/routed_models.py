"""Models whose own code decides, pass by pass, which of their layers run."""

import torch
from torch import Tensor, nn

WIDTH, NUM_LAYERS = 16, 6


class Part(nn.Module):
    """Adds to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.down(torch.relu(self.up(x)))
        return x + added


class EarlyExit(nn.Module):
    """Leaves its layers behind as many as the first number of a batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Part() for _ in range(NUM_LAYERS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        depth = int(x[0, 0])
        for layer in self.layers[:depth]:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class StochasticDepth(EarlyExit):
    """Runs each layer with a chance."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand(()) < 0.7:
                x = layer(x)
        out: Tensor = self.head(x)
        return out


class Halting(EarlyExit):
    """Repeats two layers until the output says that it is enough."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(NUM_LAYERS):
            x = self.layers[1](self.layers[0](x))
            if x.mean() > 0.1:
                break
        out: Tensor = self.head(x)
        return out


class Shuffled(EarlyExit):
    """Runs its layers in an order that is drawn."""

    def forward(self, x: Tensor) -> Tensor:
        for index in torch.randperm(NUM_LAYERS):
            x = self.layers[int(index)](x)
        out: Tensor = self.head(x)
        return out


MODELS = (EarlyExit, StochasticDepth, Halting)


def build(kind: type[EarlyExit]) -> EarlyExit:
    torch.manual_seed(0)
    return kind()


def draw(generator: torch.Generator, depths: tuple[int, ...] = (6, 2, 4, 1)) -> Tensor:
    """A batch whose first number is one of the depths."""
    x = torch.randn(4, WIDTH, generator=generator)
    x[0, 0] = depths[int(torch.randint(len(depths), (), generator=generator))]
    return x


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss
