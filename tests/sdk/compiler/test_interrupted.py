"""Ctrl-C ends a compilation, wherever it is."""

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openwafer.cli import EXIT_INTERRUPTED, cslc

# An interrupt while the command loads them would end this process without a word.
from openwafer.sdk.compiler import compilations, pipeline  # noqa: F401
from tests.sdk.busy import interrupt, once_computed

ENDLESS = """
fn spin() i16 { var k: i32 = 0; while (k >= 0) { k = (k + 1) % 1000; } return 1; }
const bits = spin();
layout { @comptime_assert(bits == 1); }
"""


@pytest.fixture
def interrupts() -> Iterator[list[float]]:
    sent: list[float] = []

    def note_and_interrupt() -> None:
        sent.append(time.process_time())
        interrupt()

    # A command in the background of a shell begins with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = once_computed(1.0, note_and_interrupt)
    yield sent
    thread.join()
    signal.signal(signal.SIGINT, before)
    gc.enable()


def test_an_endless_computation_ends_within_a_second_of_an_interrupt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interrupts: list[float],
) -> None:
    (tmp_path / "layout.csl").write_text(ENDLESS)
    monkeypatch.setattr(sys, "argv", ["cslc", str(tmp_path / "layout.csl"), "--arch=wse3"])
    with pytest.raises(SystemExit, match=str(EXIT_INTERRUPTED)):
        cslc.main()
    assert time.process_time() - interrupts[0] < 1
    assert capsys.readouterr().err == "interrupted: nothing was compiled\n"


AT_IMPORT = """
import importlib, os, signal, sys
command, module = sys.argv[1:3]
del sys.argv[1:3]
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt(event, arguments):
    if event == "import" and arguments[0] == module:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
importlib.import_module(command).main()
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("openwafer.cli.cslc", "openwafer.diagnostics"),
        ("openwafer.cli.cslc", "openwafer.sdk.csl.parser"),
        ("openwafer.cli.cs_python", "numpy"),
        ("openwafer.cli.cs_python", "llvmlite"),
        ("openwafer.cli", "typer"),
    ],
)
def test_an_interrupt_while_a_command_loads_ends_it_without_a_word(
    command: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("layout {}")
    line = [sys.executable, "-c", AT_IMPORT, command, module, str(tmp_path / "file")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "")
