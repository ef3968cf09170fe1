"""A program as one file: a zip archive of ``program.json`` and an ``.npy`` file for each array.

The JSON holds the fields of the dataclasses by name, so a reader needs this package's classes and
nothing else; docs/formats/openwafer-program.md describes it for other readers.
"""

import base64
import io
import json
import types
import typing
import zipfile
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import error
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-program"
VERSION: Final = 5

_RECORD: Final = "program.json"
_ARRAYS: Final = ("image_of", "parameters", "routes_of")
# Archives of equal programs are equal byte for byte.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def write(program: Program, path: Path) -> None:
    """Write a program atomically. Raises OSError where the disk refuses."""
    write_bytes(path, content(program))


def content(program: Program) -> bytes:
    """The bytes of a program's file."""
    record = {"format": FORMAT, "version": VERSION} | {
        field.name: _encode(getattr(program, field.name))
        for field in fields(program)
        if field.name not in _ARRAYS
    }
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        _add(archive, _RECORD, json.dumps(record).encode())
        for name in _ARRAYS:
            array = io.BytesIO()
            np.save(array, getattr(program, name), allow_pickle=False)
            _add(archive, f"{name}.npy", array.getvalue())
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
        with zipfile.ZipFile(path) as archive:
            record = json.loads(archive.read(_RECORD))
            arrays = {name: _read_array(archive, name) for name in _ARRAYS}
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as cause:
        raise error("program-damaged", f"{path} is no program file: {cause}") from cause
    _check_version(path, record)
    try:
        return typing.cast(Program, _decode_dataclass(Program, record, arrays))
    except (KeyError, TypeError, ValueError) as cause:
        raise error("program-damaged", f"{path}: a field is not as expected: {cause!r}") from cause


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    return typing.cast(
        NDArray[Any], np.load(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
    )


def _check_version(path: Path, record: dict[str, Any]) -> None:
    found = record.get("format"), record.get("version")
    if found != (FORMAT, VERSION):
        raise error(
            "program-version",
            f"{path} has format {found[0]!r} version {found[1]!r}; "
            f"this program reads {FORMAT!r} version {VERSION}",
            help="compile it again with the cslc of this installation",
        )


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(kind: Any, value: Any) -> Any:
    if kind is bytes:
        return base64.b64decode(value)
    if isinstance(kind, types.UnionType):
        inner = next(option for option in typing.get_args(kind) if option is not types.NoneType)
        return None if value is None else _decode(inner, value)
    if typing.get_origin(kind) is tuple:
        return _decode_tuple(typing.get_args(kind), value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, {})
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _decode_tuple(kinds: tuple[Any, ...], value: list[Any]) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        return tuple(_decode(kinds[0], item) for item in value)
    return tuple(_decode(kind, item) for kind, item in zip(kinds, value, strict=True))


def _decode_dataclass(kind: Any, record: dict[str, Any], known: dict[str, Any]) -> Any:
    hints = _hints(kind)
    return kind(
        **known,
        **{name: _decode(hint, record[name]) for name, hint in hints.items() if name not in known},
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
