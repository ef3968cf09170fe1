"""Small layers, each with a state of another kind that its forward reads and changes."""

import random
from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 16


class Bare(nn.Module):
    """A linear layer; what derives from it has a state as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def inner(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.linear(x_BTD))


class WithBuffer(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor


class BufferReassigned(WithBuffer):
    """As codebooks, observers and quantised models average."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        self.mean = 0.9 * self.mean + 0.1 * y_BTD.detach().mean((0, 1))
        return torch.exp(y_BTD - self.mean)


class BufferInPlace(WithBuffer):
    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        self.mean.mul_(0.9).add_(y_BTD.detach().mean((0, 1)))
        return torch.exp(y_BTD * self.mean.clone())


class BufferBehindItsVersion(WithBuffer):
    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        self.mean.data.add_(y_BTD.detach().mean((0, 1)))
        return torch.exp(y_BTD * self.mean.clone())


class Normalised(Bare):
    """Batch normalisation writes without counting versions up."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.norm(self.inner(x_BTD).transpose(1, 2)).transpose(1, 2)
        return out


class TensorAttribute(Bare):
    """As Transformer-XL remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD if self.memory is None else x_BTD + self.memory)
        self.memory = y_BTD.detach()
        return y_BTD


class Counter(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.count += 1
        return torch.exp(self.inner(x_BTD) / self.count)


class EveryThirdCall(WithBuffer):
    """What changes changes too."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.count += 1
        y_BTD = self.inner(x_BTD)
        if self.count % 3 == 0:
            self.mean.data.add_(y_BTD.detach().mean((0, 1)))
        return torch.exp(y_BTD * self.mean.clone())


class TupleReplaced(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.state = (0, False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.state = (self.state[0] + 1, self.state[0] % 2 == 0)
        y_BTD = self.inner(x_BTD)
        return torch.exp(y_BTD) if self.state[1] else torch.sigmoid(y_BTD)


class DequeGrows(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.means: deque[float] = deque(maxlen=2)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        self.means.append(float(y_BTD.detach().mean()))
        return torch.exp(y_BTD * sum(self.means))


class ListInDictGrows(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Tensor]] = {"means": []}

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        self.seen["means"].append(y_BTD.detach().mean())
        return torch.exp(y_BTD * torch.stack(self.seen["means"]).sum())


class ArrayCounts(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.counts = np.ones(WIDTH, dtype=np.float32)

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.counts += 1
        return torch.exp(self.inner(x_BTD) / torch.from_numpy(self.counts.copy()))


class OwnGenerators(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.torch_numbers = torch.Generator().manual_seed(1)
        self.python_numbers = random.Random(2)
        self.numpy_numbers = np.random.default_rng(3)
        self.old_numpy_numbers = np.random.RandomState(4)

    def forward(self, x_BTD: Tensor) -> Tensor:
        drawn = self.python_numbers.random() + self.numpy_numbers.random()
        drawn += self.old_numpy_numbers.rand()
        return torch.exp(self.inner(x_BTD) * torch.rand(1, generator=self.torch_numbers) * drawn)


class SharedGenerators(Bare):
    """Draws from the generators behind the modules, as layers that are dropped at random do."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        drawn = random.random() + float(np.random.rand())
        return torch.exp(self.inner(x_BTD) * torch.rand(1) * drawn)


class InnerState(Bare):
    """The state is a child's, which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Counter()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.child(self.inner(x_BTD)) + self.child(x_BTD))


KINDS = (
    BufferReassigned,
    BufferInPlace,
    BufferBehindItsVersion,
    Normalised,
    TensorAttribute,
    Counter,
    EveryThirdCall,
    TupleReplaced,
    DequeGrows,
    ListInDictGrows,
    ArrayCounts,
    OwnGenerators,
    SharedGenerators,
    InnerState,
)


class Chain(nn.Module):
    """Layers one after the other; the last one is called a second time in every forward."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x_BTD: Tensor) -> Tensor:
        for layer in (*self.layers, self.layers[-1]):
            x_BTD = 0.5 * x_BTD + 0.1 * layer(x_BTD)
        return x_BTD.square().mean()
