"""<debug> and <simprint>: what programs record and print."""

import pytest

from openwafer.sdk.compat.debug_util import parse_trace
from tests.sdk.library import rig

TRACE = """
const trace = @import_module("<debug>", .{ .key = "all", .buffer_size = 64 });
const short = @import_module("<debug>", .{ .key = "short", .buffer_size = 3 });
fn main() void {
  trace.trace_bool(true);
  trace.trace_u8(200);
  trace.trace_i8(-100);
  trace.trace_u16(60000);
  trace.trace_i16(-30000);
  trace.trace_f16(1.5);
  trace.trace_u32(4000000000);
  trace.trace_i32(-2000000000);
  trace.trace_f32(0.1);
  trace.trace_string("odd");
  trace.trace_string("even");
  trace.trace_string("");
  trace.trace(@as(i16, -7));
  trace.trace(@as(f32, 2.5));
  trace.trace(false);
  short.trace_u16(1);
  short.trace_u16(2);
  finish();
}
"""


@pytest.fixture(scope="module")
def traced() -> rig.Device:
    return rig.run(TRACE)


def test_records_are_read_back_as_they_were_traced(traced: rig.Device) -> None:
    index = int(traced.read("$$csl_debug.all.buffer_index"))
    values = list(parse_trace(traced.read("$$csl_debug.all.buffer")[:index]))
    integers = [True, 200, -100, 60000, -30000, 1.5, 4000000000, -2000000000]
    assert values[:8] == integers
    assert values[8] == pytest.approx(0.1)
    assert values[9:] == ["odd", "even", "", -7, 2.5, False]


def test_a_full_buffer_keeps_what_it_has(traced: rig.Device) -> None:
    assert traced.read("$$csl_debug.short.buffer").tolist() == [0x48, 1, 0x48]


def test_a_timestamp_is_a_record_of_three_words() -> None:
    text = """const trace = @import_module("<debug>", .{ .key = "t", .buffer_size = 8 });
    const time = @import_module("<time>");
    fn main() void {
      time.enable_tsc();
      trace.trace_timestamp();
      trace.trace_timestamp();
      finish();
    }"""
    first, second = parse_trace(rig.run(text).read("$$csl_debug.t.buffer"))
    assert 0 < int(first) < int(second)


def printed(body: str) -> list[str]:
    return rig.run(f"""const simprint = @import_module("<simprint>");
    const off = @import_module("<simprint>", .{{ .enable = false }});
    fn main() void {{ {body} finish(); }}""").prints()


VALUES = [
    ('print_string("plain")', "plain"),
    ('print_string("cut\\x00off")', "cut"),
    ("print_u16_binary(42)", "0000000000101010"),
    ("print_u16_decimal(0)", "0"),
    ("print_u16_decimal(65535)", "65535"),
    ("print_u16_hex(0x2A)", "002A"),
    ("print_u32_binary(0x80000001)", "1" + 30 * "0" + "1"),
    ("print_u32_decimal(4294967295)", "4294967295"),
    ("print_u32_hex(0xBEEF)", "0000BEEF"),
    ("print_f16(42.0)", "42.0"),
    ("print_f16(-0.5)", "-0.5"),
    ("print_f32(3.25)", "3.25"),
    ("print_f32(0.0)", "0.0"),
    ("print_f32(1.0e10)", "1.0e10"),
    ("print_f32(-2.0e-6)", "-2.0e-6"),
    ("print_f32(0.999999999)", "1.0"),
]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return printed(
        " ".join(f'simprint.{call}; simprint.print_string("\\n");' for call, _ in VALUES)
    )


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_value_prints(lines: list[str], number: int) -> None:
    assert lines[number] == VALUES[number][1]


def test_a_format_puts_its_arguments_in_order() -> None:
    arguments = "@as(u16, 42), @as(u16, 42), @as(u16, 42), @as(f16, 42.0)"
    lines = printed(f'simprint.fmt("{{d}} {{X}} {{b}} {{f}}", .{{ {arguments} }});')
    assert lines == ["42 002A 0000000000101010 42.0"]


def test_a_doubled_brace_is_a_brace() -> None:
    assert printed('simprint.fmt("{{hello} {d}!", .{ @as(u32, 70000) });') == ["{hello} 70000!"]


def test_text_waits_for_the_end_of_its_line() -> None:
    body = 'simprint.fmt_no_nl("{d}", .{ @as(u16, 7) }); simprint.print_string(" b\\nrest");'
    assert printed(body) == ["7 b"]


def test_coordinates_come_first_where_they_are_asked_for() -> None:
    assert printed('simprint.fmt_with_coords("here", .{});') == ["PE(0,0): here"]


def test_a_module_that_is_disabled_prints_nothing() -> None:
    body = 'off.fmt("{d} {f}", .{ @as(u16, 1), @as(f32, 1.0) }); off.print_u16_hex(1);'
    assert printed(body + 'off.print_string("\\n"); off.fmt_with_coords("", .{});') == []


def test_a_long_line_is_printed_in_parts() -> None:
    assert printed(f'simprint.print_string("{"x" * 130}\\n");') == ["x" * 128, "xx"]


PRINTING = f"""
const simprint = @import_module("<simprint>");
const time = @import_module("<time>");
var when_0 = @zeros([3]u16);
var when_1 = @zeros([3]u16);
var when_2 = @zeros([3]u16);
fn main() void {{
  time.enable_tsc();
  time.get_timestamp(&when_0);
  simprint.print_string("{"x" * 100}");
  time.get_timestamp(&when_1);
  simprint.print_u16_decimal(54321);
  time.get_timestamp(&when_2);
  finish();
}}
"""


def test_text_takes_a_cycle_a_character_and_a_number_less_than_eighty_a_digit() -> None:
    device = rig.run(PRINTING)
    start, text, number = (int(device.read(f"when_{n}")[0]) for n in range(3))
    assert text - start < 100
    assert number - text < 5 * 80
