"""Runs the command line inside the test's own process, where torch is loaded already."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from openwafer.cli import run

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(
    *arguments: object, out: io.StringIO | None = None, err: io.StringIO | None = None
) -> Done:
    """Run ``openwafer``; `out` and `err` take the place of standard output and error."""
    out, err = out or io.StringIO(), err or io.StringIO()
    earlier = sys.argv
    sys.argv = ["openwafer", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = _code_of_run()
    finally:
        sys.argv = earlier
    return Done(code, out.getvalue(), err.getvalue())


def settings(values: Sequence[str]) -> list[str]:
    """``--set`` before each value."""
    return [word for value in values for word in ("--set", value)]


def _code_of_run() -> int:
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
