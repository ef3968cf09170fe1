"""Products of packed linear maps that skip zeros, beside dense ones in 64-bit floats."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

from openwafer.training.sparsity.packed_linear import PackedLinear, pack_linears
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.products import Products

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


def train(layer: nn.Module, mask: Tensor) -> None:
    """Five steps on the same inputs; what is dropped of a dense weight stays zero."""
    torch.manual_seed(1)
    x, goal = torch.randn(TOKENS, INPUTS), torch.randn(TOKENS, OUTPUTS)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        (layer(x) - goal).square().mean().backward()
        optimizer.step()
        if isinstance(layer, nn.Linear):
            layer.weight.data *= mask


def test_a_layer_that_skips_zeros_trains_like_its_masked_dense_one() -> None:
    torch.manual_seed(0)
    dense = nn.Linear(INPUTS, OUTPUTS)
    mask = mask_of(dense.weight)
    dense.weight.data *= mask
    sparse = packed(copy.deepcopy(dense))
    train(dense, mask)
    train(sparse, mask)
    torch.testing.assert_close(sparse.dense_weight(), dense.weight.detach())
    torch.testing.assert_close(sparse.bias, dense.bias)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_wanted_gradients_are_made(wanted: tuple[bool, bool]) -> None:
    module, inputs = packed(nn.Linear(INPUTS, OUTPUTS)), torch.randn(TOKENS, INPUTS)
    leaves = inputs.requires_grad_(wanted[0]), module.weight.requires_grad_(wanted[1])
    with FlopCounterMode(display=False) as counter:
        module(inputs).sum().backward()
    assert tuple(leaf.grad is not None for leaf in leaves) == wanted
    assert counter.get_total_flops() == 2 * (2 * TOKENS * module.room.capacity)


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
    skips = packed(nn.Linear(INPUTS, OUTPUTS), Products.AUTO).multiplication
    many, few = torch.randn(64, INPUTS), torch.randn(63, INPUTS)
    assert skips.skips_zeros(many, torch.zeros(1))
    assert not skips.skips_zeros(few, torch.zeros(1))
    assert not skips.skips_zeros(many, torch.zeros(1).bfloat16())


def walks_in(layer: PackedLinear, num_calls: int, *, keeps_graphs: bool) -> int:
    """How many walks are made of a pattern while a layer is called so often."""
    kept: list[Tensor] = []
    names: list[str] = []
    with OperatorsSeen(names):
        for _ in range(num_calls):
            kept.append(layer(torch.randn(TOKENS, INPUTS)))
            if not keeps_graphs:
                kept.clear()
    return names.count("openwafer::walk")


class OperatorsSeen(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self._names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_forwards_share_a_walk_for_as_long_as_a_graph_holds_it() -> None:
    layer = packed(nn.Linear(INPUTS, OUTPUTS))
    assert walks_in(layer, 3, keeps_graphs=True) == 1
    assert walks_in(layer, 3, keeps_graphs=False) == 3


def test_a_pattern_that_was_written_behind_the_back_of_a_graph_is_walked_anew() -> None:
    layer, other = packed(nn.Linear(INPUTS, OUTPUTS, bias=False)), torch.randn(OUTPUTS, INPUTS)
    inputs = torch.randn(TOKENS, INPUTS)
    before = layer(inputs)
    pattern = Pattern.from_mask(mask_of(other).flip(0))
    layer.weight_pattern.data.copy_(layer.room.packed(pattern))
    after = layer(inputs)
    assert before.grad_fn is not None
    assert torch.allclose(after, inputs @ layer.dense_weight().T, atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-4)
