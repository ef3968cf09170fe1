"""The sparse product as autograd sees it; the oracle is torch's masked dense product in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.linear import sparse_linear
from tests.training.sparsity.dense_oracle import Case, Products, bounds, case_of, exact


def products(case: Case, dtype: torch.dtype = torch.float32) -> Products:
    given = (case.inputs, case.values, case.bias)
    x, values, bias = (t.detach().to(dtype).requires_grad_() for t in given)
    output = sparse_linear(x, values, case.index, bias)
    output.backward(case.gradient.to(dtype))
    gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in (x, values, bias)]
    return Products(output.detach(), *gradients)


def all_of(products: Products) -> list[Tensor]:
    return [products.output, products.of_inputs, products.of_values, products.of_bias]


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_output_and_gradients_are_those_of_the_masked_weight(sparsity: float) -> None:
    case = case_of(90, 200, 150, sparsity)
    for ours, theirs, off in zip(
        *map(all_of, (products(case), exact(case), bounds(case))), strict=True
    ):
        assert ((ours - theirs).abs() <= off).all()


def test_errors_are_not_larger_than_those_of_the_dense_product() -> None:
    case = case_of(400, 500, 600, 0.5)
    x, weight, bias = (t.clone().requires_grad_() for t in (case.inputs, case.weight, case.bias))
    output = F.linear(x, weight, bias)
    gradients = torch.autograd.grad(output, (x, weight, bias), case.gradient)
    of_values = case.pattern.values_of(gradients[1])
    dense = Products(output.detach(), gradients[0], of_values, gradients[2])
    for ours, theirs, true in zip(*map(all_of, (products(case), dense, exact(case))), strict=True):
        assert (ours - true).square().mean() <= 4 * (theirs - true).square().mean()


def test_gradients_are_the_slopes_of_the_output() -> None:
    case = case_of(6, 9, 5, 0.5)
    # Powers of two and small whole numbers: every sum is exact, and so is a difference quotient.
    x, values, bias = (t.mul(4).round() for t in (case.inputs, case.values, case.bias))
    upstream, index = case.gradient.mul(4).round(), case.index
    leaves = [t.clone().requires_grad_() for t in (x, values, bias)]
    (sparse_linear(leaves[0], leaves[1], index, leaves[2]) * upstream).sum().backward()
    for number, tensor in enumerate((x, values, bias)):
        slopes = torch.zeros(tensor.numel())
        for place in range(tensor.numel()):
            moved = [t.clone() for t in (x, values, bias)]
            moved[number].view(-1)[place] += 1
            change = sparse_linear(moved[0], moved[1], index, moved[2])
            slopes[place] = ((change - sparse_linear(x, values, index, bias)) * upstream).sum()
        assert torch.equal(leaves[number].grad.flatten(), slopes)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_only_wanted_gradients_are_made(wanted: tuple[bool, bool, bool]) -> None:
    case = case_of(30, 40, 70, 0.8)
    leaves = [
        t.clone().requires_grad_(is_wanted)
        for t, is_wanted in zip((case.inputs, case.values, case.bias), wanted, strict=True)
    ]
    sparse_linear(leaves[0], leaves[1], case.index, leaves[2]).backward(case.gradient)
    assert tuple(leaf.grad is not None for leaf in leaves) == wanted
    number = wanted.index(True)
    assert torch.equal(leaves[number].grad, all_of(products(case))[1 + number])  # type: ignore[arg-type]


def test_inputs_of_any_layout_and_number_of_dims_are_taken() -> None:
    case = case_of(30, 40, 24, 0.8)
    expected = sparse_linear(case.inputs, case.values, case.index)
    given = case.inputs.T.contiguous().T.reshape(24, 40)
    assert not case.inputs.T.contiguous().T.is_contiguous()
    assert torch.equal(sparse_linear(given, case.values, case.index), expected)
    split = case.inputs.view(2, 3, 4, 40)
    assert torch.equal(sparse_linear(split, case.values, case.index), expected.view(2, 3, 4, 30))
    assert torch.equal(sparse_linear(case.inputs[5], case.values, case.index), expected[5])


def test_expanded_gradients_are_taken() -> None:
    case = case_of(30, 40, 70, 0.8)
    x = case.inputs.clone().requires_grad_()
    sparse_linear(x, case.values, case.index).sum().backward()
    expected = case.weight.double().sum(0).expand(70, 40)
    torch.testing.assert_close(x.grad, expected.float())


def test_no_tokens_give_empty_outputs_and_zero_gradients() -> None:
    case = case_of(30, 40, 0, 0.8)
    found = products(case)
    assert found.output.shape == (0, 30)
    assert found.of_inputs.shape == (0, 40)
    assert torch.equal(found.of_values, torch.zeros(case.pattern.num_kept))
    assert torch.equal(found.of_bias, torch.zeros(30))


def test_without_bias_sums_begin_at_zero() -> None:
    case = case_of(30, 40, 70, 0.8)
    zeros = torch.zeros(30)
    with_zeros = sparse_linear(case.inputs, case.values, case.index, zeros)
    assert torch.equal(sparse_linear(case.inputs, case.values, case.index), with_zeros)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_summed_in_32(dtype: torch.dtype) -> None:
    case = case_of(30, 40, 70, 0.8)
    rounded = [t.to(dtype).float() for t in (case.weight, case.inputs, case.bias, case.gradient)]
    expected = products(Case(case.pattern, *rounded))
    for ours, theirs in zip(all_of(products(case, dtype)), all_of(expected), strict=True):
        assert torch.equal(ours, theirs.to(dtype))


def test_under_autocast_the_output_has_its_format() -> None:
    case = case_of(30, 40, 70, 0.8)
    values = case.values.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        for x in (case.inputs, case.inputs.bfloat16()):
            output = sparse_linear(x, values, case.index, case.bias)
            assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert values.grad is not None
    assert values.grad.dtype == torch.float32


def test_gradients_of_gradients_are_refused() -> None:
    case = case_of(30, 40, 70, 0.8)
    x = case.inputs.clone().requires_grad_()
    output = sparse_linear(x, case.values, case.index).square().sum()
    (gradient,) = torch.autograd.grad(output, x, create_graph=True)
    with pytest.raises(OpenwaferError, match="gradients of gradients go through a sparse product"):
        gradient.sum().backward()


def test_shapes_that_do_not_fit_are_refused() -> None:
    case = case_of(30, 40, 7, 0.8)
    told = r"inputs of \(7, 39\) and \(\d+,\) values for a weight of 30 x 40 that keeps \d+"
    with pytest.raises(OpenwaferError, match=told):
        sparse_linear(case.inputs[:, :39], case.values, case.index)
    with pytest.raises(OpenwaferError, match=r"and \(1,\) values for a weight of 30 x 40"):
        sparse_linear(case.inputs, case.values[:1], case.index)
    with pytest.raises(OpenwaferError, match=r"a bias of \(29,\) for 30 rows"):
        sparse_linear(case.inputs, case.values, case.index, case.bias[:29])


def test_formats_that_would_lose_bits_are_refused() -> None:
    case = case_of(30, 40, 7, 0.8)
    with pytest.raises(OpenwaferError, match=r"all alike: not torch\.float64 on cpu"):
        sparse_linear(case.inputs.double(), case.values.double(), case.index)
    with pytest.raises(OpenwaferError, match=r"not torch\.bfloat16 on cpu, torch\.float32 on cpu"):
        sparse_linear(case.inputs.bfloat16(), case.values, case.index)
