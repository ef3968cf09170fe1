"""How many iterations a second the compiler follows at compile time.

Each load is a program whose PE holds one constant that a function computes at compile time; it is
compiled through :func:`~openwafer.sdk.compiler.pipeline.compile_files`, and so is the same program
without the function, whose seconds are taken off. What a load must give is computed here in plain
Python and compared by ``@comptime_assert``.

    python benchmarks/bench_comptime.py --rounds 3
    python benchmarks/bench_comptime.py --only sum primes --scale 0.1
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.pipeline import compile_files
from openwafer.sdk.csl.options import CompileOptions


@dataclass(frozen=True)
class Load:
    """A loop at compile time.

    Attributes:
        size: `N` of the program at scale 1.
        source: of the function `result() T`.
        expected: what it returns, for an `N`.
        iterations: that it takes, for an `N`.
    """

    size: int
    source: str
    expected: Callable[[int], int | float]
    iterations: Callable[[int], int] = lambda n: n


_LAYOUT = """
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{});
}
"""


def _collatz(n: int) -> tuple[int, int]:
    total = 0
    for start in range(1, n):
        m = start
        while m != 1:
            m = m // 2 if m % 2 == 0 else 3 * m + 1
            total += 1
    return total, total + n


def _primes(n: int) -> tuple[int, int]:
    count = steps = 0
    for number in range(2, n):
        divisor, is_prime = 2, True
        while divisor * divisor <= number:
            steps += 1
            if number % divisor == 0:
                is_prime = False
                break
            divisor += 1
        count += is_prime
    return count, steps + 2 * n


def _hash(n: int) -> int:
    h = 1
    for i in range(n):
        h = (((h << 5) | (h >> 27)) ^ i) * 2654435769 & 0xFFFFFFFF
    return h


def _machine(n: int) -> int:
    state = total = 0
    for i in range(n):
        match state:
            case 0:
                total, state = total + i % 7, 1 + (i & 1)
            case 1:
                total, state = total ^ i, 2
            case _:
                if total > 1000:
                    total -= 1000
                state = 0
    return total


def _harmonic(n: int) -> float:
    total = np.float32(0)
    for i in range(1, n + 1):
        total += np.float32(1) / np.float32(i)
    return float(total)


def _halves(n: int) -> float:
    total = np.float16(0)
    for i in range(n):
        total = total * np.float16(0.5) + np.float16(i % 100)
    return float(total)


def _grid(n: int) -> int:
    return sum((y * 31 + x) % 17 for y in range(n) for x in range(n))


def _window(n: int) -> int:
    return sum((a + b * i) & 15 for i in range(n) for a in range(3) for b in range(3))


LOADS: dict[str, Load] = {
    "sum": Load(
        200_000,
        """
fn result() u64 {
  var total: u64 = 0;
  var i: u64 = 0;
  while (i < N) : (i += 1) { total += i; }
  return total;
}
""",
        lambda n: n * (n - 1) // 2,
    ),
    "sum of comptime_int": Load(
        200_000,
        """
fn result() comptime_int {
  var total = 0;
  for (@range(comptime_int, N)) |i| { total += i * i; }
  return total;
}
""",
        lambda n: sum(i * i for i in range(n)),
    ),
    "table": Load(
        100_000,
        """
fn square(x: u32) u32 { return x * x % 1009; }
fn result() u32 {
  var table = @zeros([N]u32);
  var i: u32 = 0;
  while (i < N) : (i += 1) { table[i] = square(i); }
  return table[N - 1] + table[N / 2];
}
""",
        lambda n: (n - 1) ** 2 % 2**32 % 1009 + (n // 2) ** 2 % 2**32 % 1009,
        lambda n: 2 * n,
    ),
    "table of a million": Load(
        1_000_000,
        """
fn result() u32 {
  var table = @zeros([N]u16);
  for (@range(u32, N)) |i| { table[i] = @as(u16, i % 1000); }
  return @as(u32, table[N - 1]) + @as(u32, table[N / 2]);
}
""",
        lambda n: (n - 1) % 1000 + n // 2 % 1000,
    ),
    "hash": Load(
        100_000,
        """
fn result() u32 {
  var h: u32 = 1;
  for (@range(u32, N)) |i| { h = ((h << 5 | h >> 27) ^ i) * 2654435769; }
  return h;
}
""",
        _hash,
    ),
    "nested": Load(
        400,
        """
fn result() u32 {
  var total: u32 = 0;
  for (@range(u32, N)) |y| {
    for (@range(u32, N)) |x| { total += (y * 31 + x) % 17; }
  }
  return total;
}
""",
        _grid,
        lambda n: n * n + n,
    ),
    "window": Load(
        10_000,
        """
fn result() u32 {
  var total: u32 = 0;
  for (@range(u32, N)) |i| {
    for (@range(u32, 3)) |a| {
      for (@range(u32, 3)) |b| { total += (a + b * i) & 15; }
    }
  }
  return total;
}
""",
        _window,
        lambda n: 13 * n,
    ),
    "switch": Load(
        100_000,
        """
