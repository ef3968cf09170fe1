"""Implicit conversions: where a value of one type may stand for another without being asked."""

import math
from typing import Final, NoReturn

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.sema.lvalues import load, part
from openwafer.sdk.csl.symbolic import whole
from openwafer.sdk.csl.types import Array, Enum, Int, Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    UNDEFINED,
    Aggregate,
    Cell,
    Comptime,
    FunctionValue,
    Loaded,
    Operand,
    PointerValue,
    Runtime,
)
from openwafer.sdk.ir.function import Constant
from openwafer.sdk.ir.function import Type as IrType
from openwafer.sdk.ir.numbers import decode, encode, rounded
from openwafer.source import Span

_MAX_EXPONENT: Final = 1024
"""Doubles end below two to this power."""
_LONGEST_BITS: Final = 128
_SOME: Final = Constant(0, IrType.PTR)


@whole
def round_float(kind: Type, value: float) -> float:
    """The nearest value of a float type."""
    if isinstance(value, int):
        value = (
            float(value)
            if value.bit_length() < _MAX_EXPONENT
            else (math.inf if value > 0 else -math.inf)
        )
    if kind == types.COMPTIME_FLOAT:
        return value
    return rounded(value, types.ir_type(kind))


def coerce(analysis: Analysis, operand: Operand, target: Type, span: Span) -> Loaded:
    """`operand` as a value of type `target`; an error where the language wants a cast."""
    loaded = operand if type(operand) is Comptime else load(analysis, operand, span)
    if loaded.type is target:
        return loaded
    if loaded.type == target or target == types.COMPTIME_STRUCT:
        return _checked(analysis, loaded, target, span)
    result = _convert(analysis, loaded, target, span)
    if result is None:
        mismatch(analysis, loaded.type, target, span)
    return result


def mismatch(analysis: Analysis, have: Type, want: Type, span: Span) -> NoReturn:
    """Report a value of the wrong type."""
    analysis.fail(
        "type-mismatch",
        f"expected type '{want}', got: '{have}'",
        span,
        help=_remedy(have, want),
    )


def _remedy(have: Type, want: Type) -> str:
    if types.is_number(want) and (types.is_number(have) or isinstance(have, Enum)):
        return f"convert it with @as({want}, ...)"
    if types.is_number(want) and have in types.IDS:
        return "take its number with @get_int(...)"
    if want == types.COLOR and have == types.VOID:
        return "a stream has the color that <memcpy/get_params> is given in the layout"
    if want in types.IDS and types.is_number(have):
        return f"make one with @get_{want}(...)"
    if want == types.BOOL and types.is_number(have):
        return "compare it with zero"
    if isinstance(want, Pointer) and isinstance(have, Pointer):
        return _remedy_for_pointer(have, want)
    if isinstance(want, Pointer) and have == want.element:
        return "take the address with '&'"
    return ""


def _remedy_for_pointer(have: Pointer, want: Pointer) -> str:
    if have.is_const and not want.is_const:
        return "point to it with 'const', or declare the variable with 'var'"
    if want.is_many and have.element == want.element:
        return "take the address of the whole array"
    if _is_shorter(have.element, want.element):
        return f"point to an array as long as '{want.element}'"
    return f"change the pointer's type with @ptrcast({want}, ...)"


def _is_shorter(have: Type, want: Type) -> bool:
    """Whether an array has fewer elements than another one of the same type of elements."""
    if not isinstance(have, Array) or not isinstance(want, Array):
        return False
    return have.element == want.element and math.prod(have.dims) < math.prod(want.dims)


def _checked(analysis: Analysis, loaded: Loaded, target: Type, span: Span) -> Loaded:
    if target == types.COMPTIME_STRUCT and not isinstance(loaded.type, Struct):
        mismatch(analysis, loaded.type, target, span)
    if target == types.COMPTIME_STRUCT and not isinstance(loaded, Comptime):
        analysis.fail(
            "not-comptime", "a value of type 'comptime_struct' must be comptime-known", span
        )
    return loaded


def _convert(analysis: Analysis, loaded: Loaded, target: Type, span: Span) -> Loaded | None:
    """None where there is no implicit conversion."""
    if loaded.type in (types.UNDEFINED, types.NORETURN):
        return Comptime(target, UNDEFINED)
    if types.is_number(target):
        return _number(analysis, loaded, target, span)
    match loaded, target:
        case Comptime(types.ENUM_LITERAL, str() as name), Enum():
            return enum_element(analysis, target, name, span)
        case Comptime(kind, FunctionValue() as function), Pointer(element=pointed):
            return Comptime(target, PointerValue(function)) if kind == pointed else None
        case _, Pointer():
            converted = _pointer(loaded, target)
            if converted is not None:
                _check_rank(analysis, loaded.type, target, span)
            return converted
        case _, Struct() if isinstance(loaded.type, Struct) and not loaded.type.origin:
            return _struct(analysis, loaded, target, span)
        case _, Array() if isinstance(loaded.type, Struct) and loaded.type.is_tuple:
            return _tuple_to_array(analysis, loaded, target, span)
        case _:
            return None


