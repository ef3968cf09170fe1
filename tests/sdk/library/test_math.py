"""<math>: each function against Python's, over ordinary numbers and the special ones."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from tests.sdk.library import rig

Function = Callable[..., float]

EXACT: dict[str, Function] = {
    "abs": abs,
    "sign": lambda x: float(x > 0) - float(x < 0),
    "ceil": lambda x: float(np.ceil(x)),
    "floor": lambda x: float(np.floor(x)),
    "tanh": math.tanh,
    "cos": lambda x: math.cos(x) if math.isfinite(x) else math.nan,
    "sin": lambda x: math.sin(x) if math.isfinite(x) else math.nan,
    "exp": lambda x: math.inf if x > 700 else math.exp(x),
    "log": lambda x: float(np.log(np.float64(x))),
    "sqrt": lambda x: float(np.sqrt(np.float64(x))),
    "inv": lambda x: float(np.float64(1) / np.float64(x)),
}
ROUNDED_TWICE: dict[str, Function] = {
    "invsqrt": lambda x: float(1 / np.sqrt(np.float64(x))),
    "sig": lambda x: float(1 / (1 + np.exp(-np.float64(x)))),
}
PREDICATES: dict[str, Function] = {
    "isNaN": math.isnan,
    "isInf": math.isinf,
    "isFinite": math.isfinite,
    "signbit": lambda x: math.copysign(1.0, x) < 0,
}
PAIRS: dict[str, Function] = {
    "max": lambda x, y: (y, x)[x > y],
    "min": lambda x, y: (y, x)[x < y],
    "pow": lambda x, y: float(np.power(np.float64(x), np.float64(y))),
}
INPUTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 7.0, -6.25, 0.001, 100.0, 30000.0]
SPECIAL = [math.inf, -math.inf, math.nan]
VALUES = INPUTS + SPECIAL
SECOND = [2.0, 0.5, -1.0, 3.0, 0.0, 1.0, -0.5, 2.0, -3.0, 1.5, 0.25, 1.0, 2.0, 1.0, 1.0]
N = len(VALUES)
TYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


def literal(value: float) -> str:
    if math.isnan(value):
        return "math.NaN(T)"
    if math.isinf(value):
        return "math.POSITIVE_INF(T)" if value > 0 else "math.NEGATIVE_INF(T)"
    return repr(value)


def source(kind: str) -> str:
    unary = [*EXACT, *ROUNDED_TWICE]
    names = [*unary, *PAIRS, "fscale", *(f"{name}_{kind}" for name in [*unary, *PAIRS])]
    results = "\n".join(f"var r_{name}: [{N}]T = @zeros([{N}]T);" for name in names)
    flags = "\n".join(f"var r_{name}: [{N}]u16 = @zeros([{N}]u16);" for name in PREDICATES)
    statements = [f"r_{name}[i] = math.{name}(x[i]);" for name in unary]
    statements += [f"r_{name}_{kind}[i] = math.{name}_{kind}(x[i]);" for name in unary]
    for name in PAIRS:
        statements.append(f"r_{name}[i] = math.{name}(x[i], y[i]);")
        statements.append(f"r_{name}_{kind}[i] = math.{name}_{kind}(x[i], y[i]);")
    statements.append("r_fscale[i] = math.fscale(x[i], @as(i16, i) - 5);")
    statements += [f"r_{name}[i] = @as(u16, math.{name}(x[i]));" for name in PREDICATES]
    return f"""
