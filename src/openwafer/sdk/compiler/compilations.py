"""Whole compilations, kept on disk: the same command over the same files is answered at once.

Imports little, since a compilation that is found here ends in the time that imports take.
"""

import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import error
from openwafer.sdk.codegen import cache
from openwafer.sdk.csl.files import content_of
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program import FILE_NAME
from openwafer.sdk.program.sources import source_digest

PROGRAM: Final = f"bin/{FILE_NAME}"
"""The file of an output folder that runs read."""
_SUFFIX: Final = ".compilation"
_OTHER_FOLDER: Final = "name another folder: -o FOLDER"


@dataclass(frozen=True)
class Compilation:
    """What a compilation leaves behind.

    Attributes:
        artifacts: content of each file, by its path below the output folder.
        printed: lines of `@comptime_print`.
        warnings: rendered diagnostics.
    """

    artifacts: Mapping[str, bytes]
    printed: tuple[str, ...]
    warnings: tuple[str, ...]

    def write(self, folder: Path, output_json: Path | None = None) -> None:
        """Write the files below `folder`, and ``out.json`` once more where it is asked for.

        The program comes last: where it is, the others are. Raises OpenwaferError where that is
        impossible.
        """
        clear(folder)
        files = {folder / name: content for name, content in self.artifacts.items()}
        if output_json is not None:
            files[output_json] = self.artifacts["out.json"]
        for path, content in files.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, content)
            except OSError as found:
                message = f"{path} cannot be written: {found.strerror}"
                raise error("output-unwritable", message, help=_OTHER_FOLDER) from found


def clear(folder: Path) -> None:
    """Remove the program of an output folder, so that none runs where its successor fails.

    Raises OpenwaferError where a file stands in the folder's place, or where nothing can be there.
    """
    try:
        for path in (folder, *folder.parents):
            if path.exists() and not path.is_dir():
                message = f"the output folder is {folder}, and {path} is a file"
                raise error("output-is-file", message, help=_OTHER_FOLDER)
        with suppress(FileNotFoundError, NotADirectoryError):
            (folder / PROGRAM).unlink()
    except OSError as found:
        message = f"the output folder {folder} cannot be written: {found.strerror}"
        raise error("output-unwritable", message, help=_OTHER_FOLDER) from found


def find(layout: Path, options: CompileOptions) -> Compilation | None:
    """What the same compilation gave before; None when a file changed since, or there was none."""
    stored = cache.read(_key(layout, options), _SUFFIX)
    if stored is None:
        return None
    record = json.loads(stored)
    if any(digest_of(Path(path)) != digest for path, digest in record["sources"].items()):
        return None
    artifacts = {name: base64.b64decode(text) for name, text in record["artifacts"].items()}
    return Compilation(artifacts, tuple(record["printed"]), tuple(record["warnings"]))


def keep(
    layout: Path,
    options: CompileOptions,
    sources: Mapping[Path, bytes | None],
    compilation: Compilation,
) -> None:
    """Keep a compilation with what it read: the content of each file, None where there was none."""
    record = {
        "sources": {str(path): _digest(content) for path, content in sources.items()},
        "printed": compilation.printed,
        "warnings": compilation.warnings,
        "artifacts": {
            name: base64.b64encode(content).decode("ascii")
            for name, content in compilation.artifacts.items()
        },
    }
    cache.keep(_key(layout, options), _SUFFIX, json.dumps(record).encode())


def digest_of(path: Path) -> str | None:
    """Digest of a file; None where there is none."""
    return _digest(content_of(path))


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _key(layout: Path, options: CompileOptions) -> str:
    # Messages and symbols name files as they are seen from the working folder.
    places = str(Path.cwd()), str(layout.absolute())
    chosen = sorted((name, str(value)) for name, value in asdict(options).items())
    # The library's sources are files that a program reads.
    compiler = source_digest("arch", "program", "ir", "csl", "compiler")
    return cache.key_of(compiler, sys.version, *places, repr(chosen))
