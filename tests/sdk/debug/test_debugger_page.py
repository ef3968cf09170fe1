"""The page on the debugger: what it shows is what the console says."""

import io
import re
import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.cli import cslc
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.debug import Console, Debugger
from openwafer.sdk.host import journal as journals
from tests.cli.command import run_command

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
PAGE = GUIDE / "debugger.md"
FILE = re.compile(r"```(?:csl|python)\n((?://|#) (\S+)\n.*?)```", re.DOTALL)
COMPILATION = re.compile(r"^\$ cslc (.*)$", re.MULTILINE)
SESSION = re.compile(r"```text\n(.*?)```", re.DOTALL)


@pytest.fixture
def page() -> Path:
    """The page whose program is debugged."""
    return PAGE


@pytest.fixture
def console(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENWAFER_JOURNAL", str(tmp_path))
    for text, name in FILE.findall(page.read_text(encoding="utf-8")):
        Path(name).write_text(text, encoding="utf-8")
    (command,) = COMPILATION.findall(page.read_text(encoding="utf-8"))
    assert cslc.run(command.split()) == 0
    hangs = pytest.raises(OpenwaferError, match="nothing moves any more")
    with hangs if page == PAGE else nullcontext():
        runpy.run_path("run.py")
    (journal,) = journals.kept_in(tmp_path)
    return Console(Debugger(wafer.load("out").program, journal), io.StringIO(), io.StringIO())


def answer(console: Console, command: str) -> str:
    """What the console says to a command."""
    console.stdout = io.StringIO()
    console.onecmd(console.precmd(command))
    return console.stdout.getvalue()


@pytest.mark.parametrize("page", [PAGE, GUIDE / "debugger-wrong-result.md"], ids=lambda p: p.stem)
def test_causes_are_found_as_the_pages_show(page: Path, console: Console) -> None:
    for session in SESSION.findall(page.read_text(encoding="utf-8")):
        for part in session.split("(csl) ")[1:]:
            command, _, shown = part.partition("\n")
            assert answer(console, command) == shown


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("jump", "there is no command 'jump'"),
        ("break 1 2", "no place to stop"),
        ("break 12", "runs no code, so it is at no line"),
        ("break send.csl:400", "has no code from line 400 on"),
        ("delete 7", "there is no breakpoint 7; there are none"),
        ("pe 5 0", "there is no PE (5, 0)"),
        ("cycle soon", "'soon' is no number"),
        ("up", "0 functions wait"),
        ("print data[8]", "8 is no index of 8 elements"),
    ],
)
def test_mistakes_are_told_and_the_session_goes_on(
    console: Console, command: str, told: str
) -> None:
    assert told in answer(console, command)
    assert "send.csl:17" in answer(console, "b send.csl:17")


def test_all_that_waits_and_the_source_are_shown(console: Console) -> None:
    answer(console, "break receive.csl:1 at 1 0 if count > 4")
    assert "receive.csl:9" in answer(console, "c")
    assert ">   9 " in answer(console, "l")
    assert answer(console, "bt") == "*0 receive.csl:9 (main)\n"
    assert "main thread" in answer(console, "c") + answer(console, "why")
    assert "1 hit" in answer(console, "breakpoints")


@pytest.mark.usefixtures("console")
def test_the_command_takes_lines_from_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    (journal,) = Path().glob("*.journal")
    monkeypatch.setattr("sys.stdin", io.StringIO("b send.csl:17\nc\np count\n"))
    done = run_command("csl", "debug", "out", "--replay", journal)
    assert done.code == 0
    assert "breakpoint 1: send.csl:17\n" in done.out
    assert "u16 8\n" in done.out
    assert "debug-of-what" in run_command("csl", "debug", "out").err


def test_a_source_that_has_changed_since_is_told(console: Console) -> None:
    Path("send.csl").write_text("// nothing", encoding="utf-8")
    answer(console, "break send.csl:17")
    assert "has changed since" in answer(console, "continue")
