"""Random syntax trees, as the parser could have made them."""

from typing import Any

from hypothesis import strategies as st

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.operators import COMPOUND, BinaryOperator, UnaryOperator
from openwafer.sdk.csl.tokens import KEYWORDS
from openwafer.source import SourceText, Span

PLACE = Span(SourceText("tree", ""), 0, 0)
Tree = st.SearchStrategy[Any]


def node(kind: type[ast.Node], *parts: Tree) -> Tree:
    """Nodes of `kind` made of its parts, all at one place."""
    return st.builds(kind, *parts, span=st.just(PLACE))


def some(tree: Tree, least: int = 0) -> Tree:
    """Tuples of up to two more than `least`."""
    return st.lists(tree, min_size=least, max_size=least + 2).map(tuple)


words = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda w: w not in KEYWORDS)
names = node(ast.Name, words)
labels = st.none() | names
strings = node(ast.StringLiteral, st.binary(max_size=6))
identifiers = node(ast.Identifier, words)
leaves = st.one_of(
    identifiers,
    node(ast.IntLiteral, st.integers(min_value=0)),
    node(ast.FloatLiteral, st.floats(min_value=0, allow_infinity=False, allow_nan=False)),
    node(ast.CharLiteral, st.integers(0, 255)),
    strings,
    node(ast.BoolLiteral, st.booleans()),
    node(ast.EnumLiteral, names),
    st.builds(ast.AnyType, span=st.just(PLACE)),
)


def attributes(value: Tree) -> Tree:
    """Attributes, each there or not."""
    maybe = st.none() | value
    return node(ast.Attributes, maybe, maybe, maybe)


def variables(value: Tree) -> Tree:
    """Local variables."""
    kinds = st.sampled_from([ast.VariableKind.CONST, ast.VariableKind.VAR])
    storage = st.just(ast.Storage.INTERNAL)
    maybe = st.none() | value
    return node(ast.Variable, kinds, storage, st.booleans(), names, maybe, attributes(value), maybe)


def blocks(value: Tree) -> Tree:
    """Blocks of statements with the given values."""
    assignment = node(ast.Assign, st.none() | st.sampled_from(sorted(COMPOUND)), value, value)
    jump = st.one_of(
        node(ast.Return, st.none() | value),
        node(ast.Break, labels, st.none() | value),
        node(ast.Continue, labels),
    )
    body = st.one_of(assignment, jump, value, node(ast.Block, labels, st.just(())))
    case = value | node(ast.CaseRange, value, value)
    branch = st.one_of(
        node(ast.If, value, body, st.none() | body),
        node(ast.Switch, value, some(node(ast.Prong, some(case), body))),
        node(ast.For, labels, st.booleans(), value, names, labels, body),
        node(ast.While, labels, st.booleans(), value, st.none() | assignment | value, body),
        node(ast.Comptime, body),
    )
    return node(ast.Block, labels, some(st.one_of(variables(value), branch, body)))


def larger(value: Tree) -> Tree:
    """Expressions one step larger than the given ones."""
    typed = st.none() | identifiers | node(ast.ArrayType, some(value, 1), value)
    fields = some(node(ast.FieldInit, names, value), 1)
    operand = node(ast.AsmOperand, names, strings, value)
    element = node(ast.EnumElement, names, st.none() | value)
    layouts = st.sampled_from(ast.AggregateLayout)
    return st.one_of(
        node(ast.StructInit, typed, fields),
        node(ast.ArrayInit, typed, some(value)),
        node(ast.BuiltinCall, names, some(value)),
        node(ast.Call, value, some(value)),
        node(ast.Member, value, names),
        node(ast.Index, value, some(value, 1)),
        node(ast.Dereference, value),
        node(ast.AddressOf, value),
        node(ast.Unary, st.sampled_from(UnaryOperator), value),
        node(ast.Binary, st.sampled_from(BinaryOperator), value, value),
        node(ast.Comptime, value),
        node(ast.TensorAccess, some(names, 1), some(value, 1), value),
        node(ast.Asm, st.booleans(), value, some(operand), some(operand), some(strings)),
        node(ast.ArrayType, some(value, 1), value),
        node(ast.PointerType, st.booleans(), st.booleans(), value),
        node(ast.FunctionType, st.sampled_from(ast.FunctionKind), some(value), value),
        node(ast.AggregateType, layouts, st.booleans(), some(node(ast.Field, names, value))),
        node(ast.EnumType, st.none() | value, some(element)),
        node(ast.If, value, value, st.none() | value),
        node(ast.Switch, value, some(node(ast.Prong, some(value), value))),
        blocks(value),
    )


expressions = st.recursive(leaves, larger, max_leaves=8)


def _functions() -> Tree:
    parameters = some(node(ast.Parameter, st.booleans(), names, expressions))
    return node(
        ast.Function,
        st.sampled_from(ast.FunctionKind),
        st.sampled_from([ast.Storage.INTERNAL, ast.Storage.EXPORT]),
        st.just(False),
        names,
        parameters,
        expressions,
        attributes(leaves),
        blocks(expressions).map(lambda block: ast.Block(None, block.statements, span=PLACE)),
    )


modules = node(
    ast.Module,
    some(
        st.one_of(
            _functions(),
            variables(expressions).filter(lambda variable: not variable.is_comptime),
        )
    ),
)
