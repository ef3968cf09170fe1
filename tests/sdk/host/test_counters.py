"""What a run counts does not depend on who executes it, nor on what else is under way."""

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.engine import EngineKind, build_engine
from openwafer.sdk.program.program import Program

LAYOUT = """
layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl");
  @export_name("alone", fn() void); @export_name("beside", fn() void); }
"""
CODE = """
const red = @get_color(1);
const queue = @get_input_queue(2);
const from = @get_dsd(fabin_dsd, .{ .fabric_color = red, .extent = 1, .input_queue = queue });
var a = @zeros([64]f32);
var b = @zeros([64]f32);
var word = @zeros([1]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 64 });
const b_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &b, .extent = 64 });
const word_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &word, .extent = 1 });
fn alone() void {
  for (@range(u16, 20)) |_| { @fmacs(a_dsd, a_dsd, b_dsd, 2.0); }
}
fn beside() void {
  @fmovs(word_dsd, from, .{ .async = true });
  alone();
}
comptime {
  @initialize_queue(queue, .{ .color = red });
  @export_symbol(alone); @export_symbol(beside);
}
"""
NUM_ELEMENTS = 20 * 64


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("program")
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(CODE)
    return build_program(folder / "layout.csl", CompileOptions(arch=Arch.WSE3))


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("function", ["alone", "beside"])
def test_every_element_of_a_vector_operation_is_counted(
    program: Program, kind: EngineKind, function: str
) -> None:
    engine = build_engine(program, kind)
    simulator = Simulator(program, engine.run_address, engine.element_address)
    entries = dict(program.images[0].exported_functions)
    simulator.start_command([entries[function]])
    simulator.run_until_idle()
    assert simulator.statistics().elements == NUM_ELEMENTS
