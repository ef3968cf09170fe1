"""Tasks, queues, FIFOs and DSRs: what the image says of them."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.image import QueueBinding, TaskBinding, TaskKind
from openwafer.sdk.program.mailbox import DsrFile, Option, Outcome, Request
from tests.sdk.csl.machine.one_pe import (
    EXPORT_MAIN,
    MAIN,
    Pe,
    compile_pe,
    ran,
    refusal,
    warnings_of,
)

TASKS = """
task local() void {}
task data(value: u32) void {}
task control() void {}
"""
ALL_BITS = (1 << 24) - 1


def test_each_kind_of_task_is_bound_to_its_id(tmp_path: Path) -> None:
    source = (
        TASKS
        + """comptime {
      @bind_local_task(local, @get_local_task_id(9));
      @bind_data_task(data, @get_data_task_id(@get_input_queue(2)));
      @bind_control_task(control, @get_control_task_id(40));
    }"""
    )
    assert compile_pe(tmp_path, source).tasks == (
        TaskBinding(TaskKind.LOCAL, 9, 0),
        TaskBinding(TaskKind.DATA, 2, 1),
        TaskBinding(TaskKind.CONTROL, 40, 2),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("@bind_local_task(data, @get_local_task_id(9))", "takes no arguments, 'data' takes 1"),
        (
            "@bind_data_task(local, @get_data_task_id(@get_input_queue(1)))",
            "takes the wavelet as an argument, 'local' takes none",
        ),
        (
            "@bind_data_task(pair, @get_data_task_id(@get_input_queue(1)))",
            "a wavelet brings no value of type '[2]i16', which 'pair' takes",
        ),
        ("@bind_local_task(plain, @get_local_task_id(9))", "'plain' is a function, not a task"),
        ("@bind_local_task(local, @get_control_task_id(9))", "expected type 'local_task_id'"),
    ],
)
def test_a_wrong_binding_is_explained(tmp_path: Path, call: str, message: str) -> None:
    source = f"{TASKS} task pair(both: [2]i16) void {{}} fn plain() void {{}}"
    source += f"comptime {{ {call}; }}"
    assert message in refusal(tmp_path, source)


CLASH = (
    TASKS
    + """comptime {
  BEFORE
  @bind_local_task(local, @get_local_task_id(10));
  @bind_control_task(control, @get_control_task_id(10));
}"""
)


def test_control_and_local_tasks_share_their_ids(tmp_path: Path) -> None:
    text = refusal(tmp_path, CLASH.replace("BEFORE", ""))
    assert "task id 10 is bound already, to local task 'local'" in text


def test_a_table_of_their_own_keeps_control_tasks_apart(tmp_path: Path) -> None:
    image = compile_pe(tmp_path, CLASH.replace("BEFORE", "@set_control_task_table();"))
    assert image.has_separate_control_table


def test_queues_without_a_data_task_begin_blocked(tmp_path: Path) -> None:
    binding = "@bind_data_task(data, @get_data_task_id(@get_input_queue(2)));"
    image = compile_pe(tmp_path, f"{TASKS} comptime {{ {binding} }}")
    assert image.start.blocked_queues == 0xFF & ~(1 << 2)


def test_colors_without_a_task_begin_blocked_on_wse2(tmp_path: Path) -> None:
    source = (
        TASKS
        + """comptime {
      @bind_data_task(data, @get_data_task_id(@get_color(4)));
      @bind_local_task(local, @get_local_task_id(10));
    }"""
    )
    image = compile_pe(tmp_path, source, Arch.WSE2)
    assert image.start.blocked == ALL_BITS & ~(1 << 4 | 1 << 10)


def test_tasks_may_begin_active_or_blocked(tmp_path: Path) -> None:
    source = (
        TASKS
        + """
    const id = @get_local_task_id(9);
    comptime { @bind_local_task(local, id); @activate(id); @block(id); }"""
    )
    start = compile_pe(tmp_path, source).start
    assert (start.active, start.blocked) == (1 << 9, 1 << 9)


def test_activation_at_run_time_marks_the_id(tmp_path: Path) -> None:
    source = (
        TASKS
        + """
    const id = @get_local_task_id(9);
    comptime { @bind_local_task(local, id); }
    fn main() void { @activate(id); @block(id); }"""
    )
    pe = ran(tmp_path, source)
    assert (pe.box[mailbox.ACTIVE], pe.box[mailbox.BLOCKED]) == (1 << 9, 1 << 9)


ACTIVATIONS = (
    TASKS
    + """
