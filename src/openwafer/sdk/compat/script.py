"""Runs a host script with the vendor's modules in place, as ``cs_python SCRIPT ...`` does."""

import os
import random
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

import openwafer
from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.sdk.compat import finder, numpy1
from openwafer.sdk.compat.numpy1.modules import run_as_main
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
        run_as_main(script)
    except OpenwaferError as found:
        place = _line_of_script(found, script)
        raise OpenwaferError(*(_at(one, place) for one in found.diagnostics)) from found


def show_mistake(
    kind: type[BaseException], mistake: BaseException, _trace: TracebackType | None
) -> None:
    """Print what ended a script, for `sys.excepthook`, with the frames of the script alone.

    Those below its first line run it, and those behind its operators compute by numpy 1's rules.
    """
    chained: BaseException | None = mistake
    while chained is not None:
        chained.__traceback__ = _frames_of_script(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__
    sys.__excepthook__(kind, mistake, mistake.__traceback__)


def _frames_of_script(trace: TracebackType | None) -> TracebackType | None:
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    modules = [link.tb_frame.f_globals.get("__name__", "") for link in links]
    start = modules.index(run_as_main.__module__) + 1 if run_as_main.__module__ in modules else 0
    rest: TracebackType | None = None
    for link, module in reversed(list(zip(links[start:], modules[start:], strict=True))):
        if not module.startswith(numpy1.__name__):
            rest = TracebackType(rest, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return rest


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