const math = @import_module("<math>");
const T = {kind};
var x = [{N}]T{{ {", ".join(literal(value) for value in VALUES)} }};
var y = [{N}]T{{ {", ".join(map(repr, SECOND))} }};
{results}
{flags}
fn main() void {{
  for (@range(u16, {N})) |i| {{ {" ".join(statements)} }}
  finish();
}}
"""


@pytest.fixture(scope="module", params=list(TYPES))
def finished(request: pytest.FixtureRequest) -> tuple[str, rig.Device]:
    return request.param, rig.run(source(request.param))


def expected(kind: str, function: Function, *inputs: list[float]) -> NDArray[Any]:
    stored = [[float(TYPES[kind](value)) for value in values] for values in inputs]
    with np.errstate(all="ignore"):
        return np.array([function(*row) for row in zip(*stored, strict=True)]).astype(TYPES[kind])


@pytest.mark.parametrize("name", EXACT)
def test_a_function_of_one_number_is_rounded_once(
    finished: tuple[str, rig.Device], name: str
) -> None:
    kind, program = finished
    want = expected(kind, EXACT[name], VALUES)
    np.testing.assert_array_equal(program.read(f"r_{name}"), want)


@pytest.mark.parametrize("name", ROUNDED_TWICE)
def test_a_composed_function_is_near(finished: tuple[str, rig.Device], name: str) -> None:
    kind, program = finished
    want = expected(kind, ROUNDED_TWICE[name], VALUES)
    tolerance = 4 * float(np.finfo(TYPES[kind]).eps)
    np.testing.assert_allclose(program.read(f"r_{name}"), want, rtol=tolerance)


@pytest.mark.parametrize("name", PAIRS)
def test_a_function_of_two_numbers_is_rounded_once(
    finished: tuple[str, rig.Device], name: str
) -> None:
    kind, program = finished
    want = expected(kind, PAIRS[name], VALUES, SECOND)
    np.testing.assert_array_equal(program.read(f"r_{name}"), want)


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED_TWICE, *PAIRS])
def test_the_function_named_by_type_is_the_generic_one(
    finished: tuple[str, rig.Device], name: str
) -> None:
    kind, program = finished
    generic, named = program.read(f"r_{name}"), program.read(f"r_{name}_{kind}")
    np.testing.assert_array_equal(named, generic)


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_is_true_of_its_numbers_alone(
    finished: tuple[str, rig.Device], name: str
) -> None:
    _, program = finished
    np.testing.assert_array_equal(program.read(f"r_{name}"), [PREDICATES[name](v) for v in VALUES])


def test_fscale_multiplies_by_a_power_of_two(finished: tuple[str, rig.Device]) -> None:
    kind, program = finished
    powers = [float(i - 5) for i in range(N)]
    want = expected(kind, lambda x, s: math.ldexp(x, int(s)), VALUES, powers)
    np.testing.assert_array_equal(program.read("r_fscale"), want)


INTEGERS = """
const math = @import_module("<math>");
var s = [3]i16{ -7, 0, 9 };
var l = [3]i32{ -70000, 0, 90000 };
var u = [3]u32{ 3000000000, 0, 5 };
var abs_s = @zeros([3]i16);
var abs_u = @zeros([3]u32);
var sign_l = @zeros([3]i32);
var sign_u = @zeros([3]u32);
var max_l = @zeros([3]i32);
var min_u = @zeros([3]u32);
export var known = [4]f32{ math.abs(@as(f32, -2.5)), math.floor(@as(f32, -2.5)),
                    math.sqrt(@as(f32, 2.0)), math.tanh(@as(f32, 0.5)) };
var signaling = [2]u32{ 0x7f800001, 0x7fc00000 };
var is_signaling = @zeros([2]u16);
export var constants = [2]f32{ math.PI, math.E };
fn main() void {
  for (@range(i16, 3)) |i| {
    abs_s[i] = math.abs(s[i]);
    abs_u[i] = math.abs(u[i]);
    sign_l[i] = math.sign(l[i]);
    sign_u[i] = math.sign(u[i]);
    max_l[i] = math.max(l[i], @as(i32, 4));
    min_u[i] = math.min(u[i], @as(u32, 4));
  }
  for (@range(i16, 2)) |i| {
    is_signaling[i] = @as(u16, math.isSignaling(@bitcast(f32, signaling[i])));
  }
  finish();
}
"""


@pytest.fixture(scope="module")
def integers() -> rig.Device:
    return rig.run(INTEGERS)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("abs_s", [7, 0, 9]),
        ("abs_u", [3000000000, 0, 5]),
        ("sign_l", [-1, 0, 1]),
        ("sign_u", [1, 0, 1]),
        ("max_l", [4, 4, 90000]),
        ("min_u", [4, 0, 4]),
    ],
)
def test_integers_have_magnitude_sign_and_order(
    integers: rig.Device, name: str, want: list[int]
) -> None:
    np.testing.assert_array_equal(integers.read(name), want)


def test_known_arguments_give_known_values(integers: rig.Device) -> None:
    want = np.array([2.5, -3.0, math.sqrt(2.0), math.tanh(0.5)], np.float32)
    np.testing.assert_array_equal(integers.read("known"), want)


def test_a_nan_signals_without_its_quiet_bit(integers: rig.Device) -> None:
    np.testing.assert_array_equal(integers.read("is_signaling"), [1, 0])


def test_the_constants_are_those_of_python(integers: rig.Device) -> None:
    np.testing.assert_array_equal(
        integers.read("constants"), np.array([math.pi, math.e], np.float32)
    )


def test_a_root_of_an_integer_is_refused() -> None:
    text = 'const math = @import_module("<math>"); fn main() void { var x: i16 = 4; math.sqrt(x); }'
    with pytest.raises(OpenwaferError, match=r"expected type .a float., got: .i16."):
        rig.compile_source(text + " fn finish_() void {}")