const in = @get_dsd(fabin_dsd, .{ .extent = 4, .input_queue = @get_input_queue(3) });
var to: [4]u32;
const to_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &to, .extent = 4 });
comptime {
  @initialize_queue(@get_input_queue(3), .{ .color = @get_color(3) });
  @bind_local_task(local, @get_local_task_id(9));
  @bind_control_task(control, @get_control_task_id(40));
  @export_symbol(main);
}
"""
)


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        (
            "@activate(local)",
            "@activate takes an id, 'local' is the name of a task",
            "name the id that the task is bound to: local task id 9",
        ),
        ("@block(local)", "@block takes an id, 'local' is the name of a task", "local task id 9"),
        ("@unblock(data)", "@unblock takes an id", "name the id that the task is bound to"),
        ("@activate(main)", "'main' is the name of a function", "bind it to an id, and name that"),
        (
            "@mov32(to_dsd, in, .{ .async = true, .unblock = control })",
            "only data and local tasks can be unblocked",
            "unblock the input queue that its wavelets come by",
        ),
    ],
)
def test_the_name_of_a_task_is_no_id(tmp_path: Path, call: str, message: str, remedy: str) -> None:
    found = refusal(tmp_path, f"{ACTIVATIONS} fn main() void {{ {call}; }}", exports=MAIN)
    assert message in found
    assert remedy in found


def test_the_name_of_a_task_is_no_id_before_the_start(tmp_path: Path) -> None:
    source = f"{TASKS} comptime {{ @bind_local_task(local, @get_local_task_id(9)); "
    assert "@activate takes an id" in refusal(tmp_path, source + "@activate(local); }")


def test_blocking_a_data_task_of_wse3_blocks_its_queue(tmp_path: Path) -> None:
    source = (
        TASKS
        + """
    const id = @get_data_task_id(@get_input_queue(3));
    comptime { @bind_data_task(data, id); }
    fn main() void { @block(id); }"""
    )
    pe = ran(tmp_path, source)
    assert (pe.box[mailbox.BLOCKED], pe.box[mailbox.BLOCKED_QUEUES]) == (0, 1 << 3)


def test_an_unbound_task_cannot_be_activated(tmp_path: Path) -> None:
    source = (
        TASKS
        + """
    var buffer: [4]u32;
    const fifo = @allocate_fifo(buffer, .{ .activate_push = local });
    comptime { const used = fifo; }"""
    )
    assert "'local' is bound to no task id" in refusal(tmp_path, source)


def test_queues_are_bound_to_colors(tmp_path: Path) -> None:
    source = """comptime {
      @initialize_queue(@get_input_queue(2), .{ .color = @get_color(5) });
      @initialize_queue(@get_output_queue(3), .{ .color = @get_color(6) });
    }"""
    assert compile_pe(tmp_path, source).queues == (
        QueueBinding(True, 2, 5),
        QueueBinding(False, 3, 6),
    )


SET_ON_ONE_WAY = """
var n: i16 = 0;
fn main() void {
  var i: i16;
  var sign: i16;
  if (n < 0) { sign = -1; } else { sign = 1; }
  while (n < 4) : (n += 1) {
    if (n == 0) { i = 0; }
    i += sign;
  }
}
"""


def test_a_local_that_is_set_on_some_way_to_its_use_is_no_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, SET_ON_ONE_WAY + EXPORT_MAIN, Arch.WSE3, MAIN) == ()


QUEUE_IN_USE = """
const out = @get_dsd(fabout_dsd, .{
  .extent = 1, .fabric_color = @get_color(6), .output_queue = @get_output_queue(3) });
