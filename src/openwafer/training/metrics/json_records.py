"""Files of frozen dataclasses as JSON, read back with the file and key of every mistake.

JSON has no NaN: a number that is not finite is written as the text nan, inf or -inf.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import JsonMistake, Unchecked, convert, decode

Record = TypeVar("Record")
CORRUPT = "run-file-corrupt"
_NOT_FINITE = ("nan", "inf", "-inf")
_NUMBERS = (float, float | None)


@dataclasses.dataclass(frozen=True)
class RunFile(Generic[Record]):
    """A kind of file of a run folder that holds one JSON object: the fields of a dataclass."""

    file_name: str
    format: str
    version: int
    record: type[Record]

    def write(self, run_folder: PathLike, record: Record) -> None:
        """Write the file, replacing an older one."""
        document = {"format": self.format, "version": self.version, **vars(record)}
        text = json.dumps(document, ensure_ascii=False, default=vars)
        write_text(path_of(run_folder, "run_folder") / self.file_name, f"{text}\n")

    def read(self, run_folder: PathLike) -> Record:
        """Read the file.

        Raises `OpenwaferError`: run-file-missing, run-file-version, or run-file-corrupt with the
        key.
        """
        path = path_of(run_folder, "run_folder") / self.file_name
        value = parse_json(read_text(path), str(path))
        check_format(value, self.format, self.version, str(path))
        return parse_record(self.record, value, str(path))

    def read_if_present(self, run_folder: Path) -> Record | None:
        """Read the file, or give None where there is none; for errors see :meth:`read`."""
        return self.read(run_folder) if (run_folder / self.file_name).exists() else None


def to_json(record: Any) -> str:
    """One line of JSON for a flat dataclass of numbers, texts and nulls."""
    values = {
        field.name: _without_nonfinite(getattr(record, field.name))
        for field in dataclasses.fields(record)
    }
    return json.dumps(values, allow_nan=False)


def parse_json(text: str | bytes, origin: str) -> Mapping[str, object]:
    """The JSON object in `text`; `origin` names it in errors.

    Raises `OpenwaferError` (run-file-corrupt) for text that is not JSON or not an object.
    """
    try:
        return decode(Unchecked, text)
    except JsonMistake as cause:
        raise corrupt(origin, str(cause)) from cause


def read_text(path: Path) -> str:
    """The file's UTF-8 text; raises `OpenwaferError` (run-file-missing, run-file-corrupt)."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as cause:
        raise error(
            "run-file-missing",
            f"{path}: {cause.strerror}",
            help="give the folder of a run, as `openwafer train` writes it",
        ) from cause
    except UnicodeDecodeError as cause:
        raise corrupt(str(path), f"not UTF-8 text: {cause}") from cause


def check_format(value: Mapping[str, object], name: str, version: int, origin: str) -> None:
    """Refuse a file whose `format` and `version` are not those that this reader knows."""
    found_name, found_version = value.get("format"), value.get("version")
    if (found_name, found_version) != (name, version):
        raise error(
            "run-file-version",
            f"{origin}: expected format {name!r} version {version}, "
            f"found {found_name!r} version {found_version!r}",
            help="read it with the release of openwafer that wrote it",
        )


def parse_record(kind: type[Record], value: Mapping[str, object], origin: str) -> Record:
    """The dataclass `kind` built from a JSON object, every key and type checked.

    Raises `OpenwaferError` (run-file-corrupt) with the file, the key and what was found.
    """
    texts = {key: text for key, text in value.items() if text in _NOT_FINITE}
    numbers = {
        key: float(str(text))
        for key, text in texts.items()
        if get_type_hints(kind).get(key) in _NUMBERS
    }
    try:
        return convert(kind, {**value, **numbers})
    except JsonMistake as cause:
        raise corrupt(origin, str(cause)) from cause


def corrupt(origin: str, message: str) -> OpenwaferError:
    """The error for content that breaks its file's contract."""
    return error(
        CORRUPT,
        f"{origin}: {message}",
        help="the file was changed or cut after it was written; docs/formats/ describes it",
    )


def _without_nonfinite(value: object) -> object:
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_not_finite else value
