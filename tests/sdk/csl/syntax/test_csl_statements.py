"""Statements: assignments, branches, loops, jumps, blocks."""

import pytest

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.operators import COMPOUND
from tests.sdk.csl.syntax.snippets import module, statements


@pytest.mark.parametrize(
    "text",
    [
        "x = 1;",
        "p.* = 1;",
        "a[i, j] = .{ 1, 2 };",
        "@send(1);",
        "run();",
        "return;",
        "return a + b;",
        "var x: i16;",
        "const y = 1;",
        "comptime var n: u16 = 0;",
        "var buffer: [4]f32 align(16) = z;",
        "if (a) x = 1;",
        "if (a) x = 1 else y = 2;",
        "if (a) return else run();",
        "for (xs) |x| run(x);",
        "for (xs) |x, i| y[i] = x;",
        "inline for (xs) |x| run(x);",
        "outer: for (xs) |x| break :outer;",
        "while (a) run();",
        "while (a) : (i += 1) run();",
        "while (a) : (run()) continue;",
        "inline while (a) : (i += 1) run();",
        "outer: while (a) continue :outer;",
        "comptime run();",
        "comptime x = 1;",
    ],
)
def test_a_statement_keeps_its_form(text: str) -> None:
    assert statements(text) == text


@pytest.mark.parametrize("operator", sorted(COMPOUND))
def test_an_assignment_may_carry_an_operator(operator: str) -> None:
    assert statements(f"x {operator}= 1;") == f"x {operator}= 1;"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "if (a)",
        "for (xs) |x|",
        "while (a)",
        "blk:",
        "comptime",
        "if (a) run() else",
        "x: while (a)",
    ],
)
def test_a_statement_that_ends_with_a_block_needs_no_semicolon(head: str) -> None:
    text = f"{head} {{\n  run();\n}}".strip()
    assert statements(f"{text} stop();") == f"{text}\nstop();"


def test_a_semicolon_behind_a_block_is_no_statement() -> None:
    assert statements("if (a) {}; ; run();") == "if (a) {}\nrun();"


def test_what_follows_a_block_is_a_statement_of_its_own() -> None:
    assert statements("{} -x;") == "{}\n-x;"


def test_an_else_belongs_to_the_nearest_if() -> None:
    (function,) = module("fn f() void { if (a) if (b) x() else y(); }").declarations
    assert isinstance(function, ast.Function)
    assert function.body is not None
    (outer,) = function.body.statements
    assert isinstance(outer, ast.If)
    assert outer.otherwise is None


def test_a_switch_runs_statements() -> None:
    cases = ["0 => x = 1", "1, 4 ... 7 => {}", "mode.off => return", "else => run()"]
    text = "".join(["switch (mode) {\n", *(f"  {case},\n" for case in cases), "}"])
    assert statements(f"{text} stop();") == f"{text}\nstop();"


def test_a_case_may_begin_with_a_dot() -> None:
    assert statements("switch (mode) { .off => {} }") == "switch (mode) {\n  .off => {},\n}"


def test_a_break_carries_a_value_out_of_its_block() -> None:
    text = "const x = blk: {\n  break :blk a + 1;\n};"
    assert statements(text) == text


def test_a_name_before_a_colon_is_a_label_only_before_block_or_loop() -> None:
    assert statements('asm ("nop" : [o] "=r" (x) : [i] "r" (y));').startswith("asm")
