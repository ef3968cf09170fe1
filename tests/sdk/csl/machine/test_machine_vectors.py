"""Vector operations: what they compute in memory, against numpy, and what they ask elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import OperandKind, Option, Outcome, Request
from tests.sdk.csl.machine.one_pe import MAIN, Pe, ran, refusal

MEMORY = """
var a = [4]TYPE{ LEFT };
var b = [4]TYPE{ RIGHT };
var to = @zeros([4]RESULT);
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> b[i] });
const to_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> to[i] });
const to_4d = @get_dsd(mem4d_dsd, .{ .tensor_access = |i,j|{2,2} -> to[2 * i + j] });
fn main() void { CALL; }
"""
DTYPES = {"f32": "f4", "f16": "f2", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4"}
Numbers = Sequence[float]
FLOATS = ([1.5, -2.25, 0.1, 3.0], [0.5, 4.0, -7.0, 0.3])
INTS = ([1, 700, 12, 9], [3, 2, 1, 15])


def memory(
    kind: str, call: str, *, result: str = "", values: tuple[Numbers, Numbers] = FLOATS
) -> str:
    texts = [", ".join(map(str, side)) for side in values]
    text = MEMORY.replace("TYPE", kind).replace("RESULT", result or kind)
    return text.replace("LEFT", texts[0]).replace("RIGHT", texts[1]).replace("CALL", call)


@pytest.mark.parametrize(
    ("kind", "op", "function"),
    [
        ("f32", "fadds", np.add),
        ("f32", "fsubs", np.subtract),
        ("f32", "fmuls", np.multiply),
        ("f32", "fmaxs", np.maximum),
        ("f16", "faddh", np.add),
        ("f16", "fsubh", np.subtract),
        ("f16", "fmulh", np.multiply),
        ("f16", "fmaxh", np.maximum),
    ],
)
def test_float_operations_compute_what_numpy_computes(
    tmp_path: Path, kind: str, op: str, function: np.ufunc
) -> None:
    pe = ran(tmp_path, memory(kind, f"@{op}(to_dsd, a_dsd, b_dsd)"))
    left, right = (np.array(side, DTYPES[kind]) for side in FLOATS)
    assert pe.read("to", DTYPES[kind]).tolist() == function(left, right).tolist()


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("add16", np.add),
        ("sub16", np.subtract),
        ("and16", np.bitwise_and),
        ("or16", np.bitwise_or),
        ("xor16", np.bitwise_xor),
        ("sll16", np.left_shift),
        ("slr16", np.right_shift),
        ("sar16", np.right_shift),
    ],
)
def test_integer_operations_compute_what_numpy_computes(
    tmp_path: Path, op: str, function: np.ufunc
) -> None:
    pe = ran(tmp_path, memory("u16", f"@{op}(to_dsd, a_dsd, b_dsd)", values=INTS))
    left, right = (np.array(side, "u2") for side in INTS)
    assert pe.read("to", "u2").tolist() == function(left, right).tolist()


@pytest.mark.parametrize(
    ("kind", "call", "expected"),
    [
        ("f32", "@fmovs(to_dsd, 2.5)", [2.5] * 4),
        ("f32", "@fnegs(to_dsd, a_dsd)", [-1.5, 2.25, -0.1, -3.0]),
        ("f32", "@fabss(to_dsd, a_dsd)", [1.5, 2.25, 0.1, 3.0]),
        ("f16", "@fmovh(to_dsd, b_dsd)", [0.5, 4.0, -7.0, 0.3]),
        ("f16", "@fnegh(to_dsd, b_dsd)", [-0.5, -4.0, 7.0, -0.3]),
    ],
)
def test_operations_of_one_source(
    tmp_path: Path, kind: str, call: str, expected: list[float]
) -> None:
    pe = ran(tmp_path, memory(kind, call))
    dtype = DTYPES[kind]
    assert pe.read("to", dtype).tolist() == np.array(expected, dtype).tolist()


def test_fmacs_rounds_once(tmp_path: Path) -> None:
    pe = ran(tmp_path, memory("f32", "@fmacs(to_dsd, a_dsd, b_dsd, 0.7)"))
    left, right = (np.array(side, "f4").astype("f8") for side in FLOATS)
    exact = (left + right * np.float64(np.float32(0.7))).astype("f4")
    assert pe.read("to", "f4").tolist() == exact.tolist()


def test_a_scalar_stands_for_any_source(tmp_path: Path) -> None:
    pe = ran(tmp_path, memory("f32", "@fsubs(to_dsd, 1.0, b_dsd)"))
    assert pe.read("to", "f4").tolist() == (np.float32(1) - np.array(FLOATS[1], "f4")).tolist()


def test_a_pointer_destination_takes_the_sum_from_the_scalar_on(tmp_path: Path) -> None:
    source = memory("f32", "@fadds(&sum, sum, a_dsd)") + "var sum: f32 = 10.0;"
    expected = np.float32(10)
    for value in np.array(FLOATS[0], "f4"):
        expected += value
    assert ran(tmp_path, source).read("sum", "f4")[0] == expected


def test_negative_numbers_are_scalars_of_16_bit_operations(tmp_path: Path) -> None:
    pe = ran(tmp_path, memory("i16", "@add16(to_dsd, a_dsd, -5)", values=INTS))
    assert pe.read("to", "i2").tolist() == [-4, 695, 7, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("@fadds(to_dsd, a_dsd)", "function expects 3 to 4 arguments, 2 provided"),
        ("@fadds(5.0, a_dsd, b_dsd)", "expected type 'a DSD, a DSR or *f32'"),
        ("@fadds(to_dsd, a_dsd, true)", "expected type 'a DSD, a DSR or f32', got: 'bool'"),
        ("@fadds(to_dsd, a_dsd, b_dsd, .{ .async = true })", "needs a fabric, FIFO or DSR operand"),
        ("@fadds(to_dsd, a_dsd, b_dsd, .{ .asink = true })", "no field 'asink' here"),
        ("@addc16(to_dsd, a_dsd, b_dsd)", "no documentation says where its carry comes from"),
        ("@fnorms(&a[0], 2.0)", "no documentation says what a normal number is"),
        ("@fmovs(to_4d, a_dsd, .{ .async = true })", "needs a fabric, FIFO or DSR operand"),
    ],
)
def test_a_wrong_call_is_explained(tmp_path: Path, call: str, message: str) -> None:
    assert message in refusal(
        tmp_path,
        memory("f32", call) + "comptime { @export_symbol(main); }",
        exports=MAIN,
    )


FABRIC = """
const in_dsd = @get_dsd(fabin_dsd, .{
  .fabric_color = @get_color(3), .input_queue = @get_input_queue(2), .extent = 4 });
