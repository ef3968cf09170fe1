"""Registers that are loaded twice in a row."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, warnings_of

REGISTERS = """
var a: [4]f32;
var is_other: bool;
const low = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] });
const high = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i + 2] });
const from = @get_dsr(dsr_src1, 1);
const to = @get_dsr(dsr_dest, 1);
const same = @get_dsr(dsr_src1, 1);
fn use() void { @load_to_dsr(to, low); @fmovs(to, from); }
"""
LOW, HIGH, MOVE = "@load_to_dsr(from, low);", "@load_to_dsr(from, high);", "@fmovs(to, from);"


def said(folder: Path, main: str) -> tuple[str, ...]:
    code = f"fn main() void {{ {main} use(); }}"
    return warnings_of(folder, REGISTERS + code + EXPORT_MAIN, Arch.WSE3, MAIN)


@pytest.mark.parametrize("between", ["", "a[0] = 1.0;", "@load_to_dsr(to, low);"])
@pytest.mark.parametrize("again", [HIGH, "@load_to_dsr(same, high);"])
def test_a_load_that_nothing_uses_is_a_warning(tmp_path: Path, between: str, again: str) -> None:
    (found,) = said(tmp_path, LOW + between + again)
    assert "dsr_src1 1 is loaded again before anything uses it" in found


@pytest.mark.parametrize(
    "main",
    [
        f"@load_to_dsr(to, low); {LOW} {MOVE} {HIGH}",
        f"{LOW} use(); {HIGH}",
        f"{LOW} if (is_other) {{ {HIGH} }}",
        f"{LOW} @set_dsr_base_addr(from, &a[1]); {HIGH}",
        f"{LOW} @load_to_dsr(@get_dsr(dsr_src0, 1), low);",
        f"@load_to_dsr(same, low); {LOW}",
    ],
)
def test_loads_that_something_uses_are_no_matter(tmp_path: Path, main: str) -> None:
    assert said(tmp_path, main) == ()
