"""Options that one generation has: the other refuses them, or says that they change nothing."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, compile_pe, refusal, warnings_of

FIFO = """var buffer: [8]u16; const fifo = @allocate_fifo(buffer, .{ OPTIONS });
comptime { const used = fifo; }"""
OUT = "@get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = @get_output_queue(2) })"
COLOR = ".color = @get_color(1)"
HIGH = ".priority = .{ .high = true }"
REGISTERS = ".dest = @get_dsr(dsr_dest, 4), .src = @get_dsr(dsr_src1, 4)"


def fifo(options: str) -> str:
    return FIFO.replace("OPTIONS", options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (fifo(".simd_mode = .{ .simd_32 = true }"), "'simd_mode' of a FIFO needs WSE-2"),
        (
            f"comptime {{ @initialize_queue(@get_input_queue(2), .{{ {HIGH}, {COLOR} }}); }}",
            "'priority' is for input queues of WSE-2",
        ),
    ],
)
def test_wse3_refuses_what_wse2_has(tmp_path: Path, source: str, message: str) -> None:
    assert message in refusal(tmp_path, source, Arch.WSE3)


def test_a_fifo_of_wse3_has_its_priority_in_the_program(tmp_path: Path) -> None:
    (made,) = compile_pe(tmp_path, fifo(HIGH), Arch.WSE3).fifos
    assert made.priority == 2


@pytest.mark.parametrize(
    ("options", "arch", "message"),
    [
        (".simd_mode = .{ .simd_64 = true }", Arch.WSE2, "moves an element a cycle"),
        (REGISTERS, Arch.WSE3, "names all of 'dest', 'src' and 'xdsr', or none"),
        (
            f"{REGISTERS.replace('dsr_src1, 4', 'dsr_src1, 5')}, .xdsr = @get_xdsr(1)",
            Arch.WSE3,
            "have one number, got 4 and 5",
        ),
    ],
)
def test_what_a_fifo_is_given_in_vain_is_a_warning(
    tmp_path: Path, options: str, arch: Arch, message: str
) -> None:
    (warning,) = warnings_of(tmp_path, fifo(options), arch, "")
    assert message in warning


def test_the_priority_of_an_operation_changes_nothing_on_wse3(tmp_path: Path) -> None:
    source = f"""var x: [1]u32; const to = {OUT};
    const from = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{1}} -> x[i] }});
    fn main() void {{ @mov32(to, from, .{{ .async = true, {HIGH} }}); }}
    comptime {{ @initialize_queue(@get_output_queue(2), .{{ .color = @get_color(1) }}); }}"""
    (warning,) = warnings_of(tmp_path, source + EXPORT_MAIN, Arch.WSE3, MAIN)
    assert "'priority' of an operation has no effect on wse3" in warning