def _number(analysis: Analysis, loaded: Loaded, target: Type, span: Span) -> Loaded | None:
    """A known integer fits any type that holds its value; others become wider ones."""
    match loaded, target:
        case Comptime(types.COMPTIME_INT | Int(), int() as value), Int():
            return _fitted(analysis, value, target, span)
        case Comptime(types.COMPTIME_INT, int() as value), _ if types.is_float(target):
            return _exact(analysis, value, target, span)
        case Comptime(types.COMPTIME_FLOAT, float() as value), _ if types.is_float(target):
            return _finite(analysis, value, target, span)
        case Comptime(kind, float() as value), _ if _is_wider(kind, target):
            return Comptime(target, value)
        case Runtime(kind, register), _ if _is_wider(kind, target):
            return Runtime(target, analysis.emit("cast", register, type=types.ir_type(target)))
        case _:
            return None


def _is_wider(have: Type, want: Type) -> bool:
    """Whether every value of one type is a value of the other."""
    if isinstance(have, Int) and isinstance(want, Int):
        return want.holds(have.lowest) and want.holds(have.highest)
    return have in types.FLOATS and want == types.F32


def _fitted(analysis: Analysis, value: int, target: Int, span: Span) -> Comptime:
    if not target.holds(value):
        analysis.fail(
            "out-of-range",
            f"value {_spelled(value)} does not fit in type '{target}'",
            span,
            notes=(f"'{target}' holds {target.lowest} to {target.highest}",),
            help="use a signed type" if value < 0 and not target.is_signed else "use a wider type",
        )
    return Comptime(target, value)


def _spelled(value: int) -> str:
    """An integer in a message, which nobody reads beyond some digits."""
    num_bits = value.bit_length()
    return f"of {num_bits} bits" if num_bits > _LONGEST_BITS else str(value)


def _exact(analysis: Analysis, value: int, target: Type, span: Span) -> Comptime:
    """A literal integer as a float, which must hold it exactly."""
    nearest = round_float(target, value)
    if nearest != value:
        analysis.fail(
            "out-of-range",
            f"type '{target}' does not hold {_spelled(value)} exactly, the nearest is {nearest}",
            span,
            help=f"write it as a float, or convert it with @as({target}, {span.text})",
        )
    return Comptime(target, nearest)


def _finite(analysis: Analysis, value: float, target: Type, span: Span) -> Comptime:
    """A literal float, rounded; one of more than the type's range does not become infinite."""
    nearest = round_float(target, value)
    if abs(nearest) == math.inf and abs(value) != math.inf:
        analysis.fail(
            "out-of-range",
            f"value {value} does not fit in type '{target}'",
            span,
            notes=(f"the largest is {_largest(target)}",),
            help=f"use a wider type, or convert it to infinity with @as({target}, {value})",
        )
    return Comptime(target, nearest)


def _largest(kind: Type) -> float:
    """The largest finite number of a float type: the one before infinity."""
    ir_type = types.ir_type(kind)
    return float(decode(encode(math.inf, ir_type) - 1, ir_type))


def enum_element(analysis: Analysis, kind: Enum, name: str, span: Span) -> Comptime:
    """The element of that name."""
    for element, value in kind.elements:
        if element == name:
            return Comptime(kind, value)
    known = ", ".join(element for element, _ in kind.elements)
    return analysis.fail(
        "no-element", f"enum '{kind}' has no element '{name}'", span, help=f"it has: {known}"
    )


def _pointer(loaded: Loaded, target: Pointer) -> Loaded | None:
    have = loaded.type
    if not isinstance(have, Pointer) or (have.is_const and not target.is_const):
        return None
    if have.element == target.element and have.is_many == target.is_many:
        return _retyped(loaded, target, ())
    match have.element:
        case Array(element=element) if target.is_many and not have.is_many:
            return _retyped(loaded, target, (0,)) if element == target.element else None
        case element if not have.is_many and target == _one(target, element):
            return _as_one(loaded, target)
        case _ if target.element == types.ANYOPAQUE:
            return _retyped(loaded, target, ())
        case _:
            return None


