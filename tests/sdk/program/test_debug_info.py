"""What the program file says of the source, as a reader finds it that was made from its page."""

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind, build_engine
from openwafer.sdk.program import file
from openwafer.sdk.program.debug_info import Home
from openwafer.sdk.program.program import Program
from tests.sdk.door.small_program import small_program
from tests.sdk.program.debug_reader import DebugReader

EXAMPLES = Path(__file__).parents[3] / "examples" / "wafer"
LAYOUT = """
const red = @get_color(3);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .x = x, .c = red });
  }
  @export_name("a", [*]f32, true);
  @export_name("flags", [*]bool, true);
  @export_name("work", fn(i16) void);
}
"""
CODE = """
param memcpy_params: comptime_struct;
param x: u16;
param c: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const Mode = enum(u8) { off, slow = 4, fast };
const Point = struct { x: f32, y: i16, mode: Mode };
const Bits = packed struct { low: u4, sign: i3, on: bool };
const half: f32 = 0.5;
const words = [3]u16 { 7, 8, 9 };
const in_queue = @get_input_queue(2);
const incoming = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = c, .input_queue = in_queue });
var a = [2, 2]f32 { 1.0, 2.0, 3.0, 4.0 };
var flags = [3]bool { true, false, true };
var point = Point { .x = 1.5, .y = -3, .mode = Mode.fast };
const origin = Point { .x = 0.0, .y = 0, .mode = Mode.off };
var points = [2]Point { origin, origin };
var bits = [1]Bits { Bits { .low = 9, .sign = 1, .on = true } };
var place: u16;
var a_ptr: [*]f32 = &a;
var flags_ptr: [*]bool = &flags;
var at: *f32 = &a[1, 0];
inline fn doubled(value: f32) f32 {
  const two = 2.0;
  return value * two;
}
fn inner(start: i16) i16 {
  var local = start + 1;
  var row = [2]i16 { start, local };
  local += row[0];
  @mov32(&got, incoming);
  return local + row[1];
}
var got: u32 = 0;
fn work(number: i16) void {
  place = x + words[@as(u16, number)];
  a[0, 0] = doubled(a[0, 0]) + doubled(half);
  points[1].y = number;
  bits[0].sign = -2;
  at.* += 1.0;
  point.y = inner(number);
  sys.unblock_cmd_stream();
}
comptime {
  @initialize_queue(in_queue, .{ .color = c });
  @export_symbol(a_ptr, "a"); @export_symbol(flags_ptr, "flags"); @export_symbol(work);
}
"""


class Stopped(NamedTuple):
    """A run that waits in `inner`: what the reader says of a PE, and the program."""

    reader: DebugReader
    program: Program
    memory: bytes


def compiled(folder: Path, arch: Arch) -> wafer.Compiled:
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    options = wafer.CompileOptions(is_memcpy=True)
    return wafer.compile(folder / "layout.csl", arch=arch, options=options)


@pytest.fixture(scope="module", params=Arch)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("program")
    program = compiled(folder, request.param).program
    file.write(program, folder / "p.zip")
    engine = build_engine(program, EngineKind.NATIVE)
    simulator = Simulator(program, engine.run_address, engine.element_address)
    simulator.start_command([dict(i.exported_functions)["work"] for i in program.images], (1,))
    simulator.run_cycles(1000)
    memory = simulator.read(1, 0, 0, 24576).tobytes()
    return Stopped(DebugReader(folder / "p.zip"), program, memory)


