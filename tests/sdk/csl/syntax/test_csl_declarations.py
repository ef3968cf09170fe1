"""Declarations of a file."""

import pytest

from openwafer.sdk.csl import ast
from tests.sdk.csl.syntax.snippets import codes, declarations, module


@pytest.mark.parametrize(
    "text",
    [
        "param width: i16;",
        "param width: i16 = 4;",
        "param width;",
        "param memcpy_params: comptime_struct;",
        "const width = 4;",
        "const width: i16 = 4;",
        "var data: [4]f32;",
        "var data: [4]f32 align(16) = zeros;",
        'var data: i16 linksection(".mine") linkname("other") = 1;',
        "export var data: i16 = 1;",
        "export const data: [*]f16 = &x;",
        "extern var data: i16;",
        "extern const callback: *const fn(i16) i16;",
        "color main_color;",
        "color main_color = @get_color(4);",
        "fn f() void {}",
        "fn f(x: i16, y: *const f32) i16 {}",
        "fn f(comptime T: type, x: T) T {}",
        "fn f(x: anytype) @type_of(x) {}",
        "inline fn f() void {}",
        "export fn f() void {}",
        'fn f() linkname("g") void {}',
        "extern fn f(x: i16) f16;",
        "extern fn f(i16, *f16, [*]i16, lib.t) f16;",
        "task f(data: f32) void {}",
        "comptime {}",
        "layout {}",
    ],
)
def test_a_declaration_keeps_its_form(text: str) -> None:
    assert declarations(text) == text


def test_attributes_may_follow_the_result() -> None:
    text = 'extern fn f(*f16) f16 linkname("g");'
    assert declarations(text) == 'extern fn f(*f16) linkname("g") f16;'


def test_attributes_come_in_any_order() -> None:
    text = 'var x: i16 linkname("g") align(4);'
    assert declarations(text) == 'var x: i16 align(4) linkname("g");'


def test_lists_may_end_with_a_comma() -> None:
    assert declarations("fn f(x: i16,) void {}") == "fn f(x: i16) void {}"


def test_a_semicolon_alone_declares_nothing() -> None:
    assert declarations("fn f() void {};;") == "fn f() void {}"


def test_an_empty_file_declares_nothing() -> None:
    assert module("// nothing\n").declarations == ()


@pytest.mark.parametrize("word", ["color", "layout", "type", "range"])
def test_words_that_open_a_declaration_may_be_names_elsewhere(word: str) -> None:
    assert declarations(f"const {word} = {word};") == f"const {word} = {word};"


def test_a_function_may_leave_its_result_out() -> None:
    (function,) = module("fn f(x: i16) { return x; }").declarations
    assert isinstance(function, ast.Function)
    assert function.result is None


@pytest.mark.parametrize("text", ["export comptime {}", "extern param x: i16;"])
def test_storage_belongs_to_variables_and_functions(text: str) -> None:
    assert codes(text) == ["csl-expected-token"]
