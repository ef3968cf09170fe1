"""Measurements and programs that need a process of their own."""

import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import forked


def text_of(module: str, *arguments: object) -> str:
    """What a module of the tests prints when it runs as a program."""
    with TemporaryDirectory() as folder:
        told = Path(folder, "told")
        process = forked.start(_run, module, [*map(str, arguments)], told)
        assert forked.exit_codes([process]) == [0]
        return told.read_text()


def integers_of(module: str, *arguments: object) -> tuple[int, ...]:
    """The integers that it prints."""
    return tuple(map(int, text_of(module, *arguments).split()))


def _run(module: str, arguments: list[str], told: Path) -> None:
    sys.argv[1:] = arguments
    with told.open("w") as file, redirect_stdout(file):
        runpy.run_module(module, run_name="__main__")
