"""Builtins of ids: ranges by generation, and the numbers behind them."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import compile_pe, ran, refusal


@pytest.mark.parametrize(
    ("arch", "call", "limits"),
    [
        (Arch.WSE3, "@get_color(24)", "colors are 0 to 23"),
        (Arch.WSE2, "@get_local_task_id(31)", "local task ids are 0 to 30"),
        (Arch.WSE3, "@get_local_task_id(7)", "local task ids are 8 to 30"),
        (Arch.WSE3, "@get_control_task_id(64)", "control task ids are 0 to 63"),
        (Arch.WSE3, "@get_input_queue(8)", "input queues are 0 to 7"),
        (Arch.WSE2, "@get_output_queue(6)", "output queues are 0 to 5"),
        (Arch.WSE3, "@get_ut_id(8)", "microthread ids are 0 to 7"),
    ],
)
def test_an_id_out_of_range_is_an_error_that_names_the_range(
    tmp_path: Path, arch: Arch, call: str, limits: str
) -> None:
    assert limits in refusal(tmp_path, f"comptime {{ const id = {call}; }}", arch)


def test_wse3_has_output_queues_that_wse2_lacks(tmp_path: Path) -> None:
    compile_pe(tmp_path, "comptime { const q = @get_output_queue(7); }", Arch.WSE3)


def test_microthread_ids_need_wse3(tmp_path: Path) -> None:
    text = refusal(tmp_path, "comptime { const id = @get_ut_id(1); }", Arch.WSE2)
    assert "@get_ut_id needs WSE-3" in text


def test_the_number_of_an_id_is_a_u16(tmp_path: Path) -> None:
    source = """
    comptime {
      const number = @get_int(@get_local_task_id(9));
      @comptime_assert(@is_same_type(@type_of(number), u16));
      @comptime_assert(number == 9);
    }"""
    compile_pe(tmp_path, source)


def test_the_number_of_an_enum_has_its_tag_type(tmp_path: Path) -> None:
    source = """
    const Kind = enum(u32) { A = 1, B = 5 };
    comptime { @comptime_assert(@is_same_type(@type_of(@get_int(Kind.B)), u32)); }
    comptime { @comptime_assert(@get_int(Kind.B) == 5); }"""
    compile_pe(tmp_path, source)


def test_an_id_may_be_made_at_run_time_of_a_u16(tmp_path: Path) -> None:
    source = """
    var number: u16 = 11;
    var back: u16 = 0;
    fn main() void { back = @get_int(@get_color(number)); }"""
    assert ran(tmp_path, source).read("back", "u2")[0] == 11


def test_an_id_of_a_signed_run_time_number_is_an_error(tmp_path: Path) -> None:
    source = """
    var number: i16 = 11;
    task t() void { @activate(@get_local_task_id(number)); }
    comptime { @bind_local_task(t, @get_local_task_id(9)); }"""
    assert "expected type 'u16', got: 'i16'" in refusal(tmp_path, source)


def test_data_tasks_of_wse3_belong_to_input_queues(tmp_path: Path) -> None:
    source = "comptime { const id = @get_data_task_id(@get_color(3)); }"
    assert "expected type 'input_queue', got: 'color'" in refusal(tmp_path, source)


def test_data_tasks_of_wse2_belong_to_colors(tmp_path: Path) -> None:
    source = "comptime { const id = @get_data_task_id(@get_input_queue(3)); }"
    assert "expected type 'color', got: 'input_queue'" in refusal(tmp_path, source, Arch.WSE2)


def test_there_are_sixteen_registers_in_each_file(tmp_path: Path) -> None:
    source = "comptime { const d = @get_dsr(dsr_src1, 16); }"
    text = refusal(tmp_path, source)
    assert "dsr_src1 16 does not exist" in text
