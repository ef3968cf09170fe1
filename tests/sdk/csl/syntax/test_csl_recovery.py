"""After a mistake the parser finds its way back, and finds the next one."""

import pytest

from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.text import render_module
from openwafer.source import SourceText
from tests.sdk.csl.syntax.snippets import codes

MANY_MISTAKES = """
const a = ;
var b: i16 = 1
fn first() void {
  a = (b;
  run(a b);
  if (a && b) { c++; }
}
param task: i16;
fn second() void {
  const d = .{ .x = 1, y = 2 };
  switch (d) { 0 -> run(), else => {} }
  return 0b3;
}
@export_name("b", i16);
"""


def places(text: str) -> list[tuple[int, str]]:
    source = SourceText("snippet.csl", text)
    spans = [(d.span, d.code) for d in parse(source)[1]]
    return [(source.position(span.start).line, code) for span, code in spans if span is not None]


def test_every_mistake_of_a_file_is_reported_once() -> None:
    assert places(MANY_MISTAKES) == [
        (2, "csl-expected-expression"),
        (3, "csl-missing-semicolon"),
        (5, "csl-unclosed-bracket"),
        (6, "csl-expected-token"),
        (7, "csl-foreign-operator"),
        (7, "csl-expected-expression"),
        (9, "csl-keyword-as-name"),
        (11, "csl-expected-field"),
        (12, "csl-wrong-arrow"),
        (13, "csl-malformed-literal"),
        (15, "csl-expected-declaration"),
    ]


@pytest.mark.parametrize(
    "mistake",
    [
        "x = ;",
        "x = 1",
        "run(1 2);",
        "run(.{ .x = , .y = 2 });",
        "if (a b) { run(); } else { run(); }",
        "switch (x) { 0 => a b, else => { run(); } }",
        "for (x) { run(); }",
        "while a { run(); }",
        "const y = struct { a: , b: i16 };",
        "x = [1, 2];",
        "? ? ?",
        "}}",
    ],
)
def test_declarations_behind_a_mistake_are_read(mistake: str) -> None:
    text = f"fn f() void {{\n  {mistake}\n}}\n\nfn after() void {{}}\n"
    module, diagnostics = parse(SourceText("snippet.csl", text))
    assert render_module(module).endswith("fn after() void {}\n")
    assert diagnostics != ()


@pytest.mark.parametrize("mistake", ["x = ;", "run(1 2);", "if (a b) { run(); } else { run(); }"])
def test_statements_behind_a_mistake_are_read(mistake: str) -> None:
    text = f"fn f() void {{\n  {mistake}\n  after();\n}}\n"
    module, diagnostics = parse(SourceText("snippet.csl", text))
    assert render_module(module) == "fn f() void {\n  after();\n}\n"
    assert len(diagnostics) == 1


@pytest.mark.parametrize(
    "text", ["fn", "fn f", "fn f(", "const x: ", "x.", "@f(", "if", "layout {"]
)
def test_a_file_may_end_anywhere(text: str) -> None:
    assert len(codes(text)) == 1


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "-" * 5000, "[1]" * 5000, "*" * 5000, "if (a) " * 5000, ".{" * 5000, "fn(" * 5000],
)
def test_nesting_beyond_reason_is_refused(text: str) -> None:
    assert "csl-too-deep" in codes(f"const x = {text}")


def test_blocks_nested_beyond_reason_are_refused() -> None:
    assert "csl-too-deep" in codes("fn f() void {" + "{" * 5000)