fn result() u32 {
  var state: u16 = 0;
  var total: u32 = 0;
  var i: u32 = 0;
  while (i < N) : (i += 1) {
    switch (state) {
      0 => { total += i % 7; state = 1 + @as(u16, i & 1); },
      1 => { total ^= i; state = 2; },
      else => { if (total > 1000) { total -= 1000; } state = 0; },
    }
  }
  return total;
}
""",
        _machine,
    ),
    "primes": Load(
        5_000,
        """
fn is_prime(n: u32) bool {
  var d: u32 = 2;
  while (d * d <= n) : (d += 1) { if (n % d == 0) { return false; } }
  return true;
}
fn result() u32 {
  var count: u32 = 0;
  for (@range(u32, 2, N, 1)) |n| { if (is_prime(n)) { count += 1; } }
  return count;
}
""",
        lambda n: _primes(n)[0],
        lambda n: _primes(n)[1],
    ),
    "collatz": Load(
        1_500,
        """
fn result() u32 {
  var total: u32 = 0;
  for (@range(u32, 1, N, 1)) |start| {
    var m = start;
    while (m != 1) {
      if (m % 2 == 0) { m /= 2; } else { m = 3 * m + 1; }
      total += 1;
    }
  }
  return total;
}
""",
        lambda n: _collatz(n)[0],
        lambda n: _collatz(n)[1],
    ),
    "recursion": Load(
        10_000,
        """
fn gcd(a: u32, b: u32) u32 { return if (b == 0) a else gcd(b, a % b); }
fn result() u32 {
  var total: u32 = 0;
  for (@range(u32, 1, N, 1)) |i| { total += gcd(i * 12, 5040); }
  return total;
}
""",
        lambda n: sum(math.gcd(i * 12, 5040) for i in range(1, n)),
        lambda n: 4 * n,
    ),
    "f32": Load(
        50_000,
        """
fn result() f32 {
  var total: f32 = 0.0;
  for (@range(u32, 1, N + 1, 1)) |i| { total += 1.0 / @as(f32, i); }
  return total;
}
""",
        _harmonic,
    ),
    "f16": Load(
        50_000,
        """
fn result() f16 {
  var total: f16 = 0.0;
  for (@range(u32, N)) |i| { total = total * 0.5 + @as(f16, i % 100); }
  return total;
}
""",
        _halves,
    ),
    "strings": Load(
        20_000,
        """
fn result() u32 {
  var total: u32 = 0;
  for (@range(u32, N)) |i| {
    const name = @strcat("pe_", if (i % 2 == 0) "even" else "odd");
    total += @strlen(name);
  }
  return total;
}
""",
        lambda n: sum(7 if i % 2 == 0 else 6 for i in range(n)),
    ),
}

_WAFER = """
param N: u16;
layout {
  @set_rectangle(N, 994);
  var number: u32 = 0;
  for (@range(u16, N)) |x| {
    for (@range(u16, 994)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .is_edge = x == 0 or y == 993 });
      ORDER
    }
  }
}
"""


def seconds_of(layout: str, code: str, size: int) -> float:
    """Seconds to compile a program."""
    options = CompileOptions(Arch.WSE3, params=(("N", str(size)),) if "param N" in layout else ())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "layout.csl").write_text(layout, encoding="utf-8")
        (folder / "pe.csl").write_text(code, encoding="utf-8")
        begin = time.perf_counter()
        compile_files(folder / "layout.csl", options)
        return time.perf_counter() - begin


def measure(load: Load, size: int) -> float:
    """Iterations a second of a load."""
    check = f"comptime {{ @comptime_assert(result() == {load.expected(size)!r}); }}"
    empty = seconds_of(_LAYOUT, "comptime { @comptime_assert(true); }", size)
    whole = seconds_of(_LAYOUT, f"const N = {size};{load.source}{check}", size)
    return load.iterations(size) / max(whole - empty, 1e-3)


def measure_layout(width: int) -> float:
    """Iterations a second of a layout that counts its PEs, so that its loops have an order."""
    seconds = seconds_of(_WAFER.replace("ORDER", "number += 1;"), "param is_edge: bool;", width)
    return width * 994 / seconds


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*LOADS, "layout"], default=[*LOADS, "layout"])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    seconds_of(_LAYOUT, "", 0)  # The first one loads the compiler.
    for name in arguments.only:
        size = max(8, int((750 if name == "layout" else LOADS[name].size) * arguments.scale))
        rates = [
            measure_layout(size // 8) if name == "layout" else measure(LOADS[name], size)
            for _ in range(arguments.rounds)
        ]
        print(f"{name:20} {statistics.median(rates):12,.0f} iterations a second")


if __name__ == "__main__":
    main()