const out_dsd = @get_dsd(fabout_dsd, .{
  .fabric_color = @get_color(4), .output_queue = @get_output_queue(3), .extent = 4 });
var data: [4]f32;
const data_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> data[i] });
const done_id = @get_local_task_id(9);
task done() void {}
comptime { @bind_local_task(done, done_id); }
fn main() void { CALL; }
"""


def requested(folder: Path, call: str, arch: Arch = Arch.WSE3) -> Pe:
    pe = Pe(folder, FABRIC.replace("CALL", call), arch)
    assert pe.start() is Outcome.SUSPENDED
    assert pe.box[mailbox.REQUEST] == Request.VECTOR
    return pe


def test_a_fabric_operand_makes_a_request(tmp_path: Path) -> None:
    pe = requested(tmp_path, "@fmovs(out_dsd, data_dsd)")
    assert pe.box[mailbox.OPERANDS] == OperandKind.DSD
    assert pe.box[mailbox.OPTIONS] == 0


def test_an_asynchronous_operation_names_what_it_activates(tmp_path: Path) -> None:
    pe = requested(tmp_path, "@fmovs(out_dsd, data_dsd, .{ .async = true, .activate = done })")
    assert pe.box[mailbox.OPTIONS] == Option.ASYNC
    assert pe.box[mailbox.ACTIVATE] == 9


def test_a_task_may_be_named_by_its_id(tmp_path: Path) -> None:
    pe = requested(tmp_path, "@fmovs(out_dsd, data_dsd, .{ .async = true, .unblock = done_id })")
    assert (pe.box[mailbox.ACTIVATE], pe.box[mailbox.UNBLOCK]) == (-1, 9)


def test_control_wavelets_may_end_an_operation(tmp_path: Path) -> None:
    options = ".{ .async = true, .on_control = .{ .activate = done } }"
    pe = requested(tmp_path, f"@fmovs(data_dsd, in_dsd, {options})")
    assert pe.box[mailbox.OPTIONS] == Option.ASYNC | Option.TERMINATE_ON_CONTROL
    assert pe.box[mailbox.CONTROL_ACTIVATE] == 9


def test_index_and_microthread_travel_with_the_request(tmp_path: Path) -> None:
    options = ".{ .async = true, .index = 6, .ut_id = @get_ut_id(5) }"
    pe = requested(tmp_path, f"@fmovs(out_dsd, data_dsd, {options})")
    assert (pe.box[mailbox.INDEX], pe.box[mailbox.MICROTHREAD]) == (6, 5)


def test_priority_is_a_number_from_low_to_high(tmp_path: Path) -> None:
    options = ".{ .async = true, .priority = .{ .high = true } }"
    pe = requested(tmp_path, f"@fmovs(out_dsd, data_dsd, {options})", Arch.WSE2)
    assert pe.box[mailbox.PRIORITY] == 2


def test_dfilt_drops_data(tmp_path: Path) -> None:
    pe = requested(tmp_path, "@dfilt(in_dsd, .{ .async = true })")
    assert pe.box[mailbox.OPTIONS] == Option.ASYNC | Option.FILTER


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("@fmovs(in_dsd, data_dsd)", "expected type 'a destination', got: 'fabin_dsd'"),
        ("@fmovs(data_dsd, out_dsd)", "expected type 'a source', got: 'fabout_dsd'"),
        ("@fadds(data_dsd, in_dsd, in_dsd)", "one fabin_dsd at most on wse3"),
        ("@fmovs(out_dsd, data_dsd, .{ .activate = done })", "add .async = true"),
        ("@dfilt(in_dsd, .{})", "@dfilt runs asynchronously only"),
        (
            "@fmovs(out_dsd, data_dsd, .{ .async = true, .activate = done, .unblock = done })",
            "activates or unblocks at its end, not both",
        ),
    ],
)
def test_a_wrong_fabric_operation_is_explained(tmp_path: Path, call: str, message: str) -> None:
    source = FABRIC.replace("CALL", call) + "comptime { @export_symbol(main); }"
    assert message in refusal(tmp_path, source, exports=MAIN)


def test_two_fabric_inputs_are_fine_on_wse2(tmp_path: Path) -> None:
    pe = requested(tmp_path, "@fadds(data_dsd, in_dsd, in_dsd)", Arch.WSE2)
    kinds = pe.box[mailbox.OPERANDS :: mailbox.OPERAND_WORDS][:3]
    assert kinds.tolist() == [OperandKind.DSD] * 3
