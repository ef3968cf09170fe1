"""`extern` declarations find the `export` definitions of the other files of an image."""

from pathlib import Path

import pytest

from tests.sdk.csl.machine.one_pe import MAIN, ran, refusal

LIBRARY = """
export var count: i16 = 5;
export const limit: i16 = 9;
export fn twice(x: i16) i16 { return 2 * x; }
export fn hidden(x: i16) i16 linkname("shown") { return x + 100; }
"""
PROGRAM = """
const library = @import_module("library.csl");
extern var count: i16;
extern const limit: i16;
extern fn twice(i16) i16;
extern fn other(x: i16) i16 linkname("shown");
var out: [4]i16;
fn main() void {
  count += 1;
  out[0] = library.count;
  out[1] = twice(limit);
  out[2] = other(1);
  const pointer = &twice;
  out[3] = pointer(4);
}
"""


def test_extern_names_are_those_that_another_file_exports(tmp_path: Path) -> None:
    (tmp_path / "library.csl").write_text(LIBRARY)
    assert ran(tmp_path, PROGRAM).read("out", "i2").tolist() == [6, 18, 101, 8]


@pytest.mark.parametrize(
    ("declaration", "use", "message"),
    [
        ("extern fn none(x: i16) i16;", "_ = none(1);", "has no definition to link with"),
        (
            "extern fn twice(x: i32) i16;",
            "_ = twice(1);",
            "extern with type 'fn(i32) i16' and defined with type 'fn(i16) i16'",
        ),
        (
            "extern var count: u32;",
            "count += 1;",
            "'count' is declared extern with type 'u32' and defined with type 'i16'",
        ),
    ],
)
def test_a_declaration_without_its_definition_is_refused(
    tmp_path: Path, declaration: str, use: str, message: str
) -> None:
    (tmp_path / "library.csl").write_text(LIBRARY)
    source = f'const library = @import_module("library.csl");\n{declaration}\n'
    source += f"fn main() void {{ {use} }}\ncomptime {{ @export_symbol(main); }}"
    assert message in refusal(tmp_path, source, exports=MAIN)
