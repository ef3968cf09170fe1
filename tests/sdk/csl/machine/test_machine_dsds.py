"""Descriptors: the words that each form of `@get_dsd` gives."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program.descriptor import NO_COLOR, NO_QUEUE, DsdFlag, DsdKind
from openwafer.sdk.program.image import Image
from tests.sdk.csl.machine.one_pe import compile_pe, ran, refusal, warnings_of


def words_of(image: Image, name: str = "d") -> list[int]:
    symbol = next(s for s in image.symbols if s.name == name)
    data = image.data[2 * symbol.address : 2 * (symbol.address + symbol.num_words)]
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def address_of(image: Image, name: str) -> int:
    return next(s.address for s in image.symbols if s.name == name)


def dsd(folder: Path, declarations: str, kind: str, fields: str, arch: Arch = Arch.WSE3) -> Image:
    source = f"{declarations}\nexport var d = @get_dsd({kind}, .{{ {fields} }});"
    return compile_pe(folder, source, arch)


def test_a_tensor_access_of_floats_counts_words(tmp_path: Path) -> None:
    image = dsd(tmp_path, "var A: [20]f32;", "mem1d_dsd", ".tensor_access = |i|{5} -> A[3*i + 2]")
    base = address_of(image, "A")
    assert words_of(image) == [DsdKind.MEM1D, base + 4, 5, 0, 6, 2, 0, 0]


def test_a_diagonal_walks_a_row_and_a_column_at_once(tmp_path: Path) -> None:
    image = dsd(tmp_path, "var A: [4, 5]i16;", "mem1d_dsd", ".tensor_access = |i|{4} -> A[i, i]")
    assert words_of(image)[1:5] == [address_of(image, "A"), 4, 0, 6]


def test_an_element_that_names_no_index_has_stride_zero(tmp_path: Path) -> None:
    image = dsd(tmp_path, "var A: [4]i16;", "mem1d_dsd", ".tensor_access = |i|{9} -> A[2]")
    assert words_of(image)[1:5] == [address_of(image, "A") + 2, 9, 0, 0]


def test_fields_say_the_same_as_a_tensor_access(tmp_path: Path) -> None:
    fields = ".base_address = &A, .offset = 2, .stride = 3, .extent = 5"
    image = dsd(tmp_path, "var A: [20]f32;", "mem1d_dsd", fields)
    assert words_of(image) == [DsdKind.MEM1D, address_of(image, "A") + 4, 5, 0, 6, 2, 0, 0]


def test_a_negative_stride_is_a_word_modulo_two_to_the_sixteen(tmp_path: Path) -> None:
    image = dsd(tmp_path, "var A: [9]i16;", "mem1d_dsd", ".tensor_access = |i|{9} -> A[8 - i]")
    assert words_of(image)[1:5] == [address_of(image, "A") + 8, 9, 0, 0xFFFF]


def test_extents_beyond_sixteen_bits_take_a_second_word(tmp_path: Path) -> None:
    image = dsd(tmp_path, "var A: [1]u16;", "mem1d_dsd", ".base_address = &A, .extent = 70000")
    assert words_of(image)[2:4] == [70000 & 0xFFFF, 1]


def test_strides_of_mem4d_begin_at_the_end_of_the_inner_dims(tmp_path: Path) -> None:
    access = ".tensor_access = |i, j, k, l|{5, 5, 5, 5} -> A[i + j, k + l + 2]"
    image = dsd(tmp_path, "var A: [4, 5]i16;", "mem4d_dsd", access)
    words = words_of(image)
    assert words[12:] == [1, -3 & 0xFFFF, -3 & 0xFFFF, -23 & 0xFFFF]


def test_extents_of_mem4d_are_held_innermost_first(tmp_path: Path) -> None:
    access = ".tensor_access = |i, j|{2, 3} -> A[i, j]"
    image = dsd(tmp_path, "var A: [4, 5]f32;", "mem4d_dsd", access)
    words = words_of(image)
    assert (words[0], words[2], words[5], words[8:12]) == (DsdKind.MEM4D, 2, 2, [3, 2, 1, 1])


def test_explicit_strides_of_mem4d_are_innermost_first(tmp_path: Path) -> None:
    fields = ".base_address = &A, .extent = .{5, 4}, .stride = .{1, -2}"
    image = dsd(tmp_path, "var A: [20]i16;", "mem4d_dsd", fields)
    words = words_of(image)
    assert (words[8:10], words[12:14]) == ([4, 5], [1, 0xFFFE])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_walking_a_mem4d_visits_what_its_access_names(
    tmp_path: Path, extents: list[int], data: st.DataObject
) -> None:
    factors = [data.draw(st.integers(-3, 3)) for _ in extents]
    names = "ijkl"[: len(extents)]
    index = " + ".join(f"({f})*{n}" for f, n in zip(factors, names, strict=True))
    access = f"|{', '.join(names)}|{{{', '.join(map(str, extents))}}} -> A[{index} + 40]"
    image = dsd(tmp_path, "var A: [80]i16;", "mem4d_dsd", f".tensor_access = {access}")
    assert walk(words_of(image), address_of(image, "A")) == [
        40 + sum(f * v for f, v in zip(factors, at, strict=True)) for at in grid(extents)
    ]


def grid(extents: list[int]) -> list[tuple[int, ...]]:
    places: list[tuple[int, ...]] = [()]
    for extent in extents:
        places = [(*place, value) for place in places for value in range(extent)]
    return places


def walk(words: list[int], base: int) -> list[int]:
    """Elements as a machine steps through them: the stride of the outermost dim that moves."""
    num_dims = words[2]
    at, count, visited = words[1], [0] * num_dims, []
    while True:
        visited.append((at - base) & 0xFFFF)
        dim = 0
        while dim < num_dims and count[dim] == words[8 + dim] - 1:
            count[dim] = 0
            dim += 1
        if dim == num_dims:
            return visited
        count[dim] += 1
        at = (at + words[12 + dim]) & 0xFFFF


def test_a_fabric_input_knows_its_color_queue_and_extent(tmp_path: Path) -> None:
    fields = ".fabric_color = @get_color(5), .input_queue = @get_input_queue(3), .extent = 7"
    words = words_of(dsd(tmp_path, "", "fabin_dsd", fields))
    assert words[:5] == [DsdKind.FABIN, 5, 7, 0, 3]


def test_color_and_queue_may_be_left_to_the_machine(tmp_path: Path) -> None:
    words = words_of(dsd(tmp_path, "", "fabin_dsd", ".extent = 1"))
    assert (words[1], words[4]) == (NO_COLOR, NO_QUEUE)


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        (".control = true", DsdFlag.CONTROL),
        (".advance_switch = true", DsdFlag.ADVANCE_SWITCH),
        (".wavelet_index_offset = true", DsdFlag.WAVELET_INDEX),
        (".simd_mode = .{ .simd_32 = true }", DsdFlag.SIMD),
        (".zero = .{ .first_source = true }", DsdFlag.ZERO_FIRST),
        (".zero = .{ .second_source = true }", DsdFlag.ZERO_SECOND),
        (".control_transform = true", DsdFlag.HAS_CONTROL_TRANSFORM),
    ],
)
def test_options_of_fabric_outputs_are_flags(tmp_path: Path, field: str, flag: DsdFlag) -> None:
    fields = f".fabric_color = @get_color(1), .extent = 1, {field}"
    assert words_of(dsd(tmp_path, "", "fabout_dsd", fields))[0] == DsdKind.FABOUT | flag


def test_run_time_properties_are_read_when_the_descriptor_is_made(tmp_path: Path) -> None:
    source = """
    var data = [6]i16{ 1, 2, 3, 4, 5, 6 };
    var length: u16 = 2;
    var step: i8 = 2;
    var to: [2]i16;
    fn main() void {
      const from = @get_dsd(mem1d_dsd, .{
        .base_address = &data, .offset = 1, .stride = step, .extent = length });
      @mov16(@get_dsd(mem1d_dsd, .{ .base_address = &to, .extent = length }), from);
    }"""
    assert ran(tmp_path, source).read("to", "i2").tolist() == [2, 4]


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ("@set_dsd_length(d, 2)", [1, 2, 0, 0]),
        ("@set_dsd_stride(d, 2)", [1, 3, 5, 7]),
        ("@increment_dsd_offset(d, 3, i16)", [4, 5, 6, 7]),
        ("@set_dsd_base_addr(d, other)", [9, 9, 9, 9]),
        ("@set_dsd_base_addr(d, &other)", [9, 9, 9, 9]),
    ],
)
@pytest.mark.parametrize("kind", ["const", "var"])
def test_a_changed_descriptor_differs_in_one_property(
    tmp_path: Path, change: str, taken: list[int], kind: str
) -> None:
    source = f"""
    var data = [8]i16{{ 1, 2, 3, 4, 5, 6, 7, 8 }};
    var other = @constants([8]i16, 9);
    var to = @zeros([4]i16);
    {kind} d = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{4}} -> data[i] }});
    const to_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{4}} -> to[i] }});
    fn main() void {{
      var changed = {change};
      @mov16({"@set_dsd_length(to_dsd, 2)" if "length" in change else "to_dsd"}, changed);
    }}"""
    assert ran(tmp_path, source).read("to", "i2").tolist() == taken


@pytest.mark.parametrize("kind", ["const", "var"])
def test_an_index_moves_only_the_memory_that_takes_one(tmp_path: Path, kind: str) -> None:
    source = f"""
    var data = [6]i16{{ 1, 2, 3, 4, 5, 6 }};
    var to = @zeros([6]i16);
    {kind} from = @get_dsd(mem1d_dsd, .{{
      .tensor_access = |i|{{2}} -> data[i], .wavelet_index_offset = true }});
    {kind} to_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{2}} -> to[i] }});
    var index: u16 = 3;
    fn main() void {{ @mov16(to_dsd, from, .{{ .index = index }}); }}"""
    assert ran(tmp_path, source).read("to", "i2").tolist() == [4, 5, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("|i|{2} -> A[i * i]", "a product of two loop indices is not affine"),
        ("|i|{2} -> A[i / 2]", "no affine expression"),
        ("|i, j|{2} -> A[i]", "2 indices and 1 extents"),
        ("|i|{2} -> A[i, i]", "takes 1 indices, 2 provided"),
        ("|i, j|{2, 2} -> A[i + j]", "a mem1d_dsd has one dimension, 2 given"),
    ],
)
def test_a_wrong_access_is_explained(tmp_path: Path, access: str, message: str) -> None:
    source = f"var A: [4]i16; export var d = @get_dsd(mem1d_dsd, .{{ .tensor_access = {access} }});"
    assert message in refusal(tmp_path, source)


ROWS = """var A: [4, 300]i16;
export var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> A[i, 0] });"""
LONG_STRIDE = "the stride is of type 'i8', -128 to 127, got 300"


def test_a_long_stride_of_a_tensor_access_is_refused_by_strict_alone(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, ROWS, Arch.WSE3, "")
    assert LONG_STRIDE in warning
    with pytest.raises(OpenwaferError, match=LONG_STRIDE):
        build_program(tmp_path / "layout.csl", CompileOptions(is_strict=True))


def test_an_unknown_field_is_an_error_that_lists_the_fields(tmp_path: Path) -> None:
    source = "export var d = @get_dsd(fabin_dsd, .{ .extent = 1, .colour = 3 });"
    text = refusal(tmp_path, source)
    assert "no field 'colour' here" in text
