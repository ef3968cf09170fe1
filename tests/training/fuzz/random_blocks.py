"""Blocks that do one unusual thing each: state, sharing, views, in-place writes, hooks."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Block(nn.Module):
    """A residual two-layer perceptron; every other block is one with something added."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down(functional.gelu(self.up(x)))
        return x + mixed


class Dropping(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.2, self.training))


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Counting(Block):
    """A plain number of the module turns what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return super().forward(x) * (1 + self.num_calls % 3)


class Averaging(Block):
    """A buffer that is exchanged for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Moving(Block):
    """A buffer that is moved in place, and wanted by the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.lerp_(x.detach().float().abs().mean(0), 0.1)
        return super().forward(x) * self.scale


class Overwriting(Block):
    """What its backward wants is written to: torch refuses the backward."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x).sigmoid()
        return out.mul_(2.0)


class Around(Block):
    """Runs its half in contexts."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            seen = self.up(x)[:, :WIDTH].float()
        with save_on_cpu():
            return super().forward(x + 0.1 * seen)


class Remembering(Block):
    """A tensor attribute and a list, both of the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.history: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.last is not None:
            x = x + 0.1 * self.last.mean()
        self.last = x.detach()
        self.history.append(len(self.history) / 10)
        return super().forward(x) * (1 + sum(self.history[-2:]))


class Slicing(Block):
    """Views of one weight: a slice, a transpose, two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.packed[2].chunk(2)
        x = torch.cat([functional.linear(x, left), functional.linear(x, right)], dim=1)
        return super().forward(x @ self.packed[1].T + functional.linear(x, self.packed[0]))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x).add_(0.1).relu_()
        out: Tensor = self.down(hidden)
        return out.add_(x).mul_(0.9)


class Branching(Block):
    """A path that values choose, and a weight that only one of the paths uses."""

    def __init__(self) -> None:
        super().__init__()
        self.seldom = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * self.seldom if bool(x.sum() > 0) else out


class Drawing(Block):
    """Random numbers of Python decide."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.randrange(3))


class Casting(Block):
    """A region of its own precision."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Recomputing(Block):
    """A layer that checkpoints itself."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


class Weighing(Block):
    """Normalised weights, which a parametrization makes of two others."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.up)


class Recurrent(Block):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.cell(x[None])
        return super().forward(seen[0])


class Attending(Block):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.attention(x, x * 2, x, need_weights=False)[0])


class Routing(nn.Module):
    """Experts in a list, one of which each row is sent to."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.router(x).softmax(1), torch.zeros_like(x)
        best = chosen.argmax(1)
        for index, expert in enumerate(self.experts):
            rows = (best == index).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * chosen[rows, index, None])
        return x + out


class Hooked(Block):
    """Hooks of a user's, one of which changes what the layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.up.register_forward_hook(lambda module, args, out: out * 1.5)
        self.down.weight.register_hook(lambda gradient: gradient * 0.5)


class Leaving(Block):
    """A loss of its own, left on the module for the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.own_loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.own_loss = out.square().mean()
        return out


class Half(Block):
    """Some weights frozen, one of them spread in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.up.weight.requires_grad_(False)
        self.down.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH).T / WIDTH)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Block, Dropping, Normed, Counting, Averaging, Moving, Overwriting, Around, Remembering),
        *(Slicing, InPlace, Branching),
        *(Drawing, Casting, Recomputing, Weighing, Recurrent, Attending, Routing, Hooked, Leaving),
        Half,
    )
}


def attributes_of(model: nn.Module) -> dict[str, Any]:
    """Plain numbers and lists that the modules hold."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | list) and not name.startswith("_")
    }