def _check_rank(analysis: Analysis, have: Type, want: Pointer, span: Span) -> None:
    """A pointer to elements in a row is documented for arrays of one dim.

    Official programs have it for others, so without `--strict` it is no matter.
    """
    array = have.element if isinstance(have, Pointer) else None
    is_forbidden = want.is_many and isinstance(array, Array) and len(array.dims) > 1
    if is_forbidden and analysis.options.is_strict:
        analysis.fail(
            "pointer-rank",
            f"'{have}' points to an array of several dims, '{want}' to elements in a row",
            span,
            help=f"change the pointer's type with @ptrcast({want}, ...)",
        )


def _one(pointer: Pointer, element: Type) -> Pointer:
    """Like a pointer, to an array of one element."""
    return Pointer(Array((1,), element), pointer.is_const)


def _as_one(loaded: Loaded, target: Pointer) -> Loaded | None:
    """A pointer to one element as one to an array of it; constants of the compiler have none."""
    match loaded:
        case Comptime(_, PointerValue(Cell())):
            return None
        case _:
            return _retyped(loaded, target, ())


def _retyped(loaded: Loaded, target: Pointer, path: tuple[int, ...]) -> Loaded:
    match loaded:
        case Comptime(_, PointerValue(Cell() as cell, inner, offset)):
            return Comptime(target, PointerValue(cell, (*inner, *path), offset))
        case Comptime(_, value):
            return Comptime(target, value)
        case Runtime(_, value):
            return Runtime(target, value)
        case _:
            raise AssertionError(loaded)


def _struct(analysis: Analysis, loaded: Loaded, target: Struct, span: Span) -> Loaded | None:
    """An anonymous struct as a named one."""
    have = loaded.type
    assert isinstance(have, Struct)
    if have.is_tuple != target.is_tuple or target.is_tuple:
        return None
    given = {f.name: part(analysis, loaded, i) for i, f in enumerate(have.fields)}
    return build_struct(analysis, target, given, {}, span)


def build_struct(
    analysis: Analysis,
    target: Struct,
    given: dict[str, Operand],
    spans: dict[str, Span],
    span: Span,
) -> Loaded:
    """A value of a named struct of its fields' values."""
    for name in given:
        if target.index_of(name) is None:
            known = ", ".join(f.name for f in target.fields)
            analysis.fail(
                "no-field",
                f"struct '{target}' has no field '{name}'",
                spans.get(name, span),
                help=f"it has: {known}",
            )
    elements: list[Loaded] = []
    for field in target.fields:
        if field.name in given:
            where = spans.get(field.name, span)
            elements.append(coerce(analysis, given[field.name], field.type, where))
        elif target.is_union:
            elements.append(Comptime(field.type, UNDEFINED))
        else:
            analysis.fail(
                "missing-field", f"missing field '{field.name}' of struct '{target}'", span
            )
    return gathered(target, elements)


def gathered(kind: Type, elements: list[Loaded]) -> Comptime | Aggregate:
    """A struct or array of its elements: known when all of them are."""
    if all(isinstance(element, Comptime) for element in elements):
        return Comptime(kind, tuple(e.value for e in elements if isinstance(e, Comptime)))
    return Aggregate(kind, tuple(elements))


def _tuple_to_array(analysis: Analysis, loaded: Loaded, target: Array, span: Span) -> Loaded | None:
    assert isinstance(loaded.type, Struct)
    count = len(loaded.type.fields)
    if count != target.num_elements:
        return None
    items = [
        coerce(analysis, part(analysis, loaded, i), target.element, span) for i in range(count)
    ]
    return gathered(target, items)


def peer_type(analysis: Analysis, kinds: list[Type], span: Span) -> Type:
    """The type that values of all these types become where they meet."""
    best: Type = types.NORETURN
    for kind in kinds:
        if kind in (best, types.NORETURN) or can_become(kind, best):
            continue
        if best != types.NORETURN and not can_become(best, kind):
            mismatch(analysis, kind, best, span)
        best = kind
    return best


def can_become(have: Type, want: Type) -> bool:
    """Whether some value of `have` is implicitly one of `want`."""
    match have, want:
        case types.COMPTIME_INT, Int():
            return True
        case types.COMPTIME_FLOAT | types.COMPTIME_INT, _ if types.is_float(want):
            return True
        case types.ENUM_LITERAL, Enum():
            return True
        case Pointer(), Pointer():
            return _pointer(Runtime(have, _SOME), want) is not None
        case _:
            return have == types.UNDEFINED
