"""Finds the files that `@import_module` names."""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Diagnostic, error, suggestion
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.files import content_of, obstacle
from openwafer.sdk.csl.parser import parse
from openwafer.source import SourceText, Span

LIBRARY: Final = Path(__file__).parent / "lib"
"""The standard library."""
PARAMS: Final = (ast.VariableKind.PARAM, ast.VariableKind.COLOR)
"""What whoever uses a file gives a value."""


@dataclass
class ImportPaths:
    """Where files are looked for, and what was read already.

    Attributes:
        top: folder of the program's layout file.
        folders: of the command line, for names in angle brackets first.
        with_address: names whose address is taken, by the id of a body in `parsed`.
        contents: of every file that was looked for; None where there is none.
        parsed: trees and findings by file.
        used: names at the top of files that some analysis asked for.
    """

    top: Path
    folders: tuple[Path, ...] = ()
    with_address: dict[int, frozenset[str]] = field(default_factory=dict)
    contents: dict[Path, bytes | None] = field(default_factory=dict)
    parsed: dict[Path, tuple[ast.Module, tuple[Diagnostic, ...]]] = field(default_factory=dict)
    used: set[tuple[Path, str]] = field(default_factory=set)
    _found: dict[tuple[str, Path], Path] = field(default_factory=dict, init=False)
    _params: dict[Path, dict[str, None]] = field(default_factory=dict, init=False)

    def find(self, name: str, importer: Path, span: Span) -> Path:
        """Path of an imported file.

        A name in angle brackets is one of the library or of the import folders; another one is
        relative to the importing file, then to the program's folder, then to the working folder.
        """
        key = name, importer
        if key not in self._found:
            self._found[key] = self._find(name, importer, span)
        return self._found[key]

    def _find(self, name: str, importer: Path, span: Span) -> Path:
        places = self._candidates(name, importer)
        for place in places:
            if self.content(place) is not None:
                return beside_link(place)
        raise error(
            "csl-no-file",
            f"cannot find the imported file '{name}'",
            span=span,
            notes=tuple(dict.fromkeys(map(_note_of_missing, places))),
            help=_remedy_for_missing(name, importer),
        )

    def content(self, path: Path) -> bytes | None:
        """Bytes of a file, read once; None where there is none."""
        if path not in self.contents:
            self.contents[path] = content_of(path)
        return self.contents[path]

    def _candidates(self, name: str, importer: Path) -> list[Path]:
        if name.startswith("<") and name.endswith(">"):
            inner = name[1:-1]
            folders = (LIBRARY, *self.folders)
            return [folder / f"{inner}{end}" for folder in folders for end in (".csl", "")]
        return [folder / name for folder in (importer.parent, self.top, Path.cwd())]

    def read(self, path: Path) -> tuple[ast.Module, tuple[Diagnostic, ...]]:
        """Parse a file, once."""
        if path not in self.parsed:
            text = (self.content(path) or b"").decode("utf-8", "replace")
            self.parsed[path] = parse(SourceText(display_name(path), text))
        return self.parsed[path]

    def params(self, path: Path) -> Collection[str]:
        """Names of the params that a file declares, in its order, found once."""
        if path not in self._params:
            tree, _ = self.read(path)
            variables = (node for node in tree.declarations if isinstance(node, ast.Variable))
            names = (node.name.text for node in variables if node.kind in PARAMS)
            self._params[path] = dict.fromkeys(names)
        return self._params[path]

    def declares(self, path: Path, name: str) -> bool:
        """Whether a file declares a variable, a constant or a function of that name."""
        tree, _ = self.read(path)
        named = (
            node for node in tree.declarations if isinstance(node, ast.Variable | ast.Function)
        )
        return any(node.name.text == name for node in named)


def beside_link(path: Path) -> Path:
    """The absolute path of a file as it is named: where it is a link, not that of its target.

    What a linked file imports lies beside the link, where a suite with shared sources has it.
    """
    plain = Path(os.path.normpath(path.absolute()))
    # A folder before `..` may be a link itself: then the way without both leads elsewhere.
    is_same = plain.exists() and plain.samefile(path)
    return plain if is_same or not path.exists() else path.absolute()


def _note_of_missing(place: Path) -> str:
    why = obstacle(place)
    return f"{display_name(place)} {why}" if why else f"not at {display_name(place)}"


def _remedy_for_missing(name: str, importer: Path) -> str:
    library = [display_name(path) for path in sorted(LIBRARY.rglob("*.csl"))]
    standard = f"<{name.removesuffix('.csl')}>"
    if standard in library:
        return f"a standard module is written in angle brackets: '{standard}'"
    beside = [path.name for path in sorted(importer.parent.glob("*.csl")) if path.is_file()]
    found = suggestion(name, library if name.startswith("<") else beside)
    if found:
        return found
    if name.startswith("<"):
        return "folders for such names are added with --import-path"
    return 'standard modules are written in angle brackets, as in "<math>"'


def display_name(path: Path) -> str:
    """The path as messages show it: from the library, or else from the working folder."""
    if path.is_relative_to(LIBRARY):
        return f"<{path.relative_to(LIBRARY).with_suffix('')}>"
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def module_name(path: Path) -> str:
    """What messages call a module, which tells one of the library from a file of that name."""
    name = display_name(path)
    return name if name.startswith("<") else path.name
