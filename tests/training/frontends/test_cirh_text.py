"""The text of a graph becomes data, and what is not of its form is refused with its place."""

import math

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.official.graph import Dense, TensorType
from openwafer.training.frontends.official.text import read_graph
from tests.training.frontends.cirh_graphs import products_with_momentum, sentence

TEXT = products_with_momentum(clips=False)


def test_arguments_are_resources_and_inputs() -> None:
    graph = read_graph(TEXT, "cirh.mlir")
    weight, *_, batch = graph.arguments
    assert (weight.resource, weight.output) == ("state.model.blocks.0.weight", 0)
    assert (batch.input_name, str(batch.type)) == ("input_0", "tensor<3x4xf32>")
    assert graph.outputs == {"loss": 4}


def test_an_operation_has_operands_attributes_types_and_a_line() -> None:
    found = read_graph(TEXT, "cirh.mlir").operations[9]
    assert (found.kind, found.operands, found.results) == ("cirh.MatMul", ("%1", "%e"), ("%5",))
    assert found.attributes == {"transpose_a": True, "transpose_b": False}
    assert found.line == TEXT.splitlines().index(found.span.source.line(found.line)) + 1


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("dense<[[1, -2], [3, 4]]> : tensor<2x2xi64>", (1, -2, 3, 4)),
        ("dense<0xFF800000> : tensor<f32>", (-math.inf,)),
        ("dense<0x7F80> : tensor<bf16>", (math.inf,)),
        ("dense<true> : tensor<2xi1>", (True,)),
        ('dense<"0x0000803F00000040"> : tensor<2xf32>', (1.0, 2.0)),
        ("dense<> : tensor<0xi64>", ()),
    ],
)
def test_constants_are_numbers_lists_and_bits(text: str, values: tuple[float, ...]) -> None:
    line = f"    %c = cirh.Const {text} loc(unknown)\n    return"
    found = read_graph(TEXT.replace("    return", line), "cirh.mlir").operations[-1]
    value = found.attributes["value"]
    assert isinstance(value, Dense)
    assert value.values == values


def test_an_operation_may_have_several_results() -> None:
    types = "(tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)"
    line = sentence("%30:2", "Split", "%arg0", "axis = 0 : i64", types)
    found = read_graph(TEXT.replace("    return", f"{line}\n    return"), "cirh.mlir")
    assert found.operations[-1].results == ("%30#0", "%30#1")
    assert found.types["%30#1"] == TensorType((2, 4), "f32")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("%4 = cirh.Reduce %3", "%4 = cirh.Reduce %99", "%99 is used, but no line above defines"),
        ("%4 = cirh.Reduce", "%3 = cirh.Reduce", "%3 is defined twice"),
        ("tensor<3x4xf32>", "tensor<?x4xf32>", "tensor<?x4xf32> is no type that this reads"),
        ("cs.input_name", "cs.other", "has to be a resource or an input"),
        ("tf.aliasing_output = 0 : i64", "tf.aliasing_output = 4 : i64", "becomes output 4, which"),
        ("%4 = cirh.Reduce", "%4 cirh.Reduce", "'cirh.Reduce' stands where '=' is expected"),
        (
            "dense<2.000000e+00>",
            "dense<[1.0, 2.0]>",
            "one number or 12 numbers for tensor<3x4xf32>",
        ),
        ("dense<2.000000e+00>", "dense<two>", "'two' stands where a number is expected"),
        ("dense<2.000000e+00>", "dense<(2.0)>", "'(' stands where a number is expected"),
        ("dense<2.000000e+00>", 'dense<"0xZZ">', "stands where a number is expected"),
        ("dense<2.000000e+00>", 'dense<"0x00">', "stands where a number of 32 bits is expected"),
        (
            "dense<2.000000e+00>",
            "dense<0x100000000>",
            "stands where a number of 32 bits is expected",
        ),
    ],
)
def test_what_is_not_of_the_form_is_refused(old: str, new: str, told: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        read_graph(TEXT.replace(old, new, 1), "cirh.mlir")
    assert told in str(raised.value)
