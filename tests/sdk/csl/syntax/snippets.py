"""Short pieces of CSL, parsed and put into text again."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.text import render, render_module
from openwafer.source import SourceText


def module(text: str) -> ast.Module:
    """Parse `text`, which has no mistake."""
    parsed, diagnostics = parse(SourceText("snippet.csl", text))
    assert diagnostics == ()
    return parsed


def declarations(text: str) -> str:
    """Text form of the declarations in `text`."""
    return render_module(module(text)).strip()


def expression_node(text: str) -> ast.Expression:
    """Syntax tree of one value or type."""
    (constant,) = module(f"const it = {text};").declarations
    assert isinstance(constant, ast.Variable)
    assert constant.initializer is not None
    return constant.initializer


def expression(text: str) -> str:
    """Text form of one value or type."""
    return render(expression_node(text))


def statements(text: str) -> str:
    """Text form of the statements in `text`, a line each where they are short."""
    (function,) = module(f"fn it() void {{ {text} }}").declarations
    assert isinstance(function, ast.Function)
    assert function.body is not None
    lines = render(function.body).splitlines()[1:-1]
    return "\n".join(line.removeprefix("  ") for line in lines)


def codes(text: str) -> list[str]:
    """Codes of the errors in `text`, in the order of their places."""
    return [diagnostic.code for diagnostic in parse(SourceText("snippet.csl", text))[1]]
