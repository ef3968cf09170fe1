"""Files with one mistake: CSL, then the expected report as trailing comment.

The first line of the comment names the stage that finds the mistake; the lines below it are the
rendered diagnostics, a blank line between two of them::

    const x = 1

    // expected from syntax:
    // error[csl-missing-semicolon]: expected ';' after the declaration
    // ...
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openwafer.diagnostics import Diagnostic, OpenwaferError, render
from openwafer.sdk.csl.imports import ImportPaths
from openwafer.sdk.csl.lint.image import linted
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.sema.image import analyze_image
from openwafer.source import SourceText

FOLDER = Path(__file__).parent / "errors"
_HEADING = re.compile(r"^// expected from (?P<stage>[a-z-]+):\n", re.MULTILINE)


def _syntax(source: SourceText) -> tuple[Diagnostic, ...]:
    return parse(source)[1]


def _sema(source: SourceText) -> tuple[Diagnostic, ...]:
    path = Path("/program", source.name)
    imports = ImportPaths(path.parent)
    imports.parsed[path] = parse(source)
    try:
        options = CompileOptions()
        return linted(analyze_image(path, {}, options, imports), options.arch).warnings
    except OpenwaferError as error:
        return error.diagnostics


STAGES: Mapping[str, Callable[[SourceText], tuple[Diagnostic, ...]]] = {
    "syntax": _syntax,
    "sema": _sema,
}


@dataclass(frozen=True)
class ErrorFile:
    """One file, split at the heading of its expectation."""

    path: Path
    program: str
    stage: str
    expected: str

    def reported(self) -> str:
        """What the stage reports now, as comment lines."""
        diagnostics = STAGES[self.stage](SourceText(self.path.name, self.program))
        lines = "\n\n".join(map(render, diagnostics)).splitlines()
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def rewrite(self) -> None:
        """Replace the expectation by what is reported now."""
        heading = f"// expected from {self.stage}:\n"
        self.path.write_text(self.program + heading + self.reported(), encoding="utf-8")


def read(path: Path) -> ErrorFile:
    """Read one file; a ValueError where it has no heading."""
    text = path.read_text(encoding="utf-8")
    heading = _HEADING.search(text)
    if heading is None:
        raise ValueError(f"{path.name} has no line '// expected from STAGE:'")
    return ErrorFile(path, text[: heading.start()], heading["stage"], text[heading.end() :])
