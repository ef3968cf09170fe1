"""What one PE measures of itself: vector operations in memory and scalar code."""

from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Arch

WSE2, WSE3 = Arch.WSE2, Arch.WSE3
N: Final = 1000
"""Elements of a vector."""


@dataclass(frozen=True)
class Snippet:
    """Statements that one PE runs between two looks at its clock.

    Attributes:
        published: cycles.
        before: statements ahead of the first look.
        times: what the cycles are divided by.
        less: name of a snippet whose cycles are taken off before; "" where the published figure
            has the looks at the clock in it.
    """

    name: str
    archs: tuple[Arch, ...]
    kind: str
    code: str
    published: float
    before: str = ""
    times: int = 1
    less: str = "nothing"


def _op(name: str, arch: Arch, code: str, published: float) -> Snippet:
    return Snippet(name, (arch,), "operation", code, published, less="")


_BOTH: Final = (WSE2, WSE3)
NOTHING: Final = Snippet("nothing", _BOTH, "", "", 0)
_LOOP: Final = "for (@range(i16, 512)) |i| "


def _loop(name: str, body: str, published: float, kind: str = "scalar") -> Snippet:
    """A loop over vectors of 512 f32; its published cycles have the looks at the clock in them."""
    code = f"var sum: f32 = 0.0; {_LOOP}{{ {body} }} total = sum;"
    return Snippet(name, (WSE3,), kind, code, published, less="")


_CHAIN: Final = "f = f * g; "
SNIPPETS: Final = (
    _op("copy f16", WSE2, "@fmovh(h0_dsd, h1_dsd);", N / 4 + 10),
    _op("scale f16", WSE2, "@fmulh(h0_dsd, h1_dsd, 1.5);", N / 4 + 11),
    _op("add f16", WSE2, "@faddh(h0_dsd, h2_dsd, h1_apart);", N / 4 + 12),
    _op("triad f16", WSE2, "@fmach(h0_dsd, h2_dsd, h1_apart, 1.5);", N / 4 + 13),
    _op("copy f32", WSE2, "@fmovs(s0_dsd, s1_dsd);", N / 2 + 10),
    _op("scale f32", WSE2, "@fmuls(s0_dsd, s1_dsd, 1.5);", N + 11),
    _op("triad f32", WSE2, "@fmacs(s0_dsd, s2_dsd, s1_apart, 1.5);", N + 12),
    Snippet(
        "mul f32, registers loaded, aligned",
        (WSE2,),
        "operation",
        "@fmuls(to, from0, from1);",
        N + 6,
        before="load_registers(true);",
        less="",
    ),
    Snippet(
        "fma f32, registers loaded, bank conflict",
        (WSE2,),
        "operation",
        "@fmacs(to, from0, from1, 1.5);",
        2 * N + 6,
        before="load_registers(false);",
        less="",
    ),
    _op("copy f16", WSE3, "@fmovh(h0_dsd, h1_dsd);", N / 8 + 15),
    _op("copy f32", WSE3, "@fmovs(s0_dsd, s1_dsd);", N / 4 + 15),
    _op("add 16-bit, bank conflict", WSE3, "@faddh(h0_dsd, h1_dsd, h2_dsd);", N / 3.96 + 9),
    _op("fma f16, bank conflict", WSE3, "@fmach(h0_dsd, h0_dsd, h1_dsd, h2_dsd);", N / 4 + 16),
    _op("fma f32, bank conflict", WSE3, "@fmacs(s0_dsd, s0_dsd, s1_dsd, s2_dsd);", N / 0.5 + 17),
    _op("fill 16-bit", WSE3, "@fmovh(h0_dsd, 1.5);", N / 7.93 + 8),
    _op("axpy f16, bank conflict", WSE3, "@fmach(h0_dsd, h0_dsd, h1_dsd, 1.5);", N / 3.94 + 13),
    _op("reduction f32", WSE3, "@fadds(&total, 0.0, s0_dsd);", 2 * N + 8),
    _op("read 16-bit, stride 4", WSE3, "@fmovh(h1_quarter, h0_every4);", 250 / 2 + 15),
    Snippet(
        "GEMM column of 100, bank conflict",
        (WSE2,),
        "scalar",
        "columns(20);",
        222,
        times=10,
        less="columns(10)",
    ),
    _op("@map over 25 numbers, columns of 28 f32", WSE3, "multiply();", 780),
    Snippet("columns(10)", (WSE2,), "", "columns(10);", 0),
    Snippet("load, load, add, store", (WSE3,), "scalar", "w0[2] = w0[0] + w0[1];", 7),
    Snippet("empty loop, an iteration", (WSE3,), "scalar", "loops(n);", 9.5, times=20),
    Snippet(
        "dependent f32 operation",
        (WSE3,),
        "scalar",
        _CHAIN * 9,
        2,
        times=8,
        less="one multiplication",
    ),
    Snippet("one multiplication", _BOTH, "", _CHAIN, 0),
    Snippet("f32 divide", (WSE3,), "scalar", "f = f / g;", 50, less="one multiplication"),
    Snippet(
        "branch not taken, a store",
        (WSE3,),
        "scalar",
        "if (flag == 0) { w0[3] = 1; }",
        4,
        less="flag",
    ),
    Snippet("branch taken", (WSE3,), "scalar", "if (flag == 1) { w0[3] = 1; }", 6, less="flag"),
    Snippet("flag", _BOTH, "", "w0[4] = flag;", 0),
    _loop("loop of SAXPY", "s2[i] = g * s0[i] + s1[i];", 11_276),
    _loop(
        "loop of ReLU", "if (s0[i] > 0.0) { s1[i] = s0[i]; } else { s1[i] = 0.0; }", 11_787, "open"
    ),
    _loop("loop of a sum", "sum += s0[i];", 7_693),
    _loop("loop of a dot product", "sum += s0[i] * s1[i];", 10_254, "open"),
    _loop("loop of prefix sums", "sum += s0[i]; s1[i] = sum;", 9_229),
    _loop("loop of a maximum", "if (s0[i] > sum) { sum = s0[i]; }", 8_188, "open"),
)
