"""Each operation of a graph means what torch's own function, or its gradient, does."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.official.graph import Graph, Operation
from openwafer.training.frontends.official.operators import flops, run_operation, unknown_operations
from openwafer.training.frontends.official.text import read_graph
from tests.training.frontends.cirh_graphs import products_with_momentum, sentence

TEXT = products_with_momentum(clips=False)


def graph_of(text: str) -> Graph:
    arguments = [f"%x{at}: {type_} {{cs.input_name = \"x{at}\"}}" for at, type_ in enumerate(
        text.partition("(")[2].partition(")")[0].split(", "))]  # fmt: skip
    function = f"module {{ func @g({', '.join(arguments)}) {{ {text} return }} }}"
    return read_graph(function, "graph")


def operation(text: str) -> Operation:
    return graph_of(text).operations[0]


def run(text: str, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
    return run_operation(operation(text), operands)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients_of(
    function: Callable[..., torch.Tensor], *operands: torch.Tensor, along: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    held = [one.clone().requires_grad_() for one in operands]
    return torch.autograd.grad(function(*held), held, along)


def test_products_with_dims_of_a_batch() -> None:
    dims = {"lhs_batching": "[0, 1]", "lhs_contracting": "3", "rhs_batching": "[0, 1]",
            "rhs_contracting": "2"}  # fmt: skip
    attributes = ", ".join(
        f"{name}_dimensions = dense<{at}> : tensor<{2 if at[0] == '[' else 1}xi64>"
        for name, at in dims.items()
    )
    left, right = values(2, 3, 4, 5), values(2, 3, 5, 6)
    types = "(tensor<2x3x4x5xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x4x6xf32>"
    (found,) = run(sentence("%0", "DotGeneral", "%x0, %x1", attributes, types), left, right)
    assert torch.allclose(found, left @ right, atol=1e-6)


def test_the_gradient_of_a_layer_norm() -> None:
    value, bias, weight, along = values(3, 4), values(4, seed=1), values(4, seed=2), values(3, 4)
    types = ("(tensor<3x4xf32>, tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> "
             "(tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>)")  # fmt: skip
    text = sentence("%r, %b, %g", "LayerNormGrad", "%x0, %x1, %x2, %x3", "epsilon = 1.0E-5 : f32",
                    types)  # fmt: skip
    found = run(text, along, value, bias, weight)
    wanted = gradients_of(
        lambda x, b, w: functional.layer_norm(x, (4,), w, b, 1e-5), value, bias, weight, along=along
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.int16)
MASKED = "tensor<2x4x3xf32>, tensor<2x4xi16>, tensor<5x3xf32>"


def masked_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (rows @ weight.T) * MASK[..., None]


def test_a_product_of_the_rows_that_a_mask_has() -> None:
    rows, weight = values(2, 4, 3), values(5, 3, seed=1)
    types = f"({MASKED}) -> tensor<2x4x5xf32>"
    text = sentence("%0", "SparseActMatMul", "%x0, %x1, %x2", "", types)
    torch.testing.assert_close(run(text, rows, MASK, weight)[0], masked_product(rows, weight))


def test_the_gradient_of_a_product_of_the_rows_that_a_mask_has() -> None:
    rows, weight, along = values(2, 4, 3), values(5, 3, seed=1), values(2, 4, 5, seed=2)
    types = f"(tensor<2x4x5xf32>, {MASKED}) -> (tensor<2x4x3xf32>, tensor<5x3xf32>)"
    text = sentence("%i, %w", "SparseActMatMulGrad", "%x0, %x1, %x2, %x3", "", types)
    wanted = gradients_of(masked_product, rows, weight, along=along)
    torch.testing.assert_close(tuple(run(text, along, rows, MASK, weight)), wanted)


@pytest.mark.parametrize("approximation", ["NONE", "TANH"])
def test_the_gradient_of_a_gelu(approximation: str) -> None:
    value, along = values(3, 4), values(3, 4, seed=1)
    types = "(tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>"
    text = sentence("%0", "GeluGrad", "%x0, %x1", f'approximation = "{approximation}"', types)
    (wanted,) = gradients_of(
        lambda x: functional.gelu(x, approximate=approximation.lower()), value, along=along
    )
    assert torch.allclose(run(text, along, value)[0], wanted, atol=1e-6)


def test_cross_entropy_gives_losses_and_their_gradient() -> None:
    logits, labels = values(3, 4), torch.tensor([2, 0, 3])
    types = "(tensor<3x4xf32>, tensor<3xi64>) -> (tensor<3xf32>, tensor<3x4xf32>)"
    text = sentence("%l, %b", "SparseSoftmaxCrossEntropyWithLogits", "%x0, %x1",
                    "axis = 1 : i64", types)  # fmt: skip
    losses, gradient = run(text, logits, labels)
    assert torch.allclose(losses, functional.cross_entropy(logits, labels, reduction="none"))
    (wanted,) = gradients_of(
        lambda x: functional.cross_entropy(x, labels, reduction="sum"), logits, along=torch.ones(())
    )
    assert torch.allclose(gradient, wanted, atol=1e-6)


CASES: dict[str, tuple[str, str, str, Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "Gather": ("axis = 0 : i64, batch_dims = 0 : i64", "(tensor<5x2xf32>, tensor<3xi32>)",
               "tensor<3x2xf32>", lambda x, at: x[at.long()],
               (values(5, 2), torch.tensor([4, 0, 4], dtype=torch.int32))),
    "ScatterNd": ("", "(tensor<5x2xf32>, tensor<3x1xi64>, tensor<3x2xf32>)", "tensor<5x2xf32>",
                  lambda x, at, rows: x.index_add(0, at[:, 0], rows),
                  (values(5, 2), torch.tensor([[4], [0], [4]]), values(3, 2))),
    "BroadcastInDim": ("broadcast_dimensions = dense<1> : tensor<1xi64>", "(tensor<4xf32>)",
                       "tensor<3x4xf32>", lambda x: x.expand(3, 4), (values(4),)),
    "Transpose": ("", "(tensor<2x3x4xf32>, tensor<3xi64>)", "tensor<4x2x3xf32>",
                  lambda x, _: x.permute(2, 0, 1), (values(2, 3, 4), torch.tensor([2, 0, 1]))),
    "Arange": ("dim = 0 : i64", "(tensor<i64>, tensor<i64>, tensor<i64>)", "tensor<3xi64>",
               lambda *_: torch.arange(1, 7, 2),
               (torch.tensor(1), torch.tensor(7), torch.tensor(2))),
    "Reduce": ('dimensions = dense<0> : tensor<1xi64>, reduce_kind = "MAX"', "(tensor<3x4xf32>)",
               "tensor<4xf32>", lambda x: x.amax(0), (values(3, 4),)),
    "L2Norm": ("dims = dense<[0, 1]> : tensor<2xi64>", "(tensor<3x4xf32>)", "tensor<f32>",
               torch.linalg.norm, (values(3, 4),)),
    "Compare": ('comparison_direction = "LE"', "(tensor<4xf32>, tensor<4xf32>)", "tensor<4xi1>",
                torch.le, (values(4), values(4, seed=1))),
    "Softmax": ("axis = 1 : i64", "(tensor<3x4xf32>)", "tensor<3x4xf32>",
                lambda x: x.softmax(1), (values(3, 4),)),
    "Concat": ("axis = 1 : i64", "(tensor<3x1xf32>, tensor<3x2xf32>)", "tensor<3x3xf32>",
               lambda *x: torch.cat(x, 1), (values(3, 1), values(3, 2))),
    "Cast": ("Truncate = false", "(tensor<3xf32>)", "tensor<3xbf16>",
             lambda x: x.to(torch.bfloat16),
             (values(3),)),
    "Div": ("", "(tensor<3xi64>, tensor<3xi64>)", "tensor<3xi64>",
            lambda x, by: torch.div(x, by, rounding_mode="trunc"),
            (torch.tensor([7, -7, 4]), torch.tensor([2, 2, 2]))),
    "Slice": ("", "(tensor<5x2xf32>, tensor<2xi64>, tensor<2xi64>)", "tensor<3x1xf32>",
              lambda x, *_: x[1:4, 1:2],
              (values(5, 2), torch.tensor([1, 1]), torch.tensor([3, 1]))),
    "StridedSlice": ("begin_mask = 0 : i64",
                     "(tensor<5xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>)",
                     "tensor<2xf32>", lambda x, *_: x[1:4:2],
                     (values(5), torch.tensor([1]), torch.tensor([4]), torch.tensor([2]))),
    "Scatter": ('axis = 0 : i64, reduce_kind = "NONE"',
                "(tensor<4xi1>, tensor<2xi64>, tensor<2xi1>)", "tensor<4xi1>",
                lambda x, at, new: x.scatter(0, at, new),
                (torch.zeros(4, dtype=torch.bool), torch.tensor([2, 0]), torch.ones(2).bool())),
    "Or": ("", "(tensor<4xi1>, tensor<4xi1>)", "tensor<4xi1>", torch.logical_or,
           (torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0, 1, 0, 1]).bool())),
    "And": ("", "(tensor<4xi1>, tensor<4xi1>)", "tensor<4xi1>", torch.logical_and,
            (torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0, 1, 0, 1]).bool())),
    "Abs": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.abs, (values(3),)),
    "Log": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.log, (values(3).abs(),)),
    "Sigmoid": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.sigmoid, (values(3),)),
    "Sin": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.sin, (values(3),)),
    "Rsqrt": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.rsqrt, (values(3).abs(),)),
    "Pow": ("", "(tensor<3xf32>, tensor<3xf32>)", "tensor<3xf32>", torch.pow,
            (values(3).abs(), values(3, seed=1))),
    "Sign": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.sign, (torch.tensor([-2.0, 0, 3]),)),
    "Relu": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.relu, (values(3),)),
    "Cos": ("", "(tensor<3xf32>)", "tensor<3xf32>", torch.cos, (values(3),)),
    "Clamp": ("", "(tensor<3xf32>, tensor<f32>, tensor<f32>)", "tensor<3xf32>", torch.clamp,
              (values(3), torch.tensor(-torch.inf), torch.tensor(0.1))),
}  # fmt: skip


def test_the_place_of_the_greatest_is_an_integer() -> None:
    attributes = 'dimensions = dense<1> : tensor<1xi64>, reduce_kind = "ARGMAX"'
    text = sentence("%0", "Reduce", "%x0", attributes, "(tensor<3x4xf32>) -> tensor<3xi64>")
    assert torch.equal(run(text, values(3, 4))[0], values(3, 4).argmax(1))


def test_of_equal_elements_the_first_are_the_greatest() -> None:
    types = "(tensor<5xf32>) -> (tensor<3xf32>, tensor<3xi64>)"
    attributes = "dimension = 0 : i32, k = 3 : i32, largest = true, sorted = true"
    text = sentence("%v, %p", "TopK", "%x0", attributes, types)
    found, places = run(text, torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0]))
    assert (found.tolist(), places.tolist()) == ([2.0, 1.0, 1.0], [2, 0, 3])


def test_a_scatter_that_reduces_is_refused() -> None:
    text = sentence("%0", "Scatter", "%x0, %x1, %x2", 'axis = 0 : i64, reduce_kind = "MAX"',
                    "(tensor<4xf32>, tensor<2xi64>, tensor<2xf32>) -> tensor<4xf32>")  # fmt: skip
    with pytest.raises(OpenwaferError, match="Scatter has kind MAX"):
        run(text, values(4), torch.tensor([2, 0]), values(2))


@pytest.mark.parametrize("kind", CASES)
def test_an_operation_means_a_function_of_torch(kind: str) -> None:
    attributes, operands, result, function, given = CASES[kind]
    names = ", ".join(f"%x{at}" for at in range(len(given)))
    text = sentence("%0", kind, names, attributes, f"{operands} -> {result}")
    assert torch.equal(run(text, *given)[0], function(*given))


def test_unknown_operations_are_found_with_their_lines() -> None:
    text = TEXT.replace("cirh.Sub", "cirh.Fft").replace("cirh.Reduce", "cirh.Sort")
    found = unknown_operations(read_graph(text, "cirh.mlir"))
    assert found == {"cirh.Sort": [12], "cirh.Fft": [19, 23]}


def test_a_result_of_another_type_is_refused() -> None:
    text = sentence("%0", "Sqrt", "%x0", "", "(tensor<3xf32>) -> tensor<4xf32>")
    with pytest.raises(OpenwaferError, match=r"Sqrt gives \(3,\) torch.float32, not tensor<4xf32>"):
        run(text, values(3))


def test_an_exponential_is_that_of_each_element() -> None:
    (found,) = run(sentence("%0", "Exp", "%x0", "", "(tensor<2xf32>) -> tensor<2xf32>"),
                   torch.tensor([0.0, 1.0]))  # fmt: skip
    assert found.tolist() == pytest.approx([1.0, math.e])


@pytest.mark.parametrize(("share", "routing"), [
    (0.25, "cs.internal = {expert_block_info = {num_experts = 4 : i32, top_k = 1 : i32}}"),
    (1, ""),
])  # fmt: skip
def test_an_experts_products_are_counted_for_its_share_of_the_rows(
    share: float, routing: str
) -> None:
    rows, mask, weight, along = (
        f"tensor<{shape}>" for shape in ("6x32xf32", "6xi16", "64x32xf32", "6x64xf32")
    )
    forward = sentence("%0", "SparseActMatMul", "%x0, %x1, %x2", routing,
                       f"({rows}, {mask}, {weight}) -> {along}")  # fmt: skip
    backward = sentence("%r, %w", "SparseActMatMulGrad", "%x0, %x1, %x2, %x3", routing,
                        f"({along}, {rows}, {mask}, {weight}) -> ({rows}, {weight})")  # fmt: skip
    found = [
        flops(graph.operations[0], graph.types) for graph in map(graph_of, (forward, backward))
    ]
    assert found == [2 * 6 * 32 * 64 * share, 4 * 6 * 32 * 64 * share]
