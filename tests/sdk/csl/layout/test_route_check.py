"""Routes that cannot be meant, found in the whole layout before it runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from tests.examples import examples

SENDER = """
const out = @get_dsd(fabout_dsd, .{
  .extent = 1, .fabric_color = @get_color(3), .output_queue = @get_output_queue(2) });
fn main() void { @mov32(out, @as(u32, 1)); }
comptime { @export_symbol(main); }
"""
READER = """
var x: [1]u32;
const in = @get_dsd(fabin_dsd, .{
  .extent = 1, .fabric_color = @get_color(3), .input_queue = @get_input_queue(2) });
fn main() void { @mov32(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> x[i] }), in); }
comptime { @export_symbol(main); }
"""
IDLE = "fn main() void {} comptime { @export_symbol(main); }"
HALVES = SENDER.replace("@mov32(out, @as(u32, 1))", "@mov16(out, @as(u16, 1))")
FLOATS = SENDER.replace("@mov32(out, @as(u32, 1))", "@fmovs(out, @as(f32, 1.0))")
CONTROL = FLOATS.replace(".extent = 1", ".extent = 1, .control = true")
TAKER = """
task take(ARGUMENTS) void {}
fn main() void {}
comptime {
  @export_symbol(main);
  @bind_data_task(take, @get_data_task_id(@get_color(3)));
}
"""
TAKERS = {"1": "a: u16", "2": "a: u16, b: u16", "4": "a: f32"}
FILES = {"S": SENDER, "F": FLOATS, "H": HALVES, "C": CONTROL, "R": READER, "I": IDLE} | {
    name: TAKER.replace("ARGUMENTS", arguments) for name, arguments in TAKERS.items()
}
STEPS = {"WEST": (-1, 0), "EAST": (1, 0), "SOUTH": (0, 1), "NORTH": (0, -1)}
BACK = {"WEST": "EAST", "EAST": "WEST", "SOUTH": "NORTH", "NORTH": "SOUTH"}
Routes = dict[tuple[int, int], tuple[list[str], list[str]]]


def warnings_of(
    folder: Path, code: list[str], routes: Routes, *more: str, is_strict: bool = False
) -> tuple[str, ...]:
    """What is said of rows of PEs; `routes` are those of color 3, by column and row."""
    lines = [f"@set_rectangle({len(code[0])}, {len(code)});", '@export_name("main", fn()void);']
    for y, row in enumerate(code):
        lines += [f'@set_tile_code({x}, {y}, "{kind}.csl");' for x, kind in enumerate(row)]
    for (x, y), (rx, tx) in routes.items():
        sides = f".rx = .{{ {', '.join(rx)} }}, .tx = .{{ {', '.join(tx)} }}"
        config = f"{{ .routes = .{{ {sides} }} }}"
        lines.append(f"@set_color_config({x}, {y}, @get_color(3), .{config});")
    (folder / "layout.csl").write_text("layout {\n" + "\n".join((*lines, *more)) + "\n}\n")
    for name, text in FILES.items():
        (folder / f"{name}.csl").write_text(text)
    options = CompileOptions(arch=Arch.WSE2, is_strict=is_strict)
    return build_program(folder / "layout.csl", options).warnings


SEND = (["RAMP"], ["EAST"])
TAKE = (["WEST"], ["RAMP"])


def test_a_sender_and_a_reader_are_no_matter(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, ["SR"], {(0, 0): SEND, (1, 0): TAKE}) == ()


@pytest.mark.parametrize(
    ("routes", "message", "remedy"),
    [
        ({(0, 0): SEND}, "and PE (1, 0) has no route for it", "add WEST to its .rx there"),
        (
            {(0, 0): SEND, (1, 0): (["NORTH"], ["RAMP"])},
            "color 3 leaves PE (0, 0) to the EAST, and PE (1, 0) accepts it from NORTH",
            "take EAST out of the .tx of PE (0, 0)",
        ),
    ],
)
def test_a_hop_that_the_next_pe_does_not_accept_is_a_warning(
    tmp_path: Path, routes: Routes, message: str, remedy: str
) -> None:
    (warning,) = warnings_of(tmp_path, ["SR"], routes)
    assert message in warning
    assert remedy in warning
    assert "layout.csl:" in warning


def test_a_core_that_never_reads_what_comes_is_a_warning(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, ["SI"], {(0, 0): SEND, (1, 0): TAKE})
    assert "color 3 reaches the core of PE (1, 0), whose code never reads it" in warning


def test_wavelets_that_come_round_are_a_warning(tmp_path: Path) -> None:
    ring: Routes = {
        (0, 0): (["RAMP", "SOUTH"], ["EAST"]),
        (1, 0): (["WEST"], ["SOUTH"]),
        (1, 1): (["NORTH"], ["WEST"]),
        (0, 1): (["EAST"], ["NORTH"]),
    }
    (warning,) = warnings_of(tmp_path, ["SI", "II"], ring)
    assert "wavelets of color 3 circulate for ever through PE (0, 0)" in warning


def test_what_nobody_sends_is_no_matter(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, ["IR"], {(0, 0): SEND}) == ()


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({(0, 0): (["RAMP"], ["WEST"])}, "leaves PE (0, 0) to the WEST, where the rectangle ends"),
        ({(1, 0): TAKE}, "PE (0, 0) sends color 3, and no router takes it from RAMP"),
    ],
)
def test_strict_minds_what_official_programs_do(
    tmp_path: Path, routes: Routes, message: str
) -> None:
    assert warnings_of(tmp_path, ["SR"], routes) == ()
    (warning,) = warnings_of(tmp_path, ["SR"], routes, is_strict=True)
    assert message in warning


def test_a_color_with_switches_takes_all_its_positions(tmp_path: Path) -> None:
    switched = (
        "@set_color_config(1, 0, @get_color(3), .{ .routes = .{ .rx = .{ NORTH }, "
        ".tx = .{ RAMP } }, .switches = .{ .pos1 = .{ .rx = WEST } } });"
    )
    assert warnings_of(tmp_path, ["SR"], {(0, 0): SEND}, switched) == ()


@pytest.mark.parametrize("code", ["F2", "F4", "H1", "C1"])
def test_tasks_take_all_bits_of_what_is_sent(tmp_path: Path, code: str) -> None:
    assert warnings_of(tmp_path, [code], {(0, 0): SEND, (1, 0): TAKE}) == ()


def test_a_task_of_half_of_what_is_sent_is_told_with_both_sizes(tmp_path: Path) -> None:
    (told,) = warnings_of(tmp_path, ["F1"], {(0, 0): SEND, (1, 0): TAKE})
    assert "data task 'take' of PE (1, 0) takes 16 bits of a wavelet of color 3" in told
    assert "and @fmovs sends floats of 32" in told


def test_an_integer_may_be_half_for_a_filter(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, ["S1"], {(0, 0): SEND, (1, 0): TAKE}) == ()


def test_where_some_code_sends_halves_nobody_is_told_of_the_rest(tmp_path: Path) -> None:
    through = ["WEST", "RAMP"], ["EAST"]
    routes: Routes = {(0, 0): SEND, (1, 0): through, (2, 0): TAKE}
    assert warnings_of(tmp_path, ["FH1"], routes) == ()


def followed(code: list[str], routes: Routes) -> set[str]:
    """What becomes of one wavelet of each sender, followed router by router."""
    events: set[str] = set()
    starts = [(x, y) for y, row in enumerate(code) for x, kind in enumerate(row) if kind == "S"]
    for start in starts:
        if "RAMP" in routes.get(start, ([], []))[0]:
            events.update(outcomes(code, routes, start, ()))
    return events


def outcomes(
    code: list[str], routes: Routes, pe: tuple[int, int], path: tuple[tuple[int, int], ...]
) -> Iterator[str]:
    if pe in path:
        yield "route-circle"
        return
    for side in routes[pe][1]:
        if side == "RAMP":
            if code[pe[1]][pe[0]] != "R":
                yield "route-without-reader"
            continue
        other = pe[0] + STEPS[side][0], pe[1] + STEPS[side][1]
        if not (0 <= other[0] < len(code[0]) and 0 <= other[1] < len(code)):
            continue
        if BACK[side] in routes.get(other, ([], []))[0]:
            yield from outcomes(code, routes, other, (*path, pe))
        else:
            yield "route-broken"


SIDES = st.lists(st.sampled_from([*STEPS, "RAMP"]), min_size=1, max_size=2, unique=True)
PLACES = [(x, y) for y in range(2) for x in range(3)]
ROUTES = st.dictionaries(st.sampled_from(PLACES), st.tuples(SIDES, SIDES))
CODE = st.lists(st.text("SRI", min_size=3, max_size=3), min_size=2, max_size=2)


@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CODE, ROUTES)
def test_what_is_said_is_what_becomes_of_a_wavelet(
    tmp_path: Path, code: list[str], routes: Routes
) -> None:
    said = warnings_of(tmp_path, code, routes)
    kinds = {line.partition("[csl-")[2].partition("]")[0] for line in said}
    assert kinds == followed(code, routes)


MEMCPY = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  COLORS
}
"""
RESERVED = """
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
task late() void {}
comptime { CODE }
"""