def test_values_of_all_types_are_read_as_the_source_has_them(stopped: Stopped) -> None:
    found = stopped.reader.globals(1, 0, stopped.memory)
    expected: dict[str, Any] = {
        "half": 0.5,
        "a": [[3.0, 2.0], [4.0, 4.0]],
        "flags": [True, False, True],
        "point": {"x": 1.5, "y": -3, "mode": "fast"},
        "points": [{"x": 0.0, "y": 0, "mode": "off"}, {"x": 0.0, "y": 1, "mode": "off"}],
        "bits": [{"low": 9, "sign": -2, "on": True}],
        "origin": {"x": 0.0, "y": 0, "mode": "off"},
        "place": 9,
        "x": 1,
        "c": 3,
        "in_queue": 2,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_pointer_holds_the_byte_address_of_its_target(stopped: Stopped) -> None:
    found = stopped.reader.globals(1, 0, stopped.memory)
    addresses = {s.name: 2 * s.address for s in stopped.program.images[0].symbols}
    assert (found["a_ptr"], found["at"]) == (addresses["a"], addresses["a"] + 8)


def test_a_descriptor_by_name_has_its_words(stopped: Stopped) -> None:
    words = stopped.reader.globals(1, 0, stopped.memory)["incoming"]
    assert "(" + ", ".join(map(str, words)) in stopped.program.images[0].code


def test_functions_that_wait_are_told_with_their_lines_and_locals(stopped: Stopped) -> None:
    outer, inner = stopped.reader.stack(1, 0, stopped.memory)
    lines = CODE.splitlines()
    assert (outer[0], lines[outer[1] - 1]) == ("work", "  point.y = inner(number);")
    assert (inner[0], lines[inner[1] - 1]) == ("inner", "  @mov32(&got, incoming);")
    assert inner[2] == {"local": 3, "row": [1, 2]}


def test_code_of_an_inline_function_says_who_called_it(stopped: Stopped) -> None:
    places = stopped.program.places
    inside = [one for one in places if one.inlined == "doubled" and "return" in line_of(one.line)]
    calls = [places[one.call] for one in inside]
    assert {(one.function, one.line) for one in inside} == {("work", 1 + CODE_LINES.index(RETURN))}
    assert {line_of(call.line)[call.column - 1 : call.end_column - 1] for call in calls} == {
        "doubled(a[0, 0])",
        "doubled(half)",
    }


def test_expansions_of_a_function_are_one_place_of_the_source(stopped: Stopped) -> None:
    places = stopped.program.places
    inside = [n for n, one in enumerate(places) if line_of(one.line) == RETURN and one.inlined]
    assert len(inside) > len({stopped.program.written_place(number) for number in inside})
    assert stopped.program.written_place(len(places)) == len(places)


RETURN = "  return value * two;"
CODE_LINES = CODE.splitlines()


def line_of(number: int) -> str:
    return CODE_LINES[number - 1] if number <= len(CODE_LINES) else ""


def test_a_local_is_seen_from_its_name_to_the_end_of_its_block(stopped: Stopped) -> None:
    debug = stopped.program.debug
    (local,) = (one for one in debug.variables if one.name == "local")
    scope = stopped.program.places[local.scope]
    assert line_of(scope.line)[scope.column - 1 :].startswith("local = start")
    assert (scope.function, line_of(scope.end_line)) == ("inner", "}")


def test_a_dump_read_by_its_types_is_what_the_host_copies(tmp_path: Path) -> None:
    program = small_program(tmp_path).program
    file.write(program, tmp_path / "p.zip")
    runtime = Runtime(program, RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    values = np.arange(18, dtype=np.float32).view(np.uint32).reshape(2, 3, 3)
    region, number = Region(0, 0, 3, 2, 3), runtime.get_id("single")
    runtime.copy_to_device(number, values, region)
    runtime.call("add", [0x40200000, 3])
    found: list[NDArray[np.uint32]] = []
    runtime.copy_from_device(found.append, number, region)
    dump, reader = runtime.memory_dump().words, DebugReader(tmp_path / "p.zip")
    for y, x in np.ndindex(2, 3):
        read = reader.globals(x, y, dump[y, x].tobytes())
        assert read["single"] == found[0].view(np.float32)[y, x].tolist()


PARAMS: dict[str, dict[str, int]] = {"heat": {"width": 8, "cells": 16}, "pipeline": {"width": 5}}


@pytest.fixture(scope="module", params=["own", "small", *PARAMS])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("law")
    if request.param == "own":
        return compiled(folder, Arch.WSE2).program
    if request.param == "small":
        return small_program(folder).program
    layout = EXAMPLES / request.param / "layout.csl"
    return wafer.compile(layout, params=PARAMS[request.param]).program


def test_each_symbol_has_a_variable_at_its_address(program: Program) -> None:
    debug = program.debug
    for image in program.images:
        named = [debug.variables[number] for number in image.names.variables]
        homes = {
            (one.name, one.address, debug.types[one.type].num_bytes)
            for one in named
            if one.home is Home.MEMORY
        }
        assert {(s.name, s.address, s.num_bytes) for s in image.symbols} == homes


def test_each_source_has_the_text_and_the_digest_of_its_file(program: Program) -> None:
    for source in program.debug.sources:
        content = Path(source.path).read_bytes()
        assert source.text == content.decode()
        assert source.digest == hashlib.sha256(content).hexdigest()


def test_the_place_of_each_instruction_lies_in_a_source(program: Program) -> None:
    lines = {one.name: one.text.split("\n") for one in program.debug.sources}
    for image in program.images:
        for number in re.findall(r" !(\d+)$", image.code, re.MULTILINE):
            place = program.places[int(number)]
            assert (place.line, place.column) < (place.end_line, place.end_column)
            assert place.end_column <= len(lines[place.file][place.end_line - 1]) + 1


def test_each_function_of_the_code_has_its_record_and_its_frame(program: Program) -> None:
    debug = program.debug
    for image in program.images:
        in_code = re.findall(r"^fn &\"?([^\"(]+)\"?\(", image.code, re.MULTILINE)
        assert [debug.functions[number].name for number in image.names.functions] == in_code
        assert [debug.frames[number].function for number in image.names.frames] == in_code


def test_what_the_source_says_survives_the_file(program: Program, tmp_path: Path) -> None:
    file.write(program, tmp_path / "p.zip")
    back = file.read(tmp_path / "p.zip")
    assert (back.debug, back.places) == (program.debug, program.places)
    assert [one.names for one in back.images] == [one.names for one in program.images]
