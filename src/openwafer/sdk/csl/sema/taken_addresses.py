"""Which local names of a function have their address taken, so that they live in memory."""

from openwafer.sdk.csl import ast


def names_with_address(body: ast.Block, found_before: dict[int, frozenset[str]]) -> frozenset[str]:
    """Names under an `&` anywhere in a body; `found_before` keeps the answers by the body's id."""
    if id(body) not in found_before:
        found = (one.operand for one in ast.walk(body) if isinstance(one, ast.AddressOf))
        found_before[id(body)] = frozenset(map(root_name, found))
    return found_before[id(body)]


def root_name(node: ast.Expression) -> str:
    """The variable that an l-value is a part of."""
    while isinstance(node, ast.Member | ast.Index):
        node = node.operand
    return node.name if isinstance(node, ast.Identifier) else ""
