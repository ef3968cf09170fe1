"""Imports: params, instances, names of symbols, and where files are found."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.imports import ImportPaths, beside_link
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.image import ImageResult, analyze_image
from openwafer.source import SourceText, Span
from tests.sdk.csl.sema.programs import messages

COUNTER = """
param first: i16 = 1;
var count: i16 = first;
fn next() void { count += 1; }
"""
MAIN_END = "comptime { @export_symbol(main); }\n"


def analyze(
    folder: Path, files: dict[str, str], options: CompileOptions | None = None
) -> ImageResult:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return analyze_image(folder / "main.csl", {}, options or CompileOptions())


def test_every_import_has_its_own_variables(tmp_path: Path) -> None:
    main = """
      const a = @import_module("counter.csl", .{ .first = 5 });
      const b = @import_module("counter.csl");
      fn main() void { a.next(); b.next(); }
    """
    result = analyze(tmp_path, {"counter.csl": COUNTER, "main.csl": main + MAIN_END})
    words = {name: variable.words for name, variable in result.state.variables.items()}
    assert words == {"a.count": [5], "b.count": [1]}


def test_another_name_of_a_module_is_the_same_module(tmp_path: Path) -> None:
    main = """
      const a = @import_module("counter.csl");
      const b = a;
      fn main() void { a.next(); b.next(); }
    """
    result = analyze(tmp_path, {"counter.csl": COUNTER, "main.csl": main + MAIN_END})
    assert list(result.state.variables) == ["a.count"]


def test_nested_modules_put_all_names_before_a_symbol(tmp_path: Path) -> None:
    files = {
        "counter.csl": COUNTER,
        "middle.csl": 'const inner = @import_module("counter.csl");',
        "main.csl": 'const outer = @import_module("middle.csl");\n'
        "fn main() void { outer.inner.next(); }\n" + MAIN_END,
    }
    assert list(analyze(tmp_path, files).state.variables) == ["outer.inner.count"]


def test_an_exported_variable_of_a_module_keeps_its_plain_name(tmp_path: Path) -> None:
    files = {
        "data.csl": "export var shared: i16 = 3;",
        "main.csl": 'const data = @import_module("data.csl");\n',
    }
    assert list(analyze(tmp_path, files).state.variables) == ["shared"]


def test_linkname_names_the_symbol(tmp_path: Path) -> None:
    files = {
        "main.csl": 'param p: comptime_string = "b";\nvar a: i16 linkname(@strcat("a", p)) = 1;\n'
        "fn main() void { a = 2; }\n" + MAIN_END
    }
    assert list(analyze(tmp_path, files).state.variables) == ["ab"]


def test_alignment_is_in_bytes(tmp_path: Path) -> None:
    text = "var a: i16 align(64) = 1;\nfn main() void { a = 2; }\n" + MAIN_END
    variable = analyze(tmp_path, {"main.csl": text}).state.variables["a"]
    assert variable.address % 32 == 0


def test_a_param_without_a_name_in_the_file_is_a_warning(tmp_path: Path) -> None:
    main = 'const a = @import_module("counter.csl", .{ .frist = 5 });\n'
    result = analyze(tmp_path, {"counter.csl": COUNTER, "main.csl": main})
    (found,) = result.warnings
    assert found.message == "'counter.csl' has no param 'frist'"
    assert found.span is not None
    assert Path(found.span.source.name).name == "main.csl"
    assert found.span.text == "frist"
    assert found.help == "did you mean 'first'? (its params: first)"


def test_a_param_of_the_wrong_type_names_both_types(tmp_path: Path) -> None:
    main = """
      const a = @import_module("counter.csl", .{ .first = 1.5 });
      fn main() void { a.next(); }
    """
    with pytest.raises(OpenwaferError, match="expected type 'i16', got: 'comptime_float'"):
        analyze(tmp_path, {"counter.csl": COUNTER, "main.csl": main + MAIN_END})


def test_files_beside_the_importer_come_first(tmp_path: Path) -> None:
    files = {
        "lib/value.csl": "const it = 1;",
        "value.csl": "const it = 2;",
        "lib/user.csl": 'const value = @import_module("value.csl");\nconst it = value.it;',
        "main.csl": 'const user = @import_module("lib/user.csl");\n'
        "comptime { @comptime_assert(user.it == 1); }\n",
    }
    assert analyze(tmp_path, files).warnings == ()


def test_files_of_the_programs_folder_are_found_from_below(tmp_path: Path) -> None:
    files = {
        "lib/one.csl": 'const two = @import_module("lib/two.csl");\nconst it = two.it;',
        "lib/two.csl": "const it = 2;",
        "main.csl": 'const one = @import_module("lib/one.csl");\n'
        "comptime { @comptime_assert(one.it == 2); }\n",
    }
    assert analyze(tmp_path, files).warnings == ()


def test_import_paths_serve_names_in_angle_brackets(tmp_path: Path) -> None:
    files = {
        "more/tools/value.csl": "const it = 3;",
        "main.csl": 'const value = @import_module("<tools/value>");\n'
        "comptime { @comptime_assert(value.it == 3); }\n",
    }
    options = CompileOptions(import_paths=(tmp_path / "more",))
    assert analyze(tmp_path, files, options).warnings == ()


def test_the_layout_block_of_an_imported_file_is_ignored(tmp_path: Path) -> None:
    files = {
        "other.csl": "const it = 1;\nlayout { nothing(); }",
        "main.csl": 'const other = @import_module("other.csl");\n',
    }
    assert analyze(tmp_path, files).warnings == ()


def test_a_syntax_error_of_an_imported_file_is_reported_there(tmp_path: Path) -> None:
    files = {"broken.csl": "const = 1;", "main.csl": 'const b = @import_module("broken.csl");\n'}
    with pytest.raises(OpenwaferError, match=r"broken\.csl:1:7"):
        analyze(tmp_path, files)


def test_a_json_field_of_an_unknown_type_is_an_error(tmp_path: Path) -> None:
    files = {
        "config.json": '{"size:u17x": 4}',
        "main.csl": 'const it = @import_comptime_value(comptime_struct, "config.json");\n'
        "comptime { @comptime_assert(it.size == 4); }\n",
    }
    with pytest.raises(OpenwaferError, match="use of undeclared identifier 'u17x'"):
        analyze(tmp_path, files)


def test_fields_of_a_json_file_have_the_types_in_their_names(tmp_path: Path) -> None:
    files = {
        "config.json": '{"size:u16": 4, "row:[2]f32": [1, 2.5], "deep": {"on": true}}',
        "main.csl": 'const it = @import_comptime_value(comptime_struct, "config.json");\n'
        "comptime { @comptime_assert(it.deep.on and it.row[1] == 2.5); }\n",
    }
    assert analyze(tmp_path, files).warnings == ()


def test_a_fifo_that_nobody_uses_takes_no_memory() -> None:
    fifo = "var buffer = @zeros([20000]u32); const fifo = @allocate_fifo(buffer);"
    assert messages(f"{fifo} fn main() void {{}} comptime {{ @export_symbol(main); }}") == []


def test_what_a_link_imports_lies_beside_the_link(tmp_path: Path) -> None:
    for folder, number in (("shared", 1), ("program", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "number.csl").write_text(f"const value: i16 = {number};")
    (tmp_path / "shared/pe.csl").write_text('const n = @import_module("number.csl");')
    (tmp_path / "program/pe.csl").symlink_to(tmp_path / "shared/pe.csl")
    imports = ImportPaths(tmp_path)
    text = SourceText("layout.csl", " ")
    pe = imports.find("program/pe.csl", tmp_path / "layout.csl", Span(text, 0, 1))
    found = imports.find("number.csl", pe, Span(text, 0, 1))
    assert found == tmp_path / "program/number.csl"


def test_a_file_has_one_path_whatever_way_leads_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b.csl").write_text("")
    assert beside_link(tmp_path / "a/../b.csl") == tmp_path / "b.csl"


def test_a_way_through_a_linked_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "far/deep").mkdir(parents=True)
    (tmp_path / "far/b.csl").write_text("")
    (tmp_path / "near").symlink_to(tmp_path / "far/deep")
    assert beside_link(tmp_path / "near/../b.csl").is_file()


def refusal(folder: Path, files: dict[str, str]) -> str:
    with pytest.raises(OpenwaferError) as refused:
        analyze(folder, files)
    return str(refused.value)


def test_a_file_that_imports_itself_is_refused_at_the_import(tmp_path: Path) -> None:
    text = refusal(tmp_path, {"main.csl": '\nconst me = @import_module("main.csl");\n'})
    assert "error[csl-import-cycle]: 'main.csl' imports itself" in text
    assert "main.csl:2:27" in text


def test_a_circle_of_files_is_named_file_by_file(tmp_path: Path) -> None:
    files = {
        "main.csl": 'const a = @import_module("a.csl");',
        "a.csl": 'const b = @import_module("b.csl");',
        "b.csl": 'const a = @import_module("a.csl");',
    }
    text = refusal(tmp_path, files)
    assert re.search(r"note: \S*a.csl imports \S*b.csl imports \S*a.csl", text)


def test_a_file_may_import_itself_with_params_that_come_to_an_end(tmp_path: Path) -> None:
    inner = """
      param n: i16;
      var own: i16 = n;
      const next = if (n > 0) @import_module("inner.csl", .{ .n = n - 1 }) else n;
    """
    main = """
      const a = @import_module("inner.csl", .{ .n = 2 });
      fn main() void { a.next.next.own += a.next.own; }
    """
    result = analyze(tmp_path, {"inner.csl": inner, "main.csl": main + MAIN_END})
    words = {name: variable.words for name, variable in result.state.variables.items()}
    assert words == {"a.next.next.own": [0], "a.next.own": [1]}


def test_params_that_never_come_to_an_end_are_told_at_the_import(tmp_path: Path) -> None:
    inner = 'param n: u32;\nconst next = @import_module("inner.csl", .{ .n = n + 1 });'
    main = 'const a = @import_module("inner.csl", .{ .n = 0 });'
    text = refusal(tmp_path, {"inner.csl": inner, "main.csl": main})
    assert "'inner.csl' imports itself 64 times, each time with other params" in text
    assert "inner.csl:2:29" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "other.csl is a folder"),
        (lambda path: path.symlink_to(path), "other.csl is a link that leads to itself"),
    ],
    ids=["folder", "link"],
)
def test_what_stands_in_the_place_of_a_file_is_said(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    make(tmp_path / "other.csl")
    text = refusal(tmp_path, {"main.csl": 'const a = @import_module("other.csl");'})
    assert words in text
    assert "did you mean" not in text


def test_the_params_of_a_file_are_found_once_for_all_calls_that_give_some(tmp_path: Path) -> None:
    (tmp_path / "counter.csl").write_text(COUNTER, encoding="utf-8")
    imports = ImportPaths(tmp_path)
    found = imports.params(tmp_path / "counter.csl")
    assert list(found) == ["first"]
    assert imports.params(tmp_path / "counter.csl") is found