@pytest.mark.parametrize(
    ("colors", "code", "what"),
    [
        ("", "@bind_local_task(late, @get_local_task_id(27));", "local task id 27"),
        ("", "@bind_control_task(late, @get_control_task_id(35));", "control task id 35"),
        (
            "",
            "@initialize_queue(@get_input_queue(0), .{ .color = @get_color(1) });",
            "input_queue 0",
        ),
        (
            "@set_color_config(0, 0, @get_color(22), .{ .routes = .{ .rx = RAMP, .tx = RAMP } });",
            "",
            "color 22",
        ),
    ],
)
def test_what_memcpy_has_is_a_warning_and_refused_by_strict(
    tmp_path: Path, colors: str, code: str, what: str
) -> None:
    (tmp_path / "layout.csl").write_text(MEMCPY.replace("COLORS", colors))
    (tmp_path / "pe.csl").write_text(RESERVED.replace("CODE", code))
    options = CompileOptions(arch=Arch.WSE3, is_memcpy=True)
    warnings = build_program(tmp_path / "layout.csl", options).warnings
    assert f"{what} is reserved for memcpy" in "\n".join(warnings)
    strict = CompileOptions(arch=Arch.WSE3, is_memcpy=True, is_strict=True)
    with pytest.raises(OpenwaferError, match=f"{what} is reserved for memcpy"):
        build_program(tmp_path / "layout.csl", strict)


