"""A model whose weights go through any chain of views, copies and casts before they are used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tests.training.stream.both_loops import Run

WIDTH = 8
Step = Callable[[Tensor, int], Tensor]


def _dim(tensor: Tensor, number: int) -> int:
    return number % tensor.ndim - (tensor.ndim if number % 2 else 0)


def _select(tensor: Tensor, number: int) -> Tensor:
    dim = _dim(tensor, number)
    index = number % tensor.shape[dim]
    return tensor.select(dim, index - (tensor.shape[dim] if number % 3 else 0))


def _halve(tensor: Tensor, number: int) -> Tensor:
    return tensor.chunk(2, _dim(tensor, number))[-1]


def _as_complex(tensor: Tensor) -> Tensor:
    is_pairs = tensor.shape[-1] % 2 == 0 and tensor.dtype in (torch.float32, torch.float64)
    return torch.view_as_complex(tensor.unflatten(-1, (-1, 2)).contiguous()) if is_pairs else tensor


def _half_of_complex(tensor: Tensor, number: int) -> Tensor:
    if not tensor.is_complex():
        return tensor
    match number % 4:
        case 0:
            return tensor.real
        case 1:
            return tensor.imag
        case 2:
            return tensor.conj().imag
        case _:
            return torch.view_as_real(tensor.resolve_conj())


STEPS: dict[str, Step] = {
    "select": lambda t, n: _select(t, n) if t.ndim > 1 else t,
    "slice": lambda t, n: t[n % t.shape[0] :: 1 + n % 2],
    "narrow": lambda t, n: t.narrow(_dim(t, n), -1, 1),
    "chunk": _halve,
    "split": lambda t, n: t.split([1, len(t) - 1])[1] if len(t) > 1 else t,
    "unbind": lambda t, n: t.unbind(_dim(t, n))[0] if t.ndim > 1 else t,
    "transpose": lambda t, n: t.transpose(0, _dim(t, n)),
    "permute": lambda t, n: t.permute(-1, *range(t.ndim - 1)),
    "movedim": lambda t, n: t.movedim(0, _dim(t, n)),
    "unsqueeze": lambda t, n: t.unsqueeze(_dim(t, n)),
    "squeeze": lambda t, n: t.squeeze() if t.numel() > 1 else t,
    "expand": lambda t, n: t.unsqueeze(0).expand(2, *t.shape),
    "unflatten": lambda t, n: t.unflatten(-1, (1, -1)),
    "flatten": lambda t, n: t.flatten(),
    "diagonal": lambda t, n: t.diagonal(0, 0, -1) if t.ndim > 1 else t,
    "as_strided": lambda t, n: t.as_strided(t.size(), t.stride()),
    "complex": lambda t, n: _as_complex(t),
    "conj": lambda t, n: t.conj(),
    "half_of_complex": _half_of_complex,
    "contiguous": lambda t, n: t.contiguous(),
    "clone": lambda t, n: t.clone(),
    "bf16": lambda t, n: t if t.is_complex() else t.to(torch.bfloat16),
    "fp16": lambda t, n: t if t.is_complex() else t.half(),
    "fp32": lambda t, n: t if t.is_complex() else t.float(),
    "fp64": lambda t, n: t if t.is_complex() else t.double(),
}


@dataclass(frozen=True)
class Chain:
    """What becomes of a weight, and under what.

    Attributes:
        steps: names of :data:`STEPS`, each with a number that chooses dims and indices.
        dtype: of the weight.
        autocast_dtype: ``None`` for no autocast.
    """

    steps: Sequence[tuple[str, int]]
    dtype: torch.dtype = torch.float32
    autocast_dtype: torch.dtype | None = None


class Layer(nn.Module):
    """Uses its weight, at the end of its chain, in a product with its input and elementwise."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.randn(3))
        self.weight = nn.Parameter(torch.randn(4, 6, 8, dtype=chain.dtype) / 4)
        self.steps = tuple(chain.steps)

    def forward(self, x_BD: Tensor) -> Tensor:
        seen: Tensor = self.weight
        for name, number in self.steps:
            seen = STEPS[name](seen, number)
        if seen.is_complex():
            seen = (seen * x_BD.mean()).abs()
        scaled = (seen * x_BD.mean()).float().mean() + self.before.mean()
        rows_ND = seen.reshape(-1, seen.shape[-1])
        column_B1 = x_BD[:, :1].to(rows_ND.dtype).expand(-1, rows_ND.shape[0])
        return x_BD + scaled + (column_B1 @ rows_ND).float().mean(1, keepdim=True).tanh()


def run_of(chain: Chain) -> Run:
    return Run(
        build=partial(_build, chain),
        optimize=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        draw=lambda generator: torch.randn(3, WIDTH, generator=generator),
        loss_of=partial(_loss_of, chain.autocast_dtype),
        num_steps=2,
    )


def _build(chain: Chain) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer(chain) for _ in range(2))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers)


def _loss_of(autocast_dtype: torch.dtype | None, model: nn.Module, x_BD: Tensor) -> Tensor:
    with torch.autocast("cpu", autocast_dtype, enabled=autocast_dtype is not None):
        loss: Tensor = model(x_BD).float().pow(2).mean()
    return loss
