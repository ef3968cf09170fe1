"""What a run counts does not depend on who executes it, nor on what else is under way."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Simulator, SimulatorOptions, SlotState
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.program import Program

LAYOUT = """
layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl");
  @export_name("alone", fn() void); @export_name("alone_beside", fn() void);
  @export_name("several", fn() void); @export_name("several_beside", fn() void); }
"""
CODE = """
const red = @get_color(1);
const queue = @get_input_queue(2);
const from = @get_dsd(fabin_dsd, .{ .fabric_color = red, .extent = 1, .input_queue = queue });
var a = @zeros([64]f32);
var b = @zeros([64]f32);
var halves = @zeros([120]i16);
var word = @zeros([1]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 64 });
const b_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &b, .extent = 64 });
const apart_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{20} -> a[3 * i + 1] });
const halves_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{50} -> halves[i] });
const other_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{50} -> halves[i + 51] });
const sparse_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{50} -> halves[2 * i + 1] });
const word_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &word, .extent = 1 });
fn alone() void {
  for (@range(u16, 20)) |_| { @fmacs(a_dsd, a_dsd, b_dsd, 2.0); }
}
fn several() void {
  var total: f32 = 0.0;
  @fadds(&total, total, a_dsd);
  @fadds(b_dsd, b_dsd, apart_dsd);
  @mov16(halves_dsd, other_dsd);
  @add16(halves_dsd, sparse_dsd, other_dsd);
  @sub16(halves_dsd, halves_dsd, other_dsd);
  @fnegs(a_dsd, b_dsd);
  a[0] = total + b[1];
}
fn several_beside() void {
  @fmovs(word_dsd, from, .{ .async = true });
  several();
}
fn alone_beside() void {
  @fmovs(word_dsd, from, .{ .async = true });
  alone();
}
comptime {
  @initialize_queue(queue, .{ .color = red });
  @export_symbol(alone); @export_symbol(alone_beside);
  @export_symbol(several); @export_symbol(several_beside);
}
"""
NUM_ELEMENTS = 20 * 64
MAIN = 8


@pytest.fixture(scope="module", params=Arch)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("program")
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(CODE)
    return build_program(folder / "layout.csl", CompileOptions(arch=request.param))


def ran(program: Program, kind: EngineKind, function: str) -> Simulator:
    engine = build_engine(program, kind)
    options = SimulatorOptions(has_account=True)
    simulator = Simulator(program, engine.run_address, engine.element_address, options)
    entries = dict(program.images[0].exported_functions)
    simulator.start_command([entries[function]])
    simulator.run_until_idle()
    return simulator


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("function", ["alone", "alone_beside"])
def test_every_element_of_a_vector_operation_is_counted(
    program: Program, kind: EngineKind, function: str
) -> None:
    assert ran(program, kind, function).statistics().elements == NUM_ELEMENTS


@pytest.mark.parametrize("function", ["alone", "alone_beside"])
def test_time_does_not_depend_on_who_executes_code(program: Program, function: str) -> None:
    native, interpreted = (ran(program, kind, function).account() for kind in EngineKind)
    assert native.cycles.tolist() == interpreted.cycles.tolist()


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("function", ["alone", "several"])
def test_operations_take_the_same_time_beside_others(
    program: Program, kind: EngineKind, function: str
) -> None:
    alone, beside = (
        ran(program, kind, name).account() for name in (function, f"{function}_beside")
    )
    names = (SlotState.BEAT, SlotState.PAUSE, SlotState.TURN, SlotState.DRAIN, SlotState.LOST_BEAT)
    took = [account.of(0, 0)[MAIN, list(names)].tolist() for account in (alone, beside)]
    assert took[0] == took[1]
    added = beside.num_cycles - alone.num_cycles
    own = [SlotState.SCALAR, SlotState.SWITCH]
    assert np.diff([one.of(0, 0)[MAIN, own].sum() for one in (alone, beside)]) == added


def test_each_operation_has_a_counter_of_its_elements() -> None:
    assert 0 < min(VECTOR_OPS_BY_CODE) <= max(VECTOR_OPS_BY_CODE) < mb.KIND_COUNTS