BOTH_WAYS = """
const in = @get_dsd(fabin_dsd, .{
  .extent = 4, .fabric_color = @get_color(3), .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{
  .extent = 4, .fabric_color = @get_color(4), .output_queue = @get_output_queue(QUEUE) });
var a: [4]u32; var n: u16;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
fn main() void {
  BEGIN
  @mov32(d, in, .{ .async = true });
  MIDDLE
  @mov32(out, d, .{ .async = true });
  END
}
comptime {
  @export_symbol(main);
  @initialize_queue(@get_input_queue(2), .{ .color = @get_color(3) });
  @initialize_queue(@get_output_queue(QUEUE), .{ .color = @get_color(4) });
}
"""


@pytest.mark.parametrize(
    ("queue", "branches", "is_told"),
    [(2, ("", "", ""), True), (3, ("", "", ""), False), (2, ("if (n > 0) {", "} else {", "}"), 0)],
)
def test_a_receipt_and_a_send_of_one_way_that_share_a_microthread_are_a_warning(
    tmp_path: Path, queue: int, branches: tuple[str, str, str], is_told: bool
) -> None:
    source = BOTH_WAYS.replace("QUEUE", str(queue))
    for place, text in zip(("BEGIN", "MIDDLE", "END"), branches, strict=True):
        source = source.replace(place, text)
    layout = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); EXPORT }'
    (tmp_path / "layout.csl").write_text(
        layout.replace("EXPORT", '@export_name("main", fn()void);')
    )
    (tmp_path / "pe.csl").write_text(source)
    said = build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3)).warnings
    told = [line for line in said if "share microthread 2" in line]
    assert len(told) == int(is_told)


OWN_SENDER = """
param own: color;
const queue = @get_output_queue(2);
const out = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = queue });
fn main() void { @mov32(out, @as(u32, 1)); }
comptime { @initialize_queue(queue, .{ .color = own }); @export_symbol(main); }
"""
TWO_FILES = """
layout {
  @set_rectangle(5, 1);
  for (@range(u16, 5)) |x| {
    const params = .{ .own = @get_color(x % 3) };
    if (x < 3) { @set_tile_code(x, 0, "a.csl", params); }
    else { @set_tile_code(x, 0, "b.csl", params); }
  }
  @export_name("main", fn()void);
}
"""


def test_outputs_whose_colors_differ_from_pe_to_pe_are_looked_at_file_by_file(
    tmp_path: Path,
) -> None:
    for name, text in {"a": OWN_SENDER, "b": OWN_SENDER, "layout": TWO_FILES}.items():
        (tmp_path / f"{name}.csl").write_text(text)
    built = build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3))
    assert len(built.images) == 5
