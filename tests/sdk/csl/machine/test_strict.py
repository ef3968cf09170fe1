"""What the vendor's documentation forbids: a warning, and an error with `--strict`."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, warnings_of

OPERANDS = """
var a: [4]f32; var b: [4]i16; var x: f32; var n: i16;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const e = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> b[i] });
fn main() void { CALL; }
"""
DATA_TASK = """
task answer(data: u32) u32 { return data; }
comptime {
  @bind_data_task(answer, @get_data_task_id(@get_input_queue(2)));
  @initialize_queue(@get_input_queue(2), .{ .color = @get_color(3) });
}
fn main() void {}
"""
FORBIDDEN = {
    "a scalar first source of sub16": (
        OPERANDS.replace("CALL", "@sub16(e, 1, e)"),
        "no @sub16 of DSD, scalar, DSD",
    ),
    "a DSD factor behind a DSD factor": (
        OPERANDS.replace("CALL", "@fmacs(d, d, d, d)"),
        "no @fmacs of DSD, DSD, DSD, DSD",
    ),
    "a scaled DSD": (
        OPERANDS.replace("CALL", "@fscales(d, d, n)"),
        "it has: pointer, scalar, scalar",
    ),
    "a task with a result": (
        DATA_TASK,
        "task 'answer' returns a value of type 'u32', which nothing takes",
    ),
    "a function without a result type": (
        "fn helper() { } fn main() void { helper(); }",
        "'helper' says no result type",
    ),
}
RANK = "var a: [2, 2]f32; var p: [*]f32 = &a; fn main() void { p[0] = 1.0; }"


@pytest.mark.parametrize(("source", "message"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_forbidden_is_told_and_by_strict_refused(
    tmp_path: Path, source: str, message: str
) -> None:
    (warning,) = warnings_of(tmp_path, source + EXPORT_MAIN, Arch.WSE3, MAIN)
    assert message in warning
    with pytest.raises(OpenwaferError) as caught:
        build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3, is_strict=True))
    assert message in str(caught.value)


def test_strict_alone_minds_how_many_dims_a_pointer_leads_to(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, RANK + EXPORT_MAIN, Arch.WSE3, MAIN) == ()
    with pytest.raises(OpenwaferError, match="points to an array of several dims"):
        build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3, is_strict=True))


def test_what_is_documented_is_no_matter(tmp_path: Path) -> None:
    call = "@fmacs(d, d, d, x); @fadds(&x, x, d); @sub16(e, e, 1); @mov16(e, n)"
    source = OPERANDS.replace("CALL", call) + EXPORT_MAIN
    assert warnings_of(tmp_path, source, Arch.WSE3, MAIN) == ()
