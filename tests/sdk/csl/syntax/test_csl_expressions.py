"""Values: how operators bind, and each form of operand."""

from itertools import pairwise

import pytest

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.operators import PRECEDENCE, BinaryOperator
from tests.sdk.csl.syntax.snippets import codes, expression, expression_node

COMPARISON = PRECEDENCE[BinaryOperator.EQUAL]
LEVELS = [
    [operator for operator, level in PRECEDENCE.items() if level == wanted]
    for wanted in sorted(set(PRECEDENCE.values()))
]


@pytest.mark.parametrize(("loose", "tight"), [*pairwise(level[0] for level in LEVELS)])
def test_a_tighter_operator_takes_its_operands_first(
    loose: BinaryOperator, tight: BinaryOperator
) -> None:
    assert expression(f"a {loose} b {tight} c") == f"a {loose} (b {tight} c)"
    assert expression(f"a {tight} b {loose} c") == f"(a {tight} b) {loose} c"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (first, second)
        for level in LEVELS
        for first in level
        for second in level
        if PRECEDENCE[first] != COMPARISON
    ],
)
def test_operators_of_one_level_group_to_the_left(
    first: BinaryOperator, second: BinaryOperator
) -> None:
    assert expression(f"a {first} b {second} c") == f"(a {first} b) {second} c"


@pytest.mark.parametrize("operator", LEVELS[COMPARISON - 1])
def test_comparisons_do_not_chain(operator: BinaryOperator) -> None:
    assert codes(f"const it = a {operator} b == c;") == ["csl-chained-comparison"]


def test_comparisons_compare_what_stands_in_parentheses() -> None:
    assert expression("(a < b) == (c < d)") == "(a < b) == (c < d)"


def test_a_bit_test_needs_no_parentheses() -> None:
    assert expression("count & 1 == 0") == "(count & 1) == 0"


@pytest.mark.parametrize("operator", ["-", "!", "~", "&"])
def test_a_prefix_binds_tighter_than_every_infix(operator: str) -> None:
    assert expression(f"{operator}a * b") == f"({operator}a) * b"


def test_a_prefix_takes_the_whole_operand_behind_it() -> None:
    assert expression("-a.b[c].*") == "-a.b[c].*"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("0x10", "16"),
        ("2.50", "2.5"),
        ("'a'", "'a'"),
        (r'"a\x00\"b\n"', r'"a\x00\"b\n"'),
        ("true", "true"),
        (".red", ".red"),
        ("@zeros([4]f32)", "@zeros([4]f32)"),
        ("f(a, b,)", "f(a, b)"),
        ("a.b.c", "a.b.c"),
        ("a[i, j]", "a[i, j]"),
        ("p.*[1]", "p.*[1]"),
        ("&a[0]", "&a[0]"),
        ("comptime f(a) + 1", "comptime f(a) + 1"),
        (".{}", ".{}"),
        (".{ 1, b, }", ".{ 1, b }"),
        (".{ .x = 1, .y = .{ 2 } }", ".{ .x = 1, .y = .{ 2 } }"),
        ("[2]i16{ 1, 2 }", "[2]i16{ 1, 2 }"),
        ("pair(i32, f16) { .first = 1 }", "pair(i32, f16){ .first = 1 }"),
        ("lib.point{}", "lib.point{}"),
        ("if (a) b else c + 1", "if (a) b else c + 1"),
        ("if (a) b else if (c) d else e", "if (a) b else if (c) d else e"),
        ("switch (a) { 1, 2 => b, else => c }", "switch (a) {\n  1, 2 => b,\n  else => c,\n}"),
    ],
)
def test_an_operand_keeps_its_form(text: str, form: str) -> None:
    assert expression(text) == form


def test_a_tensor_access_names_indices_shape_and_element() -> None:
    text = "@get_dsd(mem4d_dsd, .{ .tensor_access = |i,j|{N, 2*M} -> a[0, j + i*2] })"
    access = "|i, j|{N, 2 * M} -> a[0, j + (i * 2)]"
    assert expression(text) == f"@get_dsd(mem4d_dsd, .{{ .tensor_access = {access} }})"


def test_a_labelled_block_is_an_operand() -> None:
    text = "blk: { break :blk 1; } + 42"
    assert expression(text) == "(blk: {\n  break :blk 1;\n}) + 42"


def test_the_else_of_an_expression_takes_the_operators_behind_it() -> None:
    node = expression_node("if (a) b else {} + 1")
    assert isinstance(node, ast.If)
    assert isinstance(node.otherwise, ast.Binary)


def test_a_literal_can_be_selected_from() -> None:
    assert expression("point{ .x = 1 }.x") == "(point{ .x = 1 }).x"


def test_keywords_may_name_a_member() -> None:
    assert expression("a.align") == "a.align"


def test_assembly_names_outputs_inputs_and_clobbers() -> None:
    text = 'asm volatile ("mov %[out]": [out] "=r" (x) : [a] "{r2}" (y), [b] "i" (4) : "r6")'
    form = 'asm volatile ("mov %[out]" : [out] "=r" (x) : [a] "{r2}" (y), [b] "i" (4) : "r6")'
    assert expression(text) == form


def test_assembly_may_stop_after_its_template() -> None:
    assert expression('asm ("nop",)') == 'asm ("nop" :  :  : )'
