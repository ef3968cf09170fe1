"""The compiler and the PE compute the same: generated functions, run by both."""

from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.csl import types
from openwafer.sdk.csl.types import NAMED_TYPES, Int
from tests.examples import examples
from tests.sdk.csl.sema.programs import known, run

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FLOATS = ("f16", "f32")
OPERATORS = ("+", "-", "*", "/", "%", "&", "|", "^")


def integers(kind: str) -> st.SearchStrategy[int]:
    number = NAMED_TYPES[kind]
    assert isinstance(number, Int)
    return st.integers(number.lowest, number.highest)


def expressions(leaves: tuple[str, ...], operators: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Parenthesized expressions over names."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(operators), inner),
        max_leaves=8,
    )


def both(kind: str, body: str, a: str, b: str) -> tuple[object, object]:
    """Result of a function of two arguments at compile time and at run time."""
    function = f"fn f(a: {kind}, b: {kind}) {kind} {{ {body} }}\n"
    call = f"f(@as({kind}, {a}), @as({kind}, {b}))"
    program = f"{function}var out: {kind};\nfn main() void {{ out = {call}; }}"
    return known(f"{function}const it = {call};").value, run(program)["out"]


@examples(60, deadline=None)
@given(st.data())
def test_integer_arithmetic_is_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(INTEGERS))
    text = data.draw(expressions(("a", "b"), tuple(set(OPERATORS) - {"/", "%"})))
    a, b = (str(data.draw(integers(kind))) for _ in range(2))
    first, second = both(kind, f"return {text};", a, b)
    assert first == second


@examples(40, deadline=None)
@given(st.data())
def test_division_is_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(INTEGERS))
    a, b = (data.draw(integers(kind)) for _ in range(2))
    operator = data.draw(st.sampled_from("/%"))
    first, second = both(kind, f"return a {operator} b;", str(a), str(b or 1))
    assert first == second


@examples(40, deadline=None)
@given(st.data())
def test_shifts_are_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(INTEGERS))
    count = data.draw(st.integers(0, 70))
    operator = data.draw(st.sampled_from(("<<", ">>")))
    first, second = both(kind, f"return a {operator} {count};", str(data.draw(integers(kind))), "0")
    assert first == second


@examples(60, deadline=None)
@given(st.data())
def test_float_arithmetic_is_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(FLOATS))
    text = data.draw(expressions(("a", "b"), ("+", "-", "*")))
    numbers = st.floats(-8, 8, width=16, allow_subnormal=False)
    a, b = (f"{data.draw(numbers)!r}" for _ in range(2))
    first, second = both(kind, f"return {text};", a, b)
    assert repr(first) == repr(second)


@examples(60, deadline=None)
@given(st.data())
def test_conversions_are_the_same(data: st.DataObject) -> None:
    source, target = (data.draw(st.sampled_from(INTEGERS + FLOATS)) for _ in range(2))
    number = data.draw(st.integers(-100, 100) if source in FLOATS else integers(source))
    text = f"@as({target}, a)"
    program = f"fn f(a: {source}) {target} {{ return {text}; }}\n"
    call = f"f(@as({source}, {number}))"
    first = known(f"{program}const it = {call};").value
    second = run(f"{program}var out: {target};\nfn main() void {{ out = {call}; }}")["out"]
    assert repr(first) == repr(second)


@examples(40, deadline=None)
@given(a=integers("i16"), b=integers("i16"), limit=st.integers(0, 12))
def test_control_flow_is_the_same(a: int, b: int, limit: int) -> None:
    body = f"""
      var x = a; var n: i16 = 0;
      while (n < {limit}) : (n += 1) {{
        if (x > b) {{ x -= 3; continue; }}
        x += if (n % 2 == 0) n else -n;
        if (x == 7) break;
      }}
      return switch (x) {{ 0...50 => x * 2, -1 => n, else => x }};"""
    first, second = both("i16", body, str(a), str(b))
    assert first == second


def test_every_named_integer_is_tried() -> None:
    known_integers = {name for name, kind in NAMED_TYPES.items() if isinstance(kind, types.Int)}
    assert set(INTEGERS) == known_integers
