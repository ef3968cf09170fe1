"""Every program of the pages in docs/language compiles, or fails as the page says.

A line `% csl pe`, `% csl layout` or `% csl error` before a fenced block says what the block is; a
generation behind it compiles for that one only. The block behind an error's program holds texts
that the diagnostics contain, one on each line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify

PAGES = Path(__file__).parents[4] / "docs" / "language"
LAYOUT = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); EXPORTS }'
MARKED = re.compile(
    r"^% csl (?P<kind>pe|layout|error)(?P<archs>[ \w]*)\n+```text\n(?P<program>.*?)^```$"
    r"(?:\n+```text\n(?P<messages>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
EXPORTED = re.compile(r"@export_symbol\((\w+)\)")


@dataclass(frozen=True)
class Example:
    """A program of a page."""

    name: str
    kind: str
    arch: Arch
    program: str
    messages: tuple[str, ...]


def examples() -> list[Example]:
    found = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for match in MARKED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            messages = tuple((match["messages"] or "").splitlines())
            for arch in match["archs"].split() or list(Arch):
                name = f"{page.stem}-{line}-{arch}"
                found.append(Example(name, match["kind"], Arch(arch), match["program"], messages))
    return found


def compile_example(folder: Path, example: Example) -> None:
    is_layout = "layout {" in example.program
    exports = "".join(
        f'@export_name("{name}", fn()void);' for name in EXPORTED.findall(example.program)
    )
    layout = example.program if is_layout else LAYOUT.replace("EXPORTS", exports)
    (folder / "layout.csl").write_text(layout, encoding="utf-8")
    (folder / "pe.csl").write_text("" if is_layout else example.program, encoding="utf-8")
    program = build_program(folder / "layout.csl", CompileOptions(arch=example.arch))
    for image in program.images:
        verify(parse(image.code))


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_program_of_the_language_pages_does_what_the_page_says(
    tmp_path: Path, example: Example
) -> None:
    if example.kind != "error":
        compile_example(tmp_path, example)
        return
    with pytest.raises(OpenwaferError) as caught:
        compile_example(tmp_path, example)
    missing = [message for message in example.messages if message not in str(caught.value)]
    assert not missing, str(caught.value)


def test_the_pages_have_programs_of_every_kind() -> None:
    assert {example.kind for example in EXAMPLES} == {"pe", "layout", "error"}


def test_no_marked_program_is_overlooked() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert text.count("\n% csl ") == len(MARKED.findall(text))


def test_errors_on_the_pages_come_with_their_text() -> None:
    assert [e.name for e in EXAMPLES if (e.kind == "error") is not bool(e.messages)] == []
