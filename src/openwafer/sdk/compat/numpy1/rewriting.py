"""Turns the operators of a host script into calls of :mod:`.operators`.

The classes of numpy's scalars cannot be changed, and an element that is taken out of an array is a
plain one: what computes with them is the script's own text. So its tree is changed before it is
compiled; lines and columns stay. Annotations and patterns hold no values, and are left alone.
"""

import ast
import builtins
import copy
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeVar

from openwafer.sdk.compat.numpy1.operators import FUNCTIONS, NAMES, OPERATORS
from openwafer.sdk.csl.recursion import deep_recursion

Definition = TypeVar("Definition", ast.FunctionDef, ast.AsyncFunctionDef)

_PREFIX: Final = "__openwafer_{}__"
_FUNCTION: Final = "function"

_BINARY: Final = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}
_COMPARED: Final = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_NO_NUMBERS: Final = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.Set)
_EVALUATE: Final = ("eval", "exec")


def compiled(source: bytes | str, path: str, mode: str = "exec") -> CodeType:
    """Compile the text of a script or of a module of its own. Raises SyntaxError as Python does."""
    tree = ast.parse(source, path, mode)
    with deep_recursion():
        tree = ast.fix_missing_locations(_Rewriter().visit(tree))
        code: CodeType = compile(tree, path, mode, dont_inherit=True)
    return code


def install() -> None:
    """Make what compiled scripts call known to this process."""
    for name, operate in OPERATORS.items():
        setattr(builtins, _PREFIX.format(name), operate)
    setattr(builtins, _PREFIX.format(_FUNCTION), _function)


def _function(value: Any) -> Any:
    """What takes the place of a function; anything else is returned as it is."""
    if value is builtins.eval or value is builtins.exec:
        return _evaluator(value)
    return FUNCTIONS.get(id(value), (None, value))[1]


def _evaluator(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """`eval` or `exec`, for texts whose operators are those of scripts."""

    def call(source: Any, *names: Any) -> Any:
        frame = inspect.currentframe()
        if not names and frame is not None and frame.f_back is not None:
            names = frame.f_back.f_globals, frame.f_back.f_locals
        if isinstance(source, str):
            source = compiled(source.lstrip(" \t"), "<string>", evaluate.__name__)
        return evaluate(source, *names)

    return call


class _Rewriter(ast.NodeTransformer):
    """Changes a tree in place."""

    def __init__(self) -> None:
        self._num_places = 0
        self._can_name = True

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """``a + b``."""
        self.generic_visit(node)
        if not _is_of_numbers(node.left, node.right):
            return node
        return _call(node, _BINARY[type(node.op)], node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        """``a += b``, ``a[i] += b`` and ``a.b += c``: container and index are evaluated once."""
        self.generic_visit(node)
        if not _is_of_numbers(node.value):
            return node
        before: list[ast.stmt] = []
        target = node.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            target.value = self._kept(target.value, before)
        if isinstance(target, ast.Subscript):
            target.slice = self._kept(_index(target.slice), before)
        old = copy.deepcopy(target)
        old.ctx = ast.Load()
        name = f"i{_BINARY[type(node.op)].rstrip('_')}"
        change = ast.Assign([target], _call(node, name, old, node.value))
        return [ast.copy_location(statement, node) for statement in (*before, change)]

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """``a < b``, and ``a < b < c``, whose middle is evaluated once and whose end perhaps."""
        self.generic_visit(node)
        names = [_COMPARED.get(type(op), "") for op in node.ops]
        if not all(names):
            return node
        left = node.left
        parts: list[ast.expr] = []
        for name, right in zip(names, node.comparators, strict=True):
            is_last = right is node.comparators[-1]
            if not (is_last or self._can_name or isinstance(right, ast.Name | ast.Constant)):
                return node
            first, again = (right, right) if is_last else self._named(right)
            parts.append(_call(node, name, left, first))
            left = again
        return (
            parts[0] if len(parts) == 1 else ast.copy_location(ast.BoolOp(ast.And(), parts), node)
        )

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A function by its own name."""
        if isinstance(node.ctx, ast.Load) and node.id in {*NAMES, *_EVALUATE}:
            return _call(node, _FUNCTION, node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A function of a module."""
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and node.attr in NAMES:
            return _call(node, _FUNCTION, node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        """A function that gets another name."""
        others = [one.asname for one in node.names if one.asname and one.name in NAMES]
        changes = [
            ast.Assign([_name(other, ast.Store())], _call(node, _FUNCTION, _name(other)))
            for other in others
        ]
        return [node, *(ast.copy_location(change, node) for change in changes)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leaves the annotation alone."""
        node.target = self.visit(node.target)
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Leaves the annotation alone."""
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leaves the annotation of the result alone."""
        return self._definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """The same."""
        return self._definition(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """A comprehension in its body can name nothing."""
        return self._within(node, can_name=False)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """Neither can what it goes through."""
        node.target = self.visit(node.target)
        before, self._can_name = self._can_name, False
        node.iter = self.visit(node.iter)
        self._can_name = before
        node.ifs = [self.visit(condition) for condition in node.ifs]
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Leaves the pattern alone."""
        pattern, node.pattern = node.pattern, ast.MatchAs()
        self.generic_visit(node)
        node.pattern = pattern
        return node

    def _definition(self, node: Definition) -> Definition:
        returns, node.returns = node.returns, None
        self._within(node, can_name=True)
        node.returns = returns
        return node

    def _within(self, node: ast.AST, *, can_name: bool) -> ast.AST:
        before, self._can_name = self._can_name, can_name
        self.generic_visit(node)
        self._can_name = before
        return node

    def _place(self) -> str:
        self._num_places += 1
        return _PREFIX.format(f"place_{self._num_places}")

    def _kept(self, value: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """A name for a value that a statement in `before` evaluates."""
        if isinstance(value, ast.Constant):
            return value
        place = self._place()
        before.append(ast.Assign([_name(place, ast.Store())], value))
        return _name(place)

    def _named(self, value: ast.expr) -> tuple[ast.expr, ast.expr]:
        """A value where it is evaluated, and where it is used again."""
        if isinstance(value, ast.Name | ast.Constant):
            return value, copy.deepcopy(value)
        place = self._place()
        return ast.NamedExpr(_name(place, ast.Store()), value), _name(place)


def _call(node: ast.AST, name: str, *args: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_name(_PREFIX.format(name)), list(args), []), node)


def _name(text: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(text, context or ast.Load())


def _is_of_numbers(*operands: ast.expr) -> bool:
    """Whether an operator may have to do with numpy: no text and no list that stands there."""
    texts = (
        isinstance(one, _NO_NUMBERS)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str | bytes))
        for one in operands
    )
    return not any(texts) and not all(isinstance(one, ast.Constant) for one in operands)


def _index(index: ast.expr) -> ast.expr:
    """An index as a value of its own, slices among it."""
    if isinstance(index, ast.Slice):
        bounds = [bound or ast.Constant(None) for bound in (index.lower, index.upper, index.step)]
        return ast.Call(_name("slice"), bounds, [])
    if isinstance(index, ast.Tuple):
        return ast.Tuple([_index(one) for one in index.elts], ast.Load())
    return index
