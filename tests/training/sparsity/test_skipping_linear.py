"""Products of packed linear maps that skip zeros, beside dense ones in 64-bit floats."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.training.sparsity.multiplication import Products
from openwafer.training.sparsity.packed_linear import PackedLinear, pack_linears

EPSILON = 2.0**-24
INPUTS, OUTPUTS, TOKENS = 150, 70, 130


def mask_of(weight: Tensor) -> Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(3)) < 0.2


def packed(module: nn.Module, products: Products = Products.SPARSE, spare: int = 7) -> PackedLinear:
    model = nn.Sequential(module)
    kept = int(mask_of(module.get_parameter("weight")).sum()) + spare
    pack_linears(model, {"0.weight": kept}, lambda name, weight: mask_of(weight), products)
    found = model[0]
    assert isinstance(found, PackedLinear)
    return found


@dataclass
class InDoubles:
    """What a product and its gradients are, and how far sums of 32-bit floats may be from them."""

    weight: Tensor
    bias: Tensor
    inputs: Tensor
    gradient: Tensor

    def products(self) -> list[tuple[Tensor, Tensor]]:
        rows, gradient = self.inputs.double(), self.gradient.double()
        return [
            (rows @ self.weight.T + self.bias, self._bound(rows, self.weight.T) + self.bias.abs()),
            (gradient @ self.weight, self._bound(gradient, self.weight)),
            (gradient.T @ rows, self._bound(gradient.T, rows)),
        ]

    def _bound(self, one: Tensor, other: Tensor) -> Tensor:
        return one.shape[1] * (one.abs() @ other.abs())


def is_within(found: Tensor, product: tuple[Tensor, Tensor]) -> bool:
    exact, bound = product
    return bool(((found.double() - exact).abs() <= EPSILON * bound + 1e-30).all())


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("leading", [(TOKENS,), (2, 65)])
def test_sums_are_as_near_as_their_length_allows(is_turned: bool, leading: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = packed(Conv1D(OUTPUTS, INPUTS) if is_turned else nn.Linear(INPUTS, OUTPUTS))
    weight, bias = module.dense_weight().double(), module.get_parameter("bias").double()
    inputs, gradient = torch.randn(TOKENS, INPUTS), torch.randn(TOKENS, OUTPUTS)
    exact = InDoubles(weight.T if is_turned else weight, bias, inputs, gradient).products()
    given = inputs.view(*leading, INPUTS).requires_grad_()
    output = module(given)
    [of_inputs, of_values] = torch.autograd.grad(
        output, [given, module.get_parameter("weight")], gradient.view(output.shape)
    )
    whole = [(t.T if is_turned else t)[module.pattern.mask()] for t in exact[2]]
    assert is_within(output.view(TOKENS, OUTPUTS), exact[0])
    assert is_within(of_inputs.view(TOKENS, INPUTS), exact[1])
    assert is_within(of_values[:-7], (whole[0], whole[1]))
    assert not of_values[-7:].any()


@dataclass
class Watching:
    is_wanted: bool
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, gradient: Tensor, packed: Tensor) -> None:
        self.seen.append(gradient)


@pytest.mark.parametrize("products", [Products.SPARSE, Products.DENSE])
@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_watcher_sees_the_gradient_of_the_dense_weight_when_it_wants_it(
    products: Products, is_wanted: bool
) -> None:
    module = packed(nn.Linear(INPUTS, OUTPUTS), products)
    module.multiplication.watcher = watcher = Watching(is_wanted)
    inputs = torch.randn(TOKENS, INPUTS)
    module(inputs).sum().backward()
    expected = inputs.sum(0).expand(OUTPUTS, INPUTS)
    assert len(watcher.seen) == int(is_wanted)
    assert all(torch.allclose(seen, expected, atol=1e-4) for seen in watcher.seen)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(num_threads: int) -> None:
    torch.manual_seed(0)
    module, inputs = packed(nn.Linear(INPUTS, OUTPUTS)), torch.randn(2000, INPUTS)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        found = module(inputs)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, torch.cat([module(part) for part in inputs.split(64)]))


def test_by_default_zeros_are_skipped_where_that_pays() -> None:
    skips = packed(nn.Linear(INPUTS, OUTPUTS)).multiplication
    skips.products = Products.AUTO
    many, few = torch.randn(64, INPUTS), torch.randn(63, INPUTS)
    assert skips.skips_zeros(many, torch.zeros(1))
    assert not skips.skips_zeros(few, torch.zeros(1))
    assert not skips.skips_zeros(many, torch.zeros(1).bfloat16())
