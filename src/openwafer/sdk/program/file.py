"""A program as one file: a zip archive of ``program.json`` and an ``.npy`` file for each array.

The JSON holds the fields of the dataclasses by name, so a reader needs this package's classes and
nothing else; docs/formats/openwafer-program.md describes it for other readers.
"""

import io
import typing
import zipfile
import zlib
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from openwafer import json_files
from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-program"
VERSION: Final = 6

_RECORD: Final = "program.json"
_ARRAYS: Final = ("image_of", "parameters", "routes_of")
# Archives of equal programs are equal byte for byte.
_DATE: Final = (1980, 1, 1, 0, 0, 0)
_COMPILE_AGAIN: Final = "compile it again with the cslc of this installation"
# What zipfile and numpy raise for archives that are torn, foreign or of another kind.
_MISTAKES: Final = (zipfile.BadZipFile, zlib.error, LookupError, ValueError, EOFError, RuntimeError)


@dataclass(frozen=True)
class _Head:
    format: str
    version: int


_OWN: Final = {
    name: kind for name, kind in typing.get_type_hints(Program).items() if name not in _ARRAYS
}
"""What the JSON holds: the fields of a program that are no arrays, with their types."""
_Record: Final = make_dataclass("_Record", _OWN.items(), frozen=True)


def write(program: Program, path: Path) -> None:
    """Write a program atomically. Raises OSError where the disk refuses."""
    write_bytes(path, content(program))


def content(program: Program) -> bytes:
    """The bytes of a program's file."""
    own = {name: getattr(program, name) for name in _OWN}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        _add(archive, _RECORD, json_files.encode({"format": FORMAT, "version": VERSION} | own))
        for name in _ARRAYS:
            stored = io.BytesIO()
            np.save(stored, getattr(program, name), allow_pickle=False)
            _add(archive, f"{name}.npy", stored.getvalue())
    return whole.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED, compresslevel=1)


def read(path: Path) -> Program:
    """Read what `write` wrote.

    Raises OpenwaferError when there is no such file, when it is damaged, or when another version
    of the format wrote it.
    """
    if not path.is_file():
        raise error(
            "program-missing",
            f"there is no compiled program at {path}",
            help="compile it first: cslc LAYOUT.csl -o FOLDER ...",
        )
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            text = archive.read(_RECORD)
            arrays: dict[str, Any] = {name: _read_array(archive, name) for name in _ARRAYS}
    except _MISTAKES as cause:
        raise _damaged(f"{path} is no program file: {cause}") from cause
    try:
        _check_version(path, json_files.decode(_Head, text))
        record = vars(json_files.decode(_Record, text))
    except json_files.JsonMistake as cause:
        raise _damaged(f"{path} is damaged: {cause}") from cause
    return Program(**record, **arrays)


def _read_array(archive: zipfile.ZipFile, name: str) -> Any:
    return np.load(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)


def _damaged(message: str) -> OpenwaferError:
    return error("program-damaged", message, help=_COMPILE_AGAIN)


def _check_version(path: Path, head: _Head) -> None:
    if (head.format, head.version) != (FORMAT, VERSION):
        raise error(
            "program-version",
            f"{path} has format {head.format!r} version {head.version}; "
            f"this program reads {FORMAT!r} version {VERSION}",
            help=_COMPILE_AGAIN,
        )
