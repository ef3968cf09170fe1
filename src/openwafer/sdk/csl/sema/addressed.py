"""Which local names of a function have their address taken, so that they live in memory."""

from dataclasses import fields
from functools import cache

from openwafer.sdk.csl import ast


def addressed_names(body: ast.Block) -> frozenset[str]:
    """Names under an `&` anywhere in a body."""
    found: set[str] = set()
    _visit(body, found)
    return frozenset(found)


def _visit(node: object, found: set[str]) -> None:
    if isinstance(node, tuple):
        for item in node:
            _visit(item, found)
    elif isinstance(node, ast.Node):
        if isinstance(node, ast.AddressOf):
            found.add(_root(node.operand))
        for name in _children(type(node)):
            _visit(getattr(node, name), found)


def _root(node: ast.Expression) -> str:
    """The variable that an l-value is a part of."""
    while isinstance(node, ast.Member | ast.Index):
        node = node.operand
    return node.name if isinstance(node, ast.Identifier) else ""


@cache
def _children(kind: type[ast.Node]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "span")
