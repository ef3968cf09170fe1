"""Where a node was written."""

from collections.abc import Iterator
from dataclasses import fields

import pytest

from openwafer.sdk.csl import ast
from tests.sdk.csl.syntax.snippets import expression_node, module

PROGRAM = """
param size: i16 = 4;
export var data = @zeros([size]f32);
const view = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{size} -> data[i] });
extern fn other(i16, *f16) linkname("that") void;

fn run(comptime T: type, x: T) T {
  outer: for (@range(i16, size)) |i, k| {
    if (i == (1 + 2) * 3) break :outer;
    data[i] += -x.y.*;
  }
  return switch (x) { 1, 2...4 => pair{ .a = 'b' }, else => (if (x) 1.5 else 2) };
}

comptime { @export_symbol(run, "run"); }
"""


def children(node: object) -> Iterator[ast.Node]:
    values = [getattr(node, field.name) for field in fields(node)]  # type: ignore[arg-type]
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        yield from (part for part in parts if isinstance(part, ast.Node))


def descendants(node: ast.Node) -> Iterator[tuple[ast.Node, ast.Node]]:
    for child in children(node):
        yield node, child
        yield from descendants(child)


@pytest.mark.parametrize(
    "text", ["a + b", "(a + b) * c", "-a", "f(a, b)", "a.b", "a[i]", "p.*", "[2]i16{ 1, 2 }", ".x"]
)
def test_an_expression_spans_its_first_to_its_last_character(text: str) -> None:
    assert expression_node(text).span.text == text


def test_parentheses_are_no_part_of_what_they_hold() -> None:
    assert expression_node("(a + b)").span.text == "a + b"


def test_a_part_lies_inside_of_the_whole() -> None:
    outside = [
        (whole, part)
        for whole, part in descendants(module(PROGRAM))
        if not whole.span.start <= part.span.start <= part.span.end <= whole.span.end
    ]
    assert outside == []


def test_neighbours_do_not_overlap() -> None:
    overlaps = [
        (first, second)
        for node in [module(PROGRAM), *(part for _, part in descendants(module(PROGRAM)))]
        for first, second in zip(children(node), [*children(node)][1:], strict=False)
        if first.span.end > second.span.start and not isinstance(first, ast.Attributes)
        if not isinstance(second, ast.Attributes)
    ]
    assert overlaps == []


def test_nodes_of_equal_content_are_equal_wherever_they_stand() -> None:
    assert module("const a = 1;") == module("\n  const a = 1;  // one\n")
