"""The layout block: rectangle, code of PEs, routes, names for the host."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import (
    ColorConfig,
    Direction,
    Filter,
    FilterKind,
    PopMode,
    Switches,
    SwitchPosition,
)

WEST, EAST, RAMP = (1 << side for side in (Direction.WEST, Direction.EAST, Direction.RAMP))
ONE = '@set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl");'
WSE3 = CompileOptions(arch=Arch.WSE3)


def build(folder: Path, block: str, options: CompileOptions = WSE3, pe: str = "") -> Program:
    (folder / "layout.csl").write_text(f"param n: i16 = 2;\nlayout {{ {block} }}")
    (folder / "pe.csl").write_text(f"param id: i16 = 0;\n{pe}")
    return build_program(folder / "layout.csl", options)


def refusal(folder: Path, block: str, options: CompileOptions = WSE3, pe: str = "") -> str:
    with pytest.raises(OpenwaferError) as caught:
        build(folder, block, options, pe)
    return str(caught.value)


def test_pes_with_the_same_params_share_an_image(tmp_path: Path) -> None:
    block = """@set_rectangle(3, 2);
    for (@range(i16, 3)) |x| {
      for (@range(i16, 2)) |y| { @set_tile_code(x, y, "pe.csl", .{ .id = x % 2 }); }
    }"""
    program = build(tmp_path, block, pe="export var kept: i16 = id;")
    assert program.image_of.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert len(program.images) == 2


def test_params_of_the_command_line_reach_the_layout(tmp_path: Path) -> None:
    block = """@set_rectangle(n, 1);
    for (@range(i16, n)) |x| { @set_tile_code(x, 0, "pe.csl"); }"""
    options = CompileOptions(arch=Arch.WSE3, params=(("n", "0x5"),))
    assert build(tmp_path, block, options).width == 5


def test_a_param_that_the_code_lacks_is_told_where_the_layout_gives_it(tmp_path: Path) -> None:
    block = '@set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{ .ide = 3 });'
    (told,) = build(tmp_path, block).warnings
    assert "'pe.csl' has no param 'ide'" in told
    assert "layout.csl:2:" in told
    assert "did you mean 'id'? (its params: id)" in told


def test_a_param_of_the_command_line_that_the_layout_lacks_is_told(tmp_path: Path) -> None:
    options = CompileOptions(arch=Arch.WSE3, params=(("width", "5"),))
    (told,) = build(tmp_path, ONE, options).warnings
    assert "'layout.csl' has no param 'width', which the command line gives" in told
    assert "declare it there with 'param width;' (its params: n)" in told


def test_a_param_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    options = CompileOptions(params=(("n", "five"),))
    assert "the value is no integer, float or bool" in refusal(tmp_path, ONE, options)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("", "does not call @set_rectangle"),
        ("@set_rectangle(1, 1);", "PE (0, 0) of the 1 x 1 rectangle has no code"),
        ("@set_rectangle(2, 2);", "PE (0, 0) and 3 more PEs of the 2 x 2 rectangle have no code"),
        ("@set_rectangle(0, 1);", "a rectangle of 0 x 1 has no PE"),
        (f"{ONE} @set_rectangle(1, 1);", "@set_rectangle was called already"),
        (f'{ONE} @set_tile_code(0, 0, "pe.csl");', "PE (0, 0) has its code already"),
        (f'{ONE} @set_tile_code(1, 0, "pe.csl");', "PE (1, 0) lies outside of the 1 x 1"),
        ('@set_tile_code(0, 0, "pe.csl");', "comes before @set_rectangle"),
        (
            '@set_rectangle(1, 1); @set_tile_code(0, 0, "no.csl");',
            "cannot find the imported file 'no.csl'",
        ),
        (f'{ONE} @export_name("A", [4]f32, true);', "of type '[4]f32' cannot be exported"),
        (f'{ONE} @export_name("A", f32);', "say whether the host may write 'A'"),
        (
            f'{ONE} @export_name("A", f32, true); @export_name("A", f32, true);',
            "'A' is exported already",
        ),
    ],
)
def test_a_wrong_layout_is_explained(tmp_path: Path, block: str, message: str) -> None:
    assert message in refusal(tmp_path, block)


def test_names_for_the_host_are_numbered(tmp_path: Path) -> None:
    exports = '@export_name("A", [*]f32, true); @export_name("f", fn(i16, f32)void);'
    first, second = build(tmp_path, ONE + exports).host_names
    assert (first.id, first.type, first.is_mutable, first.inputs) == (1, "[*]f32", True, None)
    assert (second.id, second.type) == (2, "void")
    assert [kind for _, kind in second.inputs or ()] == ["i16", "f32"]


def config(folder: Path, fields: str, color: int = 3, arch: Arch = Arch.WSE3) -> ColorConfig:
    call = f"@set_color_config(0, 0, @get_color({color}), .{{ {fields} }});"
    program = build(folder, ONE + call, CompileOptions(arch=arch))
    ((number, found),) = program.routes[int(program.routes_of[0, 0])]
    assert number == color
    return found


def test_routes_are_masks_of_directions(tmp_path: Path) -> None:
    found = config(tmp_path, ".routes = .{ .rx = .{WEST}, .tx = .{RAMP, EAST} }")
    assert found == ColorConfig(WEST, RAMP | EAST)


def test_one_direction_needs_no_braces(tmp_path: Path) -> None:
    found = config(tmp_path, ".routes = .{ .rx = RAMP, .tx = EAST }")
    assert found == ColorConfig(RAMP, EAST)


def test_routes_may_be_bits_of_the_register(tmp_path: Path) -> None:
    switches = ".switches = .{ .pos1 = 0x200, .pos2 = 0x010, .pos3 = 0 }"
    found = config(tmp_path, f".routes = 0x020 | 0x012, {switches}")
    assert (found.rx, found.tx) == (WEST, RAMP | EAST)
    assert found.switches is not None
    assert found.switches.positions == (SwitchPosition(rx=RAMP), SwitchPosition(tx=RAMP))


def test_switches_end_at_the_first_invalid_position(tmp_path: Path) -> None:
    fields = """.routes = .{ .rx = RAMP, .tx = EAST },
    .switches = .{ .pos1 = .{ .tx = WEST }, .pos2 = .{ .rx = WEST }, .pos3 = .{ .invalid = true },
      .current_switch_pos = 1, .ring_mode = true, .pop_mode = .{ .pop_on_advance = true } }"""
    positions = (SwitchPosition(tx=WEST), SwitchPosition(rx=WEST))
    expected = Switches(positions, 1, True, PopMode.POP_ON_ADVANCE)
    assert config(tmp_path, fields).switches == expected


def test_filters_keep_the_names_of_their_fields(tmp_path: Path) -> None:
    fields = """.routes = .{ .rx = WEST, .tx = RAMP },
    .filter = .{ .kind = .{ .range = true }, .min_idx = 3, .max_idx = 5 }"""
    expected = Filter(FilterKind.RANGE, min_index=3, max_index=5)
    assert config(tmp_path, fields).filter == expected


def test_color_swap_and_teardown_are_flags(tmp_path: Path) -> None:
    fields = ".routes = .{ .rx = WEST, .tx = RAMP, .color_swap_x = true }, .teardown = true"
    assert config(tmp_path, fields) == ColorConfig(WEST, RAMP, swap_x=True, is_torn_down=True)


def test_code_configures_the_pe_it_runs_on(tmp_path: Path) -> None:
    routes = ".{ .routes = .{ .rx = RAMP, .tx = EAST } }"
    pe = f"comptime {{ @set_local_color_config(@get_color(4), {routes}); }}"
    program = build(tmp_path, ONE, pe=pe)
    assert program.images[0].colors == ((4, ColorConfig(RAMP, EAST)),)


ROUTE = "@set_color_config(0, 0, @get_color(4), .{ .routes = .{ .rx = RAMP, .tx = EAST } });"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (".switches = .{}", "a color configuration needs 'routes'"),
        (".routes = .{ .rx = .{WEST, WEST}, .tx = RAMP }", "'rx' names WEST twice"),
        (".routes = .{ .rx = .{WEST, EAST}, .tx = RAMP }", "wse3 takes one direction"),
        (".routes = .{ .rx = 3, .tx = RAMP }", "expected an array or a tuple"),
        (
            ".routes = .{ .rx = WEST, .tx = RAMP }, .switches = .{ .pos1 = .{ .tx = EAST } }",
            "color 10 has no switches on wse3",
        ),
    ],
)
def test_a_wrong_configuration_is_explained(tmp_path: Path, fields: str, message: str) -> None:
    call = f"@set_color_config(0, 0, @get_color(10), .{{ {fields} }});"
    assert message in refusal(tmp_path, ONE + call)


def test_several_inputs_are_fine_on_wse2(tmp_path: Path) -> None:
    fields = ".routes = .{ .rx = .{WEST, EAST}, .tx = RAMP }"
    assert config(tmp_path, fields, arch=Arch.WSE2).rx == WEST | EAST


def test_a_color_is_configured_once_for_a_pe(tmp_path: Path) -> None:
    assert "color 4 of PE (0, 0) is configured already" in refusal(tmp_path, ONE + ROUTE + ROUTE)


def test_layout_and_code_do_not_configure_the_same_color(tmp_path: Path) -> None:
    routes = ".{ .routes = .{ .rx = RAMP, .tx = EAST } }"
    pe = f"comptime {{ @set_local_color_config(@get_color(4), {routes}); }}"
    assert "is configured by its code, too" in refusal(tmp_path, ONE + ROUTE, pe=pe)


def memcpy(dims: tuple[int, int] | None, offsets: tuple[int, int] | None) -> CompileOptions:
    return CompileOptions(arch=Arch.WSE3, fabric_dims=dims, fabric_offsets=offsets, is_memcpy=True)


def test_memcpy_needs_room_around_the_rectangle(tmp_path: Path) -> None:
    text = refusal(tmp_path, ONE, memcpy((7, 3), (4, 1)))
    assert "Fabric dimension must be at least 8-by-3" in text


def test_a_rectangle_that_does_not_fit_is_the_only_error(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError) as caught:
        build(tmp_path, ONE, memcpy((7, 3), (4, 1)))
    assert [d.code for d in caught.value.diagnostics] == ["csl-fabric-dims"]


def test_memcpy_needs_room_in_the_west(tmp_path: Path) -> None:
    text = refusal(tmp_path, ONE, memcpy((8, 3), (3, 1)))
    assert "The core must have --fabric-offsets=4+width_west_buf,1" in text


def test_the_least_fabric_is_taken_when_none_is_given(tmp_path: Path) -> None:
    program = build(tmp_path, ONE, memcpy(None, None))
    assert (program.fabric, program.offset) == ((8, 3), (4, 1))


def test_the_code_knows_the_rectangle(tmp_path: Path) -> None:
    pe = """comptime {
      const r = @get_rectangle();
      @comptime_assert(r.width == 1 and r.fabric.width == 8 and r.offsets.height == 1);
    }"""
    build(tmp_path, ONE, memcpy((8, 3), (4, 1)), pe)


def test_lines_printed_at_compile_time_are_handed_on(tmp_path: Path) -> None:
    program = build(tmp_path, ONE, pe='comptime { @comptime_print("id", id); }')
    assert len(program.printed) == 1
    assert "id" in program.printed[0]


STREAMS = """
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = 1, .height = 1, .MEMCPYH2D_1 = FIRST, .MEMCPYD2H_2 = SECOND });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
}"""
USER = """
param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
"""


@pytest.mark.parametrize(
    ("first", "second"), [("@get_color(5)", "@get_color(7)"), ("@as(i16, 5)", "@as(i16, 7)")]
)
def test_streams_of_memcpy_have_colors(tmp_path: Path, first: str, second: str) -> None:
    text = STREAMS.replace("FIRST", first).replace("SECOND", second)
    (tmp_path / "layout.csl").write_text(text)
    (tmp_path / "pe.csl").write_text(USER)
    program = build_program(tmp_path / "layout.csl", WSE3)
    assert dict(program.streams) == {"MEMCPYH2D_1": 5, "MEMCPYD2H_2": 7}


def test_errors_of_every_image_are_reported(tmp_path: Path) -> None:
    block = """@set_rectangle(2, 1);
    for (@range(i16, 2)) |x| { @set_tile_code(x, 0, "pe.csl", .{ .id = x }); }"""
    pe = 'comptime { @comptime_assert(id < 0, if (id == 0) "zero" else "one"); }'
    text = refusal(tmp_path, block, pe=pe)
    assert text.count("error[csl-") == 2
