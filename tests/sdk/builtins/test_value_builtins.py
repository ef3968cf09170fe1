"""Builtins that compute with values while the program runs, against numpy."""

from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program.mailbox import RANDOM_SEED
from tests.sdk.builtins.native_pe import BOTH, Memory, literals, run
from tests.tables import checkerboard

_INTEGERS: Final = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_DTYPES: Final = {
    **{kind: np.dtype(f"{kind[0]}{int(kind[1:]) // 8}") for kind in _INTEGERS},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "bool": np.dtype("u1"),
}
_KINDS: Final = (*_INTEGERS, "f16", "f32", "bool")
_FLOAT_EDGES: Final = (0.0, -0.0, 0.75, -0.75, 10.8, -10.8, 6e-8, 65504.0, -3e4, 1e5, -1e10, 3e38)
_SPECIAL: Final = (np.nan, np.inf, -np.inf)


def _edges(kind: str) -> NDArray[Any]:
    if kind == "bool":
        return np.array([0, 1], np.uint8)
    dtype = _DTYPES[kind]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array((*_FLOAT_EDGES, *_SPECIAL)).astype(dtype)
    info = np.iinfo(dtype)
    numbers = (0, 1, 2, 100, 0x5A, info.min, info.max, info.max // 2 + 1)
    return np.array(sorted(set(numbers)), dtype)


def _words(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits as they lie in memory."""
    content = values.tobytes()
    return np.frombuffer(content + bytes(len(content) % 2), np.uint16)


def _converted(values: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Toward zero and saturating from floats, wrapping around between integers."""
    if target == "bool":
        return np.asarray(values != 0, np.uint8)
    dtype = _DTYPES[target]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    if _DTYPES[source].kind != "f":
        return values.astype(dtype)
    info = np.iinfo(dtype)
    exact = [0 if v != v else max(min(v, info.max), info.min) for v in values.tolist()]
    return np.array([int(v) for v in exact], dtype)


def _program(builtin: str, kinds: list[tuple[str, str]]) -> str:
    """Apply a builtin of a type and a value to the edge values of each pair of types."""
    lines, body = [], []
    for number, (source, target) in enumerate(kinds):
        edges = _edges(source)
        words = _words(edges)
        given = f"given_{number}"
        lines.append(f"var {given} = [{words.size}]u16{{ {literals(words)} }};")
        lines.append(f"var out_{number}: [{edges.size}]{target};")
        body.append(
            f"const from_{number} = @ptrcast([*]{source}, &{given});\n"
            f"for (@range(u16, {edges.size})) |i| "
            f"{{ out_{number}[i] = @{builtin}({target}, from_{number}[i]); }}"
        )
    return "\n".join((*lines, "fn main() void {", *body, "}"))


def _read(memory: Memory, number: int, kind: str) -> NDArray[Any]:
    return memory.read(f"out_{number}", _DTYPES[kind])


@pytest.mark.parametrize(("source", "arch"), checkerboard(_KINDS, BOTH))
def test_as_converts_as_numpy_does(source: str, arch: Arch) -> None:
    pairs = [(source, target) for target in _KINDS]
    memory = run(_program("as", pairs), arch)
    for number, (_, target) in enumerate(pairs):
        want = _converted(_edges(source), source, target)
        np.testing.assert_array_equal(_read(memory, number, target), want, err_msg=target)


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("kinds", [("i8", "u8"), ("i16", "u16", "f16"), ("i32", "u32", "f32")])
def test_bitcast_keeps_the_bits(kinds: tuple[str, ...], arch: Arch) -> None:
    pairs = [(source, target) for source in kinds for target in kinds]
    memory = run(_program("bitcast", pairs), arch)
    for number, (source, target) in enumerate(pairs):
        got = _read(memory, number, target)
        assert got.tobytes() == _edges(source).tobytes(), (source, target)


@pytest.mark.parametrize(("fp16", "digits"), [("bf16", 7), ("cb16", 9)])
def test_sixteen_bit_formats_round_to_their_digits(fp16: str, digits: int) -> None:
    values = np.array([1.0, -2.5, 1 / 3, 6.0, 1000.1, -1e-3, 0.1], np.float32)
    source = f"""
    var x = [{values.size}]f32{{ {", ".join(map(repr, values.tolist()))} }};
    var back: [{values.size}]f32;
    fn main() void {{
      for (@range(u16, {values.size})) |i| {{ back[i] = @as(f32, @as(@fp16(), x[i])); }}
    }}"""
    mantissa, exponent = np.frexp(values)
    scale = np.float32(2.0 ** (digits + 1))
    want = np.ldexp(np.rint(mantissa * scale) / scale, exponent)
    np.testing.assert_array_equal(run(source, Arch.WSE3, fp16).read("back", np.float32), want)


def _shift_register(num_draws: int) -> list[int]:
    """x^23 + x^18 + 1, 128 shifts a draw, from the documented start."""
    state, drawn = RANDOM_SEED, []
    for _ in range(num_draws):
        drawn.append(state & 0xFFFF)
        for _ in range(128):
            state = ((state << 1) | ((state >> 22 ^ state >> 17) & 1)) & 0xFFFFFFFF
    return drawn


@pytest.mark.parametrize("arch", BOTH)
def test_random16_draws_from_the_documented_shift_register(arch: Arch) -> None:
    source = """
    var drawn: [50]u16;
    fn main() void { for (@range(u16, 50)) |i| { drawn[i] = @random16(); } }"""
    assert run(source, arch).read("drawn", np.uint16).tolist() == _shift_register(50)


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize(
    ("kind", "bounds"),
    [("i16", (1, 5, 1)), ("i16", (5, -7, -3)), ("u16", (2, 40, 7)), ("i32", (-9, 9, 4))],
)
def test_range_counts_as_numpy_does(kind: str, bounds: tuple[int, int, int], arch: Arch) -> None:
    source = f"""
    var bounds = [3]{kind}{{ {", ".join(map(str, bounds))} }};
    var seen: [20]{kind};
    var count: u16 = 0;
    fn main() void {{
      const r = @range({kind}, bounds[0], bounds[1], bounds[2]);
      for (r) |i| {{ seen[count] = i; count += 1; }}
    }}"""
    memory = run(source, arch)
    want = np.arange(*bounds)
    assert memory.read("count", np.uint16)[0] == want.size
    assert memory.read("seen", _DTYPES[kind])[: want.size].tolist() == want.tolist()


_MAP: Final = """
var x = [6]KIND{ 1, 2, 3, 4, 5, 6 };
var y: [3]KIND;
var sum: KIND = 0;
const every_second = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> x[2 * i] });
const out = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> y[2 - i] });
fn scaled(v: KIND, k: KIND) KIND { return v * k; }
fn plus(v: KIND, so_far: *KIND) KIND { return so_far.* + v; }
fn main() void {
  @map(scaled, every_second, 3, out);
  @map(plus, out, &sum, &sum);
}
"""


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("kind", ["i16", "u16", "i32", "u32", "f16", "f32"])
def test_map_calls_its_function_for_each_element(kind: str, arch: Arch) -> None:
    memory = run(_MAP.replace("KIND", kind), arch)
    want = (np.arange(1, 7)[::2] * 3)[::-1]
    assert memory.read("y", _DTYPES[kind]).tolist() == want.tolist()
    assert memory.read("sum", _DTYPES[kind])[0] == want.sum()
