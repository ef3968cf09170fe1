"""Runs a script of others in this process, as it is, and tells of its mistakes in its own lines."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

import openwafer
from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.foreign_modules import names_in


def prepare(arguments: Sequence[str], example: str) -> Path:
    """Let this process look as if Python had started the script that the first argument names.

    Args:
        arguments: the script, then its own arguments.
        example: what could be written where no script is named.

    Raises:
        OpenwaferError: ``no-script``: none is named, or there is none.
    """
    if not arguments:
        raise error("no-script", "no script is named", help=f"write: {example}")
    script = Path(arguments[0])
    if not script.is_file():
        raise error("no-script", f"there is no script {script}", help="name a file of Python")
    sys.argv = list(arguments)
    sys.path.insert(0, str(script.resolve().parent))
    sys.path.extend(_packages_of_environment())
    return script


def _packages_of_environment() -> Iterator[str]:
    """Packages of the environment that is active, behind our own, where its Python is like ours."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = Path(os.environ.get(name, sys.prefix)).resolve()
        folder = active / "lib" / version / "site-packages"
        if active != Path(sys.prefix).resolve() and folder.is_dir():
            yield str(folder)


def run_as_main(script: Path, code: CodeType) -> None:
    """Run the code of a script as ``__main__``. What it raises passes."""
    main = ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def show_mistake(mistake: BaseException, hidden: tuple[str, ...], command: str) -> None:
    """Print what ended a script, with the frames from its first line on.

    Those of a call of ours that was interrupted say nothing.

    Args:
        mistake: its traceback is cut.
        hidden: modules by the beginnings of their names, whose frames are left out.
        command: that has run the script.
    """
    chained: BaseException | None = mistake
    while chained is not None:
        links = _links_of_script(chained.__traceback__)
        unseen = hidden
        if isinstance(chained, KeyboardInterrupt):
            unseen = (openwafer.__name__,)
            links = list(takewhile(_is_outside, links))
        rest: TracebackType | None = None
        for link, module in reversed(links):
            if not module.startswith(unseen):
                rest = TracebackType(rest, link.tb_frame, link.tb_lasti, link.tb_lineno)
        chained.__traceback__ = rest
        chained = chained.__cause__ or chained.__context__
    sys.__excepthook__(type(mistake), mistake, mistake.__traceback__)
    if isinstance(mistake, ImportError):
        sys.stderr.write(_remedy_for_import(mistake, command))


def _remedy_for_import(missing: ImportError, command: str) -> str:
    name = missing.name or ""
    if not isinstance(missing, ModuleNotFoundError):
        known = names_in(name)
        return f"help: {name} has {', '.join(known)}\n" if known else ""
    package = name.partition(".")[0]
    return (
        f"help: {command} runs scripts in {sys.executable}, and finds packages there and in the "
        f"active environment of the same Python version; install what has '{package}': "
        f"{sys.executable} -m pip install {package}\n"
    )


def _is_outside(link: tuple[TracebackType, str]) -> bool:
    return not link[1].startswith(openwafer.__name__)


def _links_of_script(trace: TracebackType | None) -> list[tuple[TracebackType, str]]:
    """Each frame from the script's first line on, and the module it belongs to."""
    links: list[tuple[TracebackType, str]] = []
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        links = [] if module == __name__ else [*links, (trace, module)]
        trace = trace.tb_next
    return links


def at_line_of_script(found: OpenwaferError, script: Path) -> OpenwaferError:
    """The same error, which says from which line of the script, or of a module beside it, it is."""
    place = _line_of_script(found, script)
    return OpenwaferError(*(_at(one, place) for one in found.diagnostics))


def _line_of_script(found: OpenwaferError, script: Path) -> str:
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
