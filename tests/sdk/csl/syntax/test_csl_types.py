"""Types, which are expressions."""

import pytest

from openwafer.sdk.csl import ast
from tests.sdk.csl.syntax.snippets import declarations, expression, expression_node


@pytest.mark.parametrize(
    "text",
    [
        "i16",
        "[4]f32",
        "[rows, 2 * columns]f16",
        "*i16",
        "*const [4]i16",
        "[*]f32",
        "[*]const f32",
        "fn() void",
        "fn(i16, *f32) bool",
        "*const fn(i16) void",
        "task(i16) void",
        "struct {}",
        "struct { x: i16, next: *[4]f32 }",
        "packed struct { low: u4, high: u4 }",
        "extern struct { x: i16 }",
        "union { i: i16, f: f16 }",
        "packed union { i: i16, f: f16 }",
        "extern union { i: i16 }",
        "enum { a, b }",
        "enum(u16) { red, white = 1, blue }",
        "@type_of(x)",
        "[2]@fp16()",
        "lib.pair(i16, f32)",
    ],
)
def test_a_type_keeps_its_form(text: str) -> None:
    assert expression(text) == text


def test_an_element_is_a_type_to_its_end() -> None:
    node = expression_node("[2]lib.number(i16)")
    assert isinstance(node, ast.ArrayType)
    assert isinstance(node.element, ast.Call)


def test_a_pointer_type_can_be_compared() -> None:
    assert expression("@type_of(p) == *i16") == "@type_of(p) == (*i16)"


def test_the_body_of_a_function_is_no_literal_of_its_result() -> None:
    assert declarations("fn f() pair(i16) {}") == "fn f() pair(i16) {}"


def test_a_type_may_be_chosen() -> None:
    text = "var x: (if (wide) i32 else i16) = 0;"
    assert declarations("var x: if (wide) i32 else i16 = 0;") == text


def test_the_parameters_of_a_function_type_may_have_names() -> None:
    named = "fn(num_iters: i32, x: [*]f32) void"
    assert expression(named) == "fn(i32, [*]f32) void"
