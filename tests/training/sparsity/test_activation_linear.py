"""Linear maps of mostly zero inputs, beside dense products in 64-bit floats and torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from openwafer.training.sparsity.activation_linear import ActivationLinear
from openwafer.training.sparsity.activations import (
    FEWEST_TOKENS,
    LEAST_ZEROS,
    Pieces,
    activation_linear,
)
from tests.tables import some

EPSILON = 2.0**-24
FEATURES, OUTPUTS = 150, 70


def rectified(shape: tuple[int, ...], zeros: float) -> Tensor:
    """Normal numbers above a threshold that so many do not reach."""
    torch.manual_seed(0)
    threshold = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(zeros))
    return torch.relu(torch.randn(shape) - threshold)


def results(multiplied: object, leaves: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """The output and the gradients of inputs, weight and bias."""
    assert callable(multiplied)
    given = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    output: Tensor = multiplied(*given)
    return [output, *torch.autograd.grad(output, given, gradient)]


def skipping(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    output, found = activation_linear(inputs, weight, bias)
    assert found.tolist() == [int(inputs.count_nonzero()), 1]
    return output


@pytest.mark.parametrize("zeros", [0.8, 0.95, 1.0])
@pytest.mark.parametrize("leading", [(FEWEST_TOKENS,), (3, 1111)])
def test_sums_are_as_near_as_their_length_allows(zeros: float, leading: tuple[int, ...]) -> None:
    inputs = rectified((*leading, FEATURES), zeros)
    leaves = [inputs, torch.randn(OUTPUTS, FEATURES), torch.randn(OUTPUTS)]
    gradient = torch.randn(*leading, OUTPUTS)
    found = results(skipping, leaves, gradient)
    exact = results(functional.linear, [leaf.double() for leaf in leaves], gradient.double())
    sizes = results(functional.linear, [leaf.double().abs() for leaf in leaves], gradient.abs())
    exact[1], sizes[1] = (each * (inputs != 0) for each in (exact[1], sizes[1]))
    lengths = FEATURES + 1, OUTPUTS, inputs.numel() // FEATURES, inputs.numel() // FEATURES
    for one, whole, size, length in zip(found, exact, sizes, lengths, strict=True):
        assert bool(((one.double() - whole).abs() <= EPSILON * length * size + 1e-30).all())


LEADINGS: dict[str, tuple[int, ...]] = {
    "few zeros": (1200,),
    "a batch": (4, 300),
    "few tokens": (FEWEST_TOKENS - 1,),
    "none": (0,),
}


@pytest.mark.parametrize("leading", LEADINGS.values(), ids=LEADINGS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_otherwise_the_bits_are_those_of_torch(leading: tuple[int, ...], has_bias: bool) -> None:
    zeros = 0.9 if leading == LEADINGS["few tokens"] else 0.6
    leaves = [rectified((*leading, FEATURES), zeros), torch.randn(OUTPUTS, FEATURES)]
    leaves += [torch.randn(OUTPUTS)] if has_bias else []
    gradient = torch.randn(*leading, OUTPUTS)
    expected = results(functional.linear, leaves, gradient)

    def multiplied(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return activation_linear(inputs, weight, bias)[0]

    pairs = zip(results(multiplied, leaves, gradient), expected, strict=True)
    assert all(torch.equal(found, whole) for found, whole in pairs)


def test_a_strided_input_has_the_bits_of_torch_where_nothing_is_skipped() -> None:
    given = rectified((4, 300, FEATURES), 0.5).transpose(0, 1)
    weight, bias = torch.randn(OUTPUTS, FEATURES), torch.randn(OUTPUTS)
    found, _ = activation_linear(given, weight, bias)
    assert torch.equal(found, functional.linear(given, weight, bias))


def test_one_piece_with_too_few_zeros_makes_the_whole_product_dense() -> None:
    inputs = rectified((3000, FEATURES), 0.95)
    inputs[1024:2048] = torch.randn(1024, FEATURES)
    _, found = activation_linear(inputs, torch.randn(OUTPUTS, FEATURES), None)
    assert found[1] == 0


@pytest.mark.parametrize("num_threads", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(num_threads: int) -> None:
    leaves = [
        rectified((2100, FEATURES), 0.9),
        torch.randn(OUTPUTS, FEATURES),
        torch.zeros(OUTPUTS),
    ]
    gradient, before = torch.randn(2100, OUTPUTS), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = results(skipping, leaves, gradient)
        torch.set_num_threads(num_threads)
        found = results(skipping, leaves, gradient)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("features", some([1, 33, 4096, 70_000], 33, 70_000))
def test_the_workspace_has_room_for_the_most_that_is_kept(features: int) -> None:
    tokens = FEWEST_TOKENS + 44
    inputs = torch.zeros(tokens, features)
    kept = int(features * (1 - LEAST_ZEROS))
    inputs[:, features - kept :] = 1
    weight = torch.ones(2, features)
    output, found = activation_linear(inputs, weight, None)
    assert found.tolist() == [tokens * kept, 1]
    assert torch.equal(output, torch.full((tokens, 2), float(kept)))


def test_the_workspace_does_not_grow_with_the_tokens() -> None:
    assert Pieces(1 << 20, 4096).workspace_bytes == Pieces(1 << 10, 4096).workspace_bytes < 20 << 20


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 12))
    assert isinstance(layers[0], nn.Linear)
    nn.init.constant_(layers[0].bias, -0.6)
    return layers


def train(model: nn.Module) -> None:
    torch.manual_seed(1)
    inputs, goal = torch.randn(400, 20), torch.randn(400, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        (model(inputs) - goal).square().mean().backward()
        optimizer.step()


def test_an_mlp_that_skips_zeros_trains_like_the_plain_one() -> None:
    plain = mlp()
    other = copy.deepcopy(plain)
    assert isinstance(other[3], nn.Linear)
    other[3] = skips = ActivationLinear(other[3], "3")
    train(plain)
    train(other)
    assert skips.tally.skipped == skips.tally.zeros > 0.75 * skips.tally.numbers
    for (name, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6, msg=name)


def test_flops_are_those_of_the_dense_product() -> None:
    module = ActivationLinear(nn.Linear(96, 12), "it")
    inputs = torch.relu(torch.randn(400, 96).requires_grad_())
    with FlopCounterMode(display=False) as counter:
        module(inputs).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 400 * 96 * 12


def test_under_autocast_the_product_is_torchs() -> None:
    linear = nn.Linear(96, 12)
    module, inputs = ActivationLinear(linear, "it"), rectified((400, 96), 0.9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(inputs), linear(inputs))
