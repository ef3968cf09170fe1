"""The page on slow kernels: its commands run in order, and print what it shows."""

import re
import shlex
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.sdk.profile import tables
from tests.cli.command import run_command
from tests.sdk.forked_python import with_sdk

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "why-is-my-kernel-slow.md"
FENCE = re.compile(r"```(csl|python|console)\n(.*?)```", re.DOTALL)
NAME = re.compile(r"(?://|#) (\S+?)(, from var y on)?\n")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
BOUND = 64 * 64


def write_file(text: str, folder: Path) -> None:
    """Write a block that begins with a file's name; of pe.csl maybe its second part."""
    found = NAME.match(text)
    assert found is not None
    path = folder / found[1]
    if found[2]:
        kept = path.read_text(encoding="utf-8").partition("var y:")[0]
        text = kept + text[found.end() :]
    path.write_text(text, encoding="utf-8")


def printed(command: str, folder: Path) -> str:
    """What a command of the page prints."""
    program, *words = shlex.split(command)
    if program == "cslc":
        done = with_sdk().run_module("openwafer.cli.cslc", *words, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout
    ended = run_command(*words)
    assert (program, ended.code) == ("openwafer", 0), ended.err
    return ended.out


@pytest.mark.slow
def test_a_student_comes_within_a_tenth_of_the_bound_with_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, text in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if kind != "console":
            write_file(text, tmp_path)
            continue
        for command, shown in COMMAND.findall(text):
            told = printed(command, tmp_path)
            for part in shown.split("...\n"):
                assert part in told
    fast = tables.by_function(wafer.read_profile("fast.json"))
    assert BOUND < sum(one.cycles for one in fast) < 1.1 * BOUND
