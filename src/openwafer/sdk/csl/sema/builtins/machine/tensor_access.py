"""Tensor access expressions: `|i, j|{N, M} -> A[affine(i, j), ...]`."""

from dataclasses import dataclass

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.operators import BinaryOperator, UnaryOperator
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.values import (
    Affine,
    CellLvalue,
    Comptime,
    MemoryLvalue,
    Operand,
)


@dataclass(frozen=True)
class _Linear:
    """`constant` plus each index times its factor."""

    constant: int
    factors: dict[str, int]

    def scaled(self, factor: int) -> "_Linear":
        factors = {name: factor * value for name, value in self.factors.items()}
        return _Linear(factor * self.constant, factors)

    def plus(self, other: "_Linear") -> "_Linear":
        names = self.factors | other.factors
        factors = {name: self.factors.get(name, 0) + other.factors.get(name, 0) for name in names}
        return _Linear(self.constant + other.constant, factors)


@evaluates(ast.TensorAccess)
def evaluate(sema: Sema, node: ast.TensorAccess, _: t.Type | None = None) -> Comptime:
    """The access as an :class:`~openwafer.sdk.csl.values.Affine` of known numbers.

    Raises:
        OpenwaferError: an index is not affine, extents do not match, or it is no array.
    """
    if len(node.indices) != len(node.shape):
        message = f"{len(node.indices)} indices and {len(node.shape)} extents"
        sema.fail("tensor-access", message, node.span, help="give each index its extent")
    element = node.element
    if not isinstance(element, ast.Index):
        sema.fail("tensor-access", "expected an element of an array", element.span)
    lvalue = _array(sema, element.operand)
    dims = lvalue.type.dims if isinstance(lvalue.type, t.Array) else (1,)
    if len(element.indices) != len(dims):
        message = f"'{lvalue.type}' takes {len(dims)} indices, {len(element.indices)} provided"
        sema.fail("tensor-access", message, element.span)
    total = _Linear(0, {})
    names = {name.text for name in node.indices}
    for index, dim in zip(element.indices, dims, strict=True):
        one = _linear(sema, index, names)
        if isinstance(lvalue.type, t.Array) and not any(one.factors.values()):
            _check_fixed(sema, lvalue.type, one.constant, dim, index)
        total = total.scaled(dim).plus(one)
    extents = tuple(_known(sema.integer(extent)) for extent in node.shape)
    strides = tuple(_known(total.factors.get(name.text, 0)) for name in node.indices)
    return Comptime(t.TENSOR_ACCESS, Affine(lvalue, extents, _known(total.constant), strides))


def _check_fixed(sema: Sema, kind: t.Array, number: int, dim: int, index: ast.Expression) -> None:
    """Warn of an index without loop index that is outside of its dim, whatever the others are."""
    if not 0 <= number < dim:
        message = f"index {number} is out of bounds of type '{kind}'"
        help_text = f"the index goes from 0 to {dim - 1}"
        sema.warn("access-outside", message, index.span, help=help_text)


def _known(number: int) -> Comptime:
    return Comptime(t.COMPTIME_INT, number)


def _array(sema: Sema, node: ast.Expression) -> MemoryLvalue | CellLvalue:
    lvalue = sema.lvalue(node)
    if isinstance(lvalue.type, t.Pointer):
        return _pointed(sema, node, sema.load(lvalue, node.span))
    if not isinstance(lvalue.type, t.Array) or not isinstance(lvalue, MemoryLvalue | CellLvalue):
        sema.fail("type-mismatch", f"expected an array, got: '{lvalue.type}'", node.span)
    return lvalue


def _pointed(sema: Sema, node: ast.Expression, pointer: Operand) -> MemoryLvalue | CellLvalue:
    kind = pointer.type
    assert isinstance(kind, t.Pointer)
    if not kind.is_many and not isinstance(kind.element, t.Array):
        sema.fail("type-mismatch", f"expected a pointer to an array, got: '{kind}'", node.span)
    if isinstance(pointer, Comptime):
        return MemoryLvalue(kind.element, sema.address(pointer, node.span), kind.is_const)
    return MemoryLvalue(kind.element, sema.lower(pointer, node.span), kind.is_const)


def _linear(sema: Sema, node: ast.Expression, names: set[str]) -> _Linear:
    match node:
        case ast.Identifier(name) if name in names:
            return _Linear(0, {name: 1})
        case ast.Binary(BinaryOperator.ADD, left, right):
            return _linear(sema, left, names).plus(_linear(sema, right, names))
        case ast.Binary(BinaryOperator.SUBTRACT, left, right):
            return _linear(sema, left, names).plus(_linear(sema, right, names).scaled(-1))
        case ast.Binary(BinaryOperator.MULTIPLY, left, right):
            return _product(sema, node, _linear(sema, left, names), _linear(sema, right, names))
        case ast.Unary(UnaryOperator.NEGATE, operand):
            return _linear(sema, operand, names).scaled(-1)
        case ast.BuiltinCall(ast.Name("as"), (_, operand)):
            return _linear(sema, operand, names)
        case _:
            named = (one.name for one in ast.walk(node) if isinstance(one, ast.Identifier))
            if not names.isdisjoint(named):
                message = "an index is no affine expression of the loop indices"
                help_text = "use sums and products with known numbers"
                sema.fail("tensor-access", message, node.span, help=help_text)
            return _Linear(sema.integer(node), {})


def _product(sema: Sema, node: ast.Expression, left: _Linear, right: _Linear) -> _Linear:
    if any(left.factors.values()) and any(right.factors.values()):
        sema.fail("tensor-access", "a product of two loop indices is not affine", node.span)
    if any(left.factors.values()):
        return left.scaled(right.constant)
    return right.scaled(left.constant)
