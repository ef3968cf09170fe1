"""Statements mean what they meant: what is rewritten is evaluated as often, and in that order."""

import textwrap
import traceback
from typing import Any

import pytest

from openwafer.sdk.compat.numpy1 import rewriting


def names_after(text: str) -> dict[str, Any]:
    rewriting.install()
    names: dict[str, Any] = {}
    exec(rewriting.compiled(textwrap.dedent(text), "script.py"), names)
    return names


SAME = [
    "r = [1, 2]\nr += [3]\nr *= 2",
    "r = 'a'\nr += 'b'\nr = r * 2 + '%d' % 3",
    "log = []\ndef f(x): log.append(x); return x\nd = {1: 5}\nd[f(1)] += f(2)\nr = d, log",
    "log = []\ndef f(x): log.append(x); return x\nr = f(1) < f(5) < f(3) < f(9), log",
    "class C:\n  n = 1\n  n += 1\n  def up(self): self.n += 3; return self.n\nr = C().up()",
    "class C:\n  def f(i): return i\n  r = [i for i in range(9) if 1 < i + 1 < 5]\nr = C.r",
    "r = list(range(10))\nr[2:4] += [7]\nr[0] -= 1",
    "r = [i for i in (j for j in range(9) if 2 < int(j) < 5)]",
    "r = [x for x in range(9) if 0 <= abs(x) < 3 if not 5 > 4 > 4]",
    "def f(x: int | None = 3) -> int | None:\n  y: int = x\n  y += 1\n  return y\nr = f()",
    "def g():\n  x = 0\n  while x < 3:\n    x += 1\n    yield x\nr = list(g())",
    "match 1 + 2j:\n  case 1 + 2j: r = 'c'\n  case _: r = 'other'",
    "x = 3\ndef f():\n  global x\n  x **= 2\nf()\nr = x, -x // 2, ~x, not x",
    "from math import prod as p, sqrt as s\nr = p([2, 3]), s(4.0)",
    "x = 5\nr = eval('x + 1'), [(k := n * 2) for n in range(3)], k",
    "def f(a):\n  return eval('a * 2', {'a': 1}) + eval('a')\nr = f(5)",
    "s = set()\ns.add(1)\ns |= {2}\nr = s - {1}, sum([[1], [2]], [])",
]


@pytest.mark.parametrize("text", SAME)
def test_a_script_without_numpy_computes_the_same(text: str) -> None:
    plain: dict[str, Any] = {}
    exec(compile(text, "script.py", "exec"), plain)
    assert names_after(text)["r"] == plain["r"]


def test_an_index_is_evaluated_once_in_place() -> None:
    names = names_after("""
        import numpy as np
        a, calls = np.ones(3, np.float32), []
        def at(i): calls.append(i); return i
        a[at(1)] += np.float64(2)
        b = a
        b *= 2
        """)
    assert (names["a"].tolist(), names["calls"]) == ([2, 6, 2], [1])


def test_lines_stay() -> None:
    with pytest.raises(ZeroDivisionError, match="division") as found:
        names_after("x = 1\ny = (\n  x\n  / 0)")
    lines = [frame.lineno for frame in traceback.extract_tb(found.tb) if frame.name == "<module>"]
    assert lines == [3]


def test_a_sum_of_a_thousand_terms_is_no_problem() -> None:
    assert names_after("x = 1\nr = " + " + ".join(["x"] * 1000))["r"] == 1000


SIGNS = ("+", "-", "*", "/", "//", "%", "**", "@", "<<", ">>", "&", "|", "^")


@pytest.mark.parametrize("text", [f"x {sign}{end} y" for sign in SIGNS for end in ("", "=")])
def test_every_operator_calls_a_function(text: str) -> None:
    code = rewriting.compiled(text, "script.py")
    assert any(name.startswith("__openwafer_") for name in code.co_names)
