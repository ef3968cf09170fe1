"""Warnings of what is written down hold for every value, and no right program has them."""

import operator
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.sdk.reports.report_file import ReportFile

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DECLARATIONS = """
var n: i16 = 0;
var f: f32 = 0.5;
const a = 2;
const three: f32 = 3;
var m = @zeros([4, 4]f32);
"""


def _warnings(tmp_path: Path, body: str) -> tuple[str, ...]:
    program = f"{_DECLARATIONS}fn main() void {{\n{body}\nfinish(); }}\n"
    file = ReportFile(tmp_path / "code.csl", program, ("width 1",), "")
    return tuple(file.compiled().warnings)


def test_conditions_are_told_of_that_no_number_changes(tmp_path: Path) -> None:
    lines, never_change = [], 0
    for one, other, word, second in product(_COMPARISONS, _COMPARISONS, ("and", "or"), (1, 2, 4)):
        lines.append(f"if (n {one} 2 {word} n {other} {second}) {{ n += 1; }}")
        sides = ((_COMPARISONS[one](n, 2), _COMPARISONS[other](n, second)) for n in range(-9, 9))
        never_change += len({(all if word == "and" else any)(pair) for pair in sides}) == 1
    warnings = _warnings(tmp_path, "\n".join(lines))
    assert all("csl-always-same" in text for text in warnings)
    assert len(warnings) == never_change > 0


@pytest.mark.parametrize(
    "right",
    [
        "if (f < 1.0 or f >= 1.0) { n = 1; }",
        "if (f > 1.0 and f < 2.0) { n = 1; }",
        "if (n == 1 or n == a) { n = 1; }",
        "for (@range(i16, 5, 0, -1)) |i| { n += i; }",
        "for (@range(i16, 0)) |i| { n += i; }",
        "f = 4 / a;",
        "f = 1 / three * f;",
        "n += @as(i16, 7 / 2);",
        "var n: i16 = 3; f = @as(f32, n);",
        "m[n, 3] = 1.0;",
    ],
)
def test_of_what_may_be_meant_there_is_no_warning(tmp_path: Path, right: str) -> None:
    assert _warnings(tmp_path, right) == ()
