"""The table of what is supported names what is there, and leaves nothing out."""

import importlib
import re
from functools import reduce
from pathlib import Path
from typing import Final

import pytest

import openwafer.sdk.csl.sema.evaluators
from openwafer.sdk.compat.finder import MODULES
from openwafer.sdk.compiler.command_line import parse_command
from openwafer.sdk.csl.sema.sema import BUILTINS

TESTS: Final = Path(__file__).parents[3]
PAGES: Final = TESTS.parent / "docs" / "language"
LIBRARY: Final = Path(openwafer.sdk.csl.__path__[0]) / "lib"
INNER: Final = {
    "kernels/fft/pe",
    "tile_config/input_queue_config",
    "tile_config/output_queue_config",
}
"""Modules that programs reach through another module only."""

CODE: Final = re.compile(r"`([^`]+)`")
TEST: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK: Final = re.compile(r"\]\(([\w-]+\.md)\)")
DECLARED: Final = re.compile(r"\b(?:fn|const|var|param) (\w+)")


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table of a section, without its head."""
    text = (PAGES / "coverage.md").read_text(encoding="utf-8")
    lines = text.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table[2:]]


def names(cell: str) -> list[str]:
    return CODE.findall(cell)


def test_every_builtin_has_a_row() -> None:
    listed = [names(row[0])[0] for row in rows("Builtins")]
    known = [f"@{name}" for name in BUILTINS if not name.startswith("openwafer_")]
    assert listed == sorted(known)


@pytest.mark.parametrize("row", rows("Builtins"), ids=lambda row: row[0])
def test_the_page_of_a_builtin_describes_it(row: list[str]) -> None:
    page = (PAGES / LINK.findall(row[2])[0]).read_text(encoding="utf-8")
    assert re.search(rf"{names(row[0])[0]}\b", page)


def test_every_page_is_there() -> None:
    text = (PAGES / "coverage.md").read_text(encoding="utf-8")
    assert [page for page in set(LINK.findall(text)) if not (PAGES / page).exists()] == []


def test_every_test_is_there() -> None:
    text = (PAGES / "coverage.md").read_text(encoding="utf-8")
    for file, name in set(TEST.findall(text)):
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), (file, name)


@pytest.mark.parametrize(
    "section", ["Builtins", "Constructs", "Libraries", "Options of `cslc`", "Host API"]
)
def test_every_row_names_a_test(section: str) -> None:
    assert [row[0] for row in rows(section) if not TEST.fullmatch(row[-1])] == []


def test_every_module_of_the_library_has_a_row() -> None:
    listed = {names(row[0])[0].strip("<>") for row in rows("Libraries")}
    modules = {str(file.relative_to(LIBRARY).with_suffix("")) for file in LIBRARY.rglob("*.csl")}
    assert listed - modules == {"message_passing"}
    assert modules - listed == INNER


def modules_with_members() -> list[list[str]]:
    return [row for row in rows("Libraries") if row[1]]


@pytest.mark.parametrize("row", modules_with_members(), ids=lambda row: row[0])
def test_a_module_declares_its_members(row: list[str]) -> None:
    text = (LIBRARY / f"{names(row[0])[0].strip('<>')}.csl").read_text(encoding="utf-8")
    assert set(names(row[1])) - set(DECLARED.findall(text)) == set()


def test_every_option_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command(["--help"])
    help_text = capsys.readouterr().out
    taken = set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", help_text))
    assert {names(row[0])[0] for row in rows("Options of `cslc`")} <= taken


@pytest.mark.parametrize("row", rows("Host API"), ids=lambda row: row[0])
def test_every_name_of_the_host_is_there(row: list[str]) -> None:
    name = names(row[0])[0]
    module = max((module for module in MODULES if name.startswith(f"{module}.")), key=len)
    path = name.removeprefix(f"{module}.").split(".")
    assert reduce(getattr, path, importlib.import_module(MODULES[module])) is not None
