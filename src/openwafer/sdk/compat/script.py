"""Runs a host script with the vendor's modules in place, as ``cs_python SCRIPT ...`` does."""

import os
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import TracebackType

import numpy as np

import openwafer
from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.sdk.compat import finder, numpy1
from openwafer.sdk.compat.numpy1.modules import run_as_main
from openwafer.sdk.host.ending import judge_all, tell_of_all
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE


def run_script(arguments: Sequence[str], commands: Path | None) -> bool:
    """Run the script that the first argument names, in this process, as ``__main__``.

    Returns whether checks told of mistakes in a script that ended well.

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
    sys.path.extend(_packages_of_environment())
    finder.install()
    if FINAL_STATE_VARIABLE in os.environ:
        # Runs that are compared start from the same random numbers.
        random.seed(0)
        np.random.seed(0)
    try:
        run_as_main(script)
    except SystemExit as end:
        if end.code:
            tell_of_all()
            raise
    except OpenwaferError as found:
        tell_of_all()
        place = _line_of_script(found, script)
        raise OpenwaferError(*(_at(one, place) for one in found.diagnostics)) from found
    except Exception:
        tell_of_all()
        raise
    return judge_all()


def _packages_of_environment() -> Iterator[str]:
    """Packages of the environment that is active, behind our own, where its Python is like ours."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = Path(os.environ.get(name, sys.prefix)).resolve()
        folder = active / "lib" / version / "site-packages"
        if active != Path(sys.prefix).resolve() and folder.is_dir():
            yield str(folder)


def _remedy_for_module(missing: ModuleNotFoundError) -> str:
    package = (missing.name or "").partition(".")[0]
    return (
        f"help: cs_python runs scripts in {sys.executable}, and finds packages there and in the "
        f"active environment of the same Python version; install what has '{package}': "
        f"{sys.executable} -m pip install {package}\n"
    )


def show_mistake(
    kind: type[BaseException], mistake: BaseException, _trace: TracebackType | None
) -> None:
    """Print what ended a script, for `sys.excepthook`, with the frames of the script alone.

    Those below its first line run it, those behind its operators compute by numpy 1's rules, and
    those of a call that was interrupted say nothing.
    """
    chained: BaseException | None = mistake
    while chained is not None:
        links = _links_of_script(chained.__traceback__)
        hidden = numpy1.__name__
        if isinstance(chained, KeyboardInterrupt):
            hidden = openwafer.__name__
            links = list(takewhile(_is_outside, links))
        rest: TracebackType | None = None
        for link, module in reversed(links):
            if not module.startswith(hidden):
                rest = TracebackType(rest, link.tb_frame, link.tb_lasti, link.tb_lineno)
        chained.__traceback__ = rest
        chained = chained.__cause__ or chained.__context__
    sys.__excepthook__(kind, mistake, mistake.__traceback__)
    if isinstance(mistake, ModuleNotFoundError):
        sys.stderr.write(_remedy_for_module(mistake))


def _is_outside(link: tuple[TracebackType, str]) -> bool:
    return not link[1].startswith(openwafer.__name__)


def _links_of_script(trace: TracebackType | None) -> list[tuple[TracebackType, str]]:
    """Each frame from the script's first line on, and the module it belongs to."""
    links: list[tuple[TracebackType, str]] = []
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        links = [] if module == run_as_main.__module__ else [*links, (trace, module)]
        trace = trace.tb_next
    return links


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
