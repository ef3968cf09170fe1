"""Runs a host script with the vendor's modules in place, as ``cs_python SCRIPT ...`` does."""

import os
import random
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import openwafer
from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.sdk.compat import finder
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE


def run_script(arguments: Sequence[str], commands: Path | None) -> None:
    """Run the script that the first argument names, in this process, as ``__main__``.

    Args:
        arguments: the script, then its own arguments.
        commands: folder whose commands the script's own processes find first; None leaves PATH.

    Raises:
        OpenwaferError: no script is named, or there is none. What the script raises passes.
    """
    if not arguments:
        raise error("no-script", "no script is named", help="write: cs_python run.py --name out")
    script = Path(arguments[0])
    if not script.is_file():
        raise error("no-script", f"there is no script {script}")
    if commands is not None:
        os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
    sys.argv = list(arguments)
    sys.path.insert(0, str(script.resolve().parent))
    finder.install()
    if FINAL_STATE_VARIABLE in os.environ:
        # Runs that are compared start from the same random numbers.
        random.seed(0)
        np.random.seed(0)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except OpenwaferError as found:
        place = _line_of_script(found, script)
        raise OpenwaferError(*(_at(one, place) for one in found.diagnostics)) from found


def _line_of_script(found: OpenwaferError, script: Path) -> str:
    """`file:line` of the script's call that an error came from, or of a module beside it."""
    folder, package = script.resolve().parent, Path(openwafer.__file__).parent
    for frame in reversed(traceback.extract_tb(found.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(folder) and not path.is_relative_to(package):
            return f"{path.relative_to(folder)}:{frame.lineno}"
    return ""


def _at(diagnostic: Diagnostic, place: str) -> Diagnostic:
    if not place or diagnostic.span is not None:
        return diagnostic
    return replace(diagnostic, notes=(*diagnostic.notes, f"at {place}"))
