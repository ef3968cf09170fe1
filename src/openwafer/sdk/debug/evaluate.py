"""Expressions over the variables of a PE that has stopped.

They are written as in CSL: names, ``a[2]``, ``s.field``, ``p.*``, ``&x``, arithmetic, comparisons,
``and``, ``or``, ``!``.
"""

import ast
import functools
import keyword
import math
import operator
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.debug.values import Number, Value, Values
from openwafer.sdk.program.debug_info import TypeKind

Result: TypeAlias = Value | Number
Find: TypeAlias = Callable[[str], Value | None]
"""Gives the value of a name, None for no name; raises OpenwaferError for one without a value."""


def _quotient(left: Number, right: Number) -> Number:
    """Integers truncate, as in CSL."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return left / right


def _remainder(left: Number, right: Number) -> Number:
    """It has the sign of what is divided, as in CSL."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right * int(_quotient(left, right))
    return math.fmod(left, right)


_POINTED: Final = "pointed__"
_ADDRESS: Final = "address__"
_OPERATORS: Final[MappingProxyType[type, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: _quotient,
        ast.Mod: _remainder,
        ast.LShift: operator.lshift,
        ast.RShift: operator.rshift,
        ast.BitAnd: operator.and_,
        ast.BitOr: operator.or_,
        ast.BitXor: operator.xor,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)

_KEYWORDS: Final = {*filter(str.islower, keyword.kwlist)} - {"and", "or", "not"}
"""Of Python alone; in CSL they are names, as `from`."""
_BOLD_A: Final = 0x1D41A


class Evaluator:
    """Works expressions out over what `find` gives, and `values` takes apart."""

    def __init__(self, find: Find, values: Values) -> None:
        self._find = find
        self._values = values

    def result(self, expression: str) -> Result:
        """What an expression is.

        Raises OpenwaferError where it is none, or a name has no value.
        """
        tree = _read(expression)
        try:
            return self._of(tree, expression)
        except (TypeError, ValueError, ArithmeticError) as cause:
            raise _refused(expression, str(cause)) from cause

    def is_name(self, word: str) -> bool:
        """Whether something is called so, also what has no value now."""
        try:
            return self._find(word) is not None
        except OpenwaferError:
            return True

    def variable(self, expression: str) -> Value:
        """The variable, or the part of one, that an expression names.

        Raises OpenwaferError where it names none.
        """
        return self._value(_read(expression), expression)

    def text(self, expression: str) -> str:
        """The same, as CSL would write it, with its type in front where it has one."""
        found = self.result(expression)
        kind = f"{self._values.type_of(found).name} " if isinstance(found, Value) else ""
        return f"{kind}{self._text(found)}"

    def bare_text(self, expression: str) -> str:
        """The same without the type."""
        return self._text(self.result(expression))

    def _text(self, found: Result) -> str:
        if isinstance(found, Value):
            return self._values.text(found)
        return str(found).lower() if isinstance(found, bool) else f"{found:.9g}"

    def number(self, expression: str) -> Number:
        """The number that an expression is. Raises OpenwaferError where it is none."""
        return self._number(self.result(expression))

    def holds(self, condition: str) -> bool:
        """Whether a condition holds."""
        return bool(self.number(condition))

    def _number(self, one: Result) -> Number:
        return self._values.number(one) if isinstance(one, Value) else one

    def _value(self, tree: ast.expr, whole: str) -> Value:
        found = self._of(tree, whole)
        if not isinstance(found, Value):
            raise _refused(whole, f"{_written(tree)} is no variable")
        return found

    def _of(self, tree: ast.expr, whole: str) -> Result:
        match tree:
            case ast.Constant(value=bool() | int() | float() as number):
                return number
            case ast.Name(id="true" | "false" as name):
                return name == "true"
            case ast.Name(id=name):
                return self._named(name, whole)
            case ast.Attribute():
                return self._attribute(tree, whole)
            case ast.Subscript(value=array, slice=index):
                return self._subscript(self._value(array, whole), index, whole)
            case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert() as op, operand=one):
                number = self._number(self._of(one, whole))
                return -number if isinstance(op, ast.USub) else not number
            case ast.BoolOp(op=op, values=sides):
                every = all if isinstance(op, ast.And) else any
                return every(bool(self._number(self._of(one, whole))) for one in sides)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._operate(op, left, right, whole)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self._operate(op, left, right, whole)
            case _:
                raise _refused(whole, f"{_written(tree)} is no part of it")

    def _named(self, name: str, whole: str) -> Value:
        found = self._find(name)
        if found is None:
            raise _refused(whole, f"nothing here is called {name}")
        return found

    def _attribute(self, tree: ast.Attribute, whole: str) -> Result:
        if isinstance(tree.value, ast.Name) and tree.value.id == _ADDRESS:
            address = self._named(tree.attr, whole).address
            if address is None:
                raise _refused(whole, f"{tree.attr} has no address")
            return address
        if tree.attr == _POINTED:
            return self._values.pointed(self._value(tree.value, whole))
        written = ast.unparse(tree)
        found = self._find(written)
        if found is not None:
            return found
        return self._values.field(self._value(tree.value, whole), tree.attr)

    def _subscript(self, array: Value, index: ast.expr, whole: str) -> Value:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        numbers = [int(self._number(self._of(one, whole))) for one in parts]
        kind = self._values.type_of(array)
        if kind.kind is not TypeKind.ARRAY:
            return self._values.element(array, numbers[0])
        if len(numbers) != len(kind.shape):
            raise _refused(whole, f"{kind.name} takes {len(kind.shape)} indices: a[i, j]")
        place = 0
        for number, size in zip(numbers, kind.shape, strict=True):
            if not 0 <= number < size:
                raise _refused(whole, f"{number} is no index of {size} elements of {kind.name}")
            place = place * size + number
        return self._values.element(array, place)

    def _operate(self, op: ast.AST, left: ast.expr, right: ast.expr, whole: str) -> Number:
        sides = (self._number(self._of(one, whole)) for one in (left, right))
        result: Number = _OPERATORS[type(op)](*sides)
        return result


@functools.lru_cache(maxsize=64)
def _read(expression: str) -> ast.expr:
    """An expression as Python's, once for all hits of a breakpoint."""
    if "~" in expression:
        raise _refused(expression, "~ is no part of it")
    # Binds tighter than operators of two sides, as ! does in CSL and `not` does not.
    written = re.sub(r"!(?!=)", "~", expression.strip()).replace(".*", f".{_POINTED}")
    written = re.sub(r"(?<![\w\])])&\s*(?=[A-Za-z_])", f"{_ADDRESS}.", written)
    # Python takes a name that begins with a bold letter for the plain one, never for a keyword.
    written = re.sub(
        r"\b[a-z]+\b",
        lambda found: _bold(found[0]) if found[0] in _KEYWORDS else found[0],
        written,
    )
    try:
        return ast.parse(written.strip(), mode="eval").body
    except SyntaxError as cause:
        raise _refused(expression, "it cannot be read") from cause


def _written(tree: ast.expr) -> str:
    return ast.unparse(tree).replace("~", "!")


def _bold(word: str) -> str:
    return chr(_BOLD_A + ord(word[0]) - ord("a")) + word[1:]


def _refused(expression: str, why: str) -> Exception:
    return error(
        "debug-expression",
        f"{expression!r} cannot be worked out: {why}",
        help="write names, a[2], s.field, p.*, &x, numbers, arithmetic, comparisons, and, or, !",
    )
