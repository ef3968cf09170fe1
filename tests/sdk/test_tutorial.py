"""The programs for beginners compile and run as their pages say."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from tests.sdk.forked_python import with_sdk
from tests.tables import checkerboard

DOCS = Path(__file__).parents[2] / "docs"
FIRST = DOCS / "language" / "first-program.md"
PAGES = (DOCS / "guide" / "wafer-tutorial.md", FIRST)
FILE = re.compile(r"```(?:csl|python)\n((?://|#) (\S+)\n.*?)```", re.DOTALL)
COMMAND = re.compile(r"\$ cslc (.*?)\ncompile successful", re.DOTALL)
OUTPUT = re.compile(r"\$ cs_python run\.py\n(.*?)```", re.DOTALL)
REFUSAL = re.compile(r"```console\n(error.*?)```", re.DOTALL)


def ended(module: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return with_sdk().run_module(f"openwafer.cli.{module}", *arguments, folder=folder)


def command(module: str, *arguments: str, folder: Path) -> str:
    process = ended(module, *arguments, folder=folder)
    assert process.returncode == 0, process.stderr
    return process.stdout


def write_program(page: Path, folder: Path, arch: str) -> list[str]:
    """Write the files of a page, and return the arguments of its compilation."""
    text = page.read_text(encoding="utf-8")
    for content, name in FILE.findall(text):
        (folder / name).write_text(content, encoding="utf-8")
    found = COMMAND.search(text)
    assert found is not None
    return found[1].replace("\\\n", " ").replace("--arch=wse3", f"--arch={arch}").split()


@pytest.mark.parametrize(
    ("arch", "page"), checkerboard(("wse2", "wse3"), {page.stem: page for page in PAGES})
)
def test_a_student_who_follows_the_page_ends_with_checked_results(
    arch: str, page: Path, tmp_path: Path
) -> None:
    arguments = write_program(page, tmp_path, arch)
    assert "compile successful" in command("cslc", *arguments, folder=tmp_path)
    printed = command("cs_python", "run.py", folder=tmp_path)
    assert "SUCCESS" in printed
    assert OUTPUT.findall(page.read_text(encoding="utf-8"))[0] in printed


def test_the_short_form_of_the_tutorial_checks_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_program(PAGES[0], tmp_path, "wse3")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("short.py")
    assert " cycles" in capsys.readouterr().out


def test_the_mistake_of_the_first_page_is_reported_as_it_says(tmp_path: Path) -> None:
    arguments = write_program(FIRST, tmp_path, "wse3")
    code = (tmp_path / "pe.csl").read_text(encoding="utf-8")
    wrong = code.replace("scaled(x[i], factor)", "scaled(x[i], 2 * size)")
    (tmp_path / "pe.csl").write_text(wrong, encoding="utf-8")
    process = ended("cslc", *arguments, folder=tmp_path)
    assert process.returncode != 0
    assert REFUSAL.findall(FIRST.read_text(encoding="utf-8"))[0] in process.stdout + process.stderr


def test_the_tutorial_may_be_tried_with_more_rows(tmp_path: Path) -> None:
    arguments = write_program(PAGES[0], tmp_path, "wse3")
    command("cslc", *(one.replace("rows:8", "rows:12") for one in arguments), folder=tmp_path)
    assert "SUCCESS" in command("cs_python", "run.py", folder=tmp_path)