fn main() void { @mov32(out, 7); }
"""


@pytest.mark.parametrize(("arch", "number"), [(Arch.WSE2, 0), (Arch.WSE3, 1)])
def test_a_queue_without_a_color_is_a_warning_on_wse3(
    tmp_path: Path, arch: Arch, number: int
) -> None:
    text = "output_queue 3 is used and bound to no color, which wse3 needs"
    warnings = warnings_of(tmp_path, QUEUE_IN_USE + EXPORT_MAIN, arch, MAIN)
    assert sum(text in one for one in warnings) == number


BLOCKED = "fn main() void { @unblock(@get_local_task_id(NUMBER)); }"
OTHER_TASK = "task other() void {} comptime { @bind_local_task(other, @get_local_task_id(11)); }"


@pytest.mark.parametrize(("number", "is_told"), [(10, True), (11, False), (29, False)])
def test_an_id_that_no_task_of_the_program_has_is_told_where_it_is_unblocked(
    tmp_path: Path, number: int, *, is_told: bool
) -> None:
    source = BLOCKED.replace("NUMBER", str(number)) + OTHER_TASK
    told = warnings_of(tmp_path, source + EXPORT_MAIN, Arch.WSE3, MAIN)
    text = "@unblock names local task id 10, and no task is bound to it"
    assert any(text in one and "(ids with a task: 11)" in one for one in told) == is_told
    assert len(told) == is_told


def test_a_queue_is_initialized_once(tmp_path: Path) -> None:
    call = "@initialize_queue(@get_input_queue(2), .{ .color = @get_color(5) });"
    text = refusal(tmp_path, f"comptime {{ {call} {call} }}")
    assert "input_queue 2 was initialized already" in text


def test_output_queues_need_no_color_on_wse2_only(tmp_path: Path) -> None:
    source = "comptime { @initialize_queue(@get_output_queue(3)); }"
    assert compile_pe(tmp_path, source, Arch.WSE2).queues == ()
    assert "output_queue 3 needs a color on wse3" in refusal(tmp_path, source)


def test_descriptors_bind_input_queues_on_wse2(tmp_path: Path) -> None:
    source = """export var d = @get_dsd(fabin_dsd, .{
      .fabric_color = @get_color(7), .input_queue = @get_input_queue(4), .extent = 1 });"""
    assert compile_pe(tmp_path, source, Arch.WSE2).queues == (QueueBinding(True, 4, 7),)
    assert compile_pe(tmp_path, source, Arch.WSE3).queues == ()


def test_a_color_that_control_tasks_listen_to_has_a_queue_on_wse2(tmp_path: Path) -> None:
    source = (
        TASKS
        + """comptime {
      @bind_control_task(control, @get_control_task_id(40));
      @unblock(@get_color(5));
    }"""
    )
    first, *others = compile_pe(tmp_path, source, Arch.WSE2).queues
    assert first == QueueBinding(True, 7, 5, is_chosen=True)
    assert {binding.queue for binding in others} == {6}


def test_a_fifo_lies_over_its_array(tmp_path: Path) -> None:
    source = (
        TASKS
        + """
    var buffer: [12]f32;
    const fifo = @allocate_fifo(buffer, .{ .activate_pop = local });
    comptime { @bind_local_task(local, @get_local_task_id(9)); const used = fifo; }"""
    )
    (fifo,) = compile_pe(tmp_path, source).fifos
    assert (fifo.symbol, fifo.num_words, fifo.element_words) == ("buffer", 24, 2)
    assert (fifo.activate_pop, fifo.activate_push) == (9, -1)


def test_a_fifo_of_bools_is_an_error(tmp_path: Path) -> None:
    source = "var buffer: [12]bool; const f = @allocate_fifo(buffer); comptime { const u = f; }"
    assert "an array of 16-bit or 32-bit numbers" in refusal(tmp_path, source)


DSRS = """
const in = @get_dsr(dsr_src1, 3);
const out = @get_dsr(dsr_dest, 2);
var a: [4]u16;
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const in_dsd = @get_dsd(fabin_dsd, .{ .extent = 4, .input_queue = @get_input_queue(1) });
"""


def test_a_register_is_loaded_before_the_start(tmp_path: Path) -> None:
    source = DSRS + "comptime { @load_to_dsr(in, a_dsd, .{ .save_address = true }); }"
    (load,) = compile_pe(tmp_path, source).dsrs
    assert (load.file, load.number, load.options) == (DsrFile.SOURCE1, 3, Option.SAVE_ADDRESS)


def test_a_register_is_loaded_at_run_time(tmp_path: Path) -> None:
    pe = Pe(tmp_path, DSRS + "fn main() void { @load_to_dsr(in, in_dsd, .{ .async = true }); }")
    assert pe.start() is Outcome.SUSPENDED
    assert pe.box[mailbox.REQUEST] == Request.LOAD_DSR
    assert pe.box[mailbox.OPERATION] == DsrFile.SOURCE1 << 8 | 3
    assert pe.box[mailbox.OPTIONS] == Option.ASYNC


def test_operations_take_registers_with_their_file(tmp_path: Path) -> None:
    pe = Pe(tmp_path, DSRS + "fn main() void { @mov16(out, in); }")
    assert pe.start() is Outcome.SUSPENDED
    source = mailbox.OPERANDS + mailbox.OPERAND_WORDS
    assert pe.box[mailbox.OPERANDS + 1] == DsrFile.DESTINATION << 8 | 2
    assert pe.box[source + 1] == DsrFile.SOURCE1 << 8 | 3


def test_a_fabric_input_cannot_be_a_destination_register(tmp_path: Path) -> None:
    source = DSRS + "comptime { @load_to_dsr(out, in_dsd); }"
    assert "a fabin_dsd cannot be loaded to this DSR" in refusal(tmp_path, source)


def test_handlers_are_entries(tmp_path: Path) -> None:
    source = """
    fn torn() void {}
    fn empty() void {}
    comptime {
      @set_teardown_handler(torn, @get_color(5));
      @set_empty_queue_handler(empty, @get_output_queue(2));
    }"""
    image = compile_pe(tmp_path, source)
    assert image.teardown_handlers == ((5, 0),)
    assert image.empty_queue_handlers == ((10, 1),)


def test_registers_are_written_before_the_start(tmp_path: Path) -> None:
    source = "comptime { @set_config(0x7e00, 42); @set_config(0x7e00, @get_config(0x7e00) + 3); }"
    (write,) = compile_pe(tmp_path, source).registers
    assert (write.address, write.value) == (0x7E00, 45)


def test_registers_are_requests_at_run_time(tmp_path: Path) -> None:
    pe = Pe(tmp_path, "fn main() void { @set_config(0x7e00, 7); }")
    assert pe.start() is Outcome.SUSPENDED
    assert (pe.box[mailbox.REQUEST], pe.box[mailbox.OPERATION]) == (
        Request.WRITE_REGISTER,
        0x7E00,
    )


def test_exported_names_must_be_known_to_the_layout(tmp_path: Path) -> None:
    source = "var a: f32; comptime { @export_symbol(a); }"
    assert "no name 'a' was exported in the layout" in refusal(tmp_path, source)


def test_exported_types_must_agree_with_the_layout(tmp_path: Path) -> None:
    source = "var main: f32; comptime { @export_symbol(main); }"
    mismatch = "'main' is 'fn() void' in the layout, 'f32' here"
    assert mismatch in refusal(tmp_path, source, exports=MAIN)


def test_an_exported_function_that_differs_is_shown_beside_the_layouts(tmp_path: Path) -> None:
    source = "fn main(n: i16) void {} comptime { @export_symbol(main); }"
    mismatch = "'main' is 'fn() void' in the layout, 'fn(i16) void' here"
    assert mismatch in refusal(tmp_path, source, exports=MAIN)


def test_an_array_is_exported_by_a_pointer_to_it(tmp_path: Path) -> None:
    source = 'var a: [4]f32; comptime { @export_symbol(a, "a"); }'
    found = refusal(tmp_path, source, exports='@export_name("a", [*]f32, true);')
    assert "export a pointer to the array: var a_ptr: [*]f32 = &a;" in found


ADVERTISED = """
var a: u32 = 70000; var b: u32 = 5; var c = [2]f32{ 1.0, 2.0 }; var p: [*]f32 = &c;
var value: u32; var first: u16;
comptime { @export_symbol(a); @export_symbol(b); @export_symbol(p); @export_symbol(main); }
fn main() void {
  const b_id: u16 = @get_symbol_id(b);
  var id = b_id;
  value = @get_symbol_value(u32, id - 1);
  id = @get_symbol_id(p);
  first = @get_tensor_ptr(id)[1];
}
"""


def test_advertised_variables_are_found_by_their_ids(tmp_path: Path) -> None:
    names = '@export_name("a", u32, true); @export_name("b", u32, true);'
    names += '@export_name("p", [*]f32, true);'
    pe = Pe(tmp_path, ADVERTISED, exports=names + MAIN)
    assert pe.start() is Outcome.FINISHED
    assert pe.read("value", "u4").tolist() == [70000]
    assert pe.read("first", "u2").tolist() == [0x3F80]


def test_a_name_of_the_host_may_differ_from_the_symbol(tmp_path: Path) -> None:
    source = 'var a: [4]f32; var p: [*]f32 = &a; comptime { @export_symbol(p, "A"); }'
    image = compile_pe(tmp_path, source, exports='@export_name("A", [*]f32, true);')
    assert image.exported_symbols == (("A", "p"),)


def test_a_color_that_is_read_without_naming_a_queue_gets_a_free_one_on_wse2(
    tmp_path: Path,
) -> None:
    source = """var x: [2]f32;
    const named = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = @get_color(9),
                                         .input_queue = @get_input_queue(7) });
    const nameless = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = @get_color(5) });
    task local() void {
      @fmovs(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> x[i] }), named);
      @fmovs(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> x[i] }), nameless);
    }
    comptime { @bind_local_task(local, @get_local_task_id(5)); }"""
    assert compile_pe(tmp_path, source, Arch.WSE2).queues == (
        QueueBinding(True, 7, 9),
        QueueBinding(True, 6, 5, is_chosen=True),
    )
