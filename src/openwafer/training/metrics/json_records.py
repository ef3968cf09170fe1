"""Frozen dataclasses to JSON objects and back, with the place of every mistake.

A dataclass is the contract of a file: its field names are the keys, its annotations the types.
Keys that a reader does not know are ignored, so that a file may say more than an older reader
asks for. JSON has no NaN: a number that is not finite is written as the text nan, inf or -inf.
"""

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from openwafer.diagnostics import OpenwaferError, error

Record = TypeVar("Record")
_NOT_FINITE = ("nan", "inf", "-inf")


def to_json(record: Any) -> str:
    """One line of JSON for a flat dataclass of numbers, texts and nulls."""
    values = {
        field.name: _portable(getattr(record, field.name)) for field in dataclasses.fields(record)
    }
    return json.dumps(values, allow_nan=False)


def parse_json(text: str, place: str) -> Mapping[str, object]:
    """The JSON object in `text`; `place` names it in errors.

    Raises `OpenwaferError` (run-file-corrupt) for text that is not JSON or not an object.
    """
    try:
        value = json.loads(text)
    except ValueError as cause:
        raise corrupt(place, f"not JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise corrupt(place, f"expected an object, found {_describe(value)}")
    return value


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


def check_format(value: Mapping[str, object], name: str, version: int, place: str) -> None:
    """Refuse a file whose `format` and `version` are not those that this reader knows."""
    found_name, found_version = value.get("format"), value.get("version")
    if (found_name, found_version) != (name, version):
        raise error(
            "run-file-version",
            f"{place}: expected format {name!r} version {version}, "
            f"found {found_name!r} version {found_version!r}",
            help="read it with the release of openwafer that wrote it",
        )


def parse_record(kind: type[Record], value: object, place: str) -> Record:
    """The dataclass `kind` built from a JSON object, every key and type checked.

    Raises `OpenwaferError` (run-file-corrupt) with the place of the key and what was found.
    """
    if not isinstance(value, dict):
        raise corrupt(place, f"expected an object, found {_describe(value)}")
    hints = _type_hints(cast("Any", kind))
    missing = [key for key in hints if key not in value]
    if missing:
        raise corrupt(place, f"missing key {missing[0]!r}")
    return kind(
        **{key: _convert(hint, value[key], f"{place}: {key}") for key, hint in hints.items()}
    )


def corrupt(place: str, message: str) -> OpenwaferError:
    """The error for content that breaks its file's contract."""
    return error(
        "run-file-corrupt",
        f"{place}: {message}",
        help="the file was changed or cut after it was written; docs/formats/ describes it",
    )


@functools.cache
def _type_hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _convert(hint: Any, value: object, place: str) -> Any:
    if isinstance(hint, types.UnionType):
        kept, _none = get_args(hint)
        return None if value is None else _convert(kept, value, place)
    if get_origin(hint) is tuple:
        return _convert_list(get_args(hint)[0], value, place)
    if dataclasses.is_dataclass(hint):
        return parse_record(cast("type[Any]", hint), value, place)
    if issubclass(hint, StrEnum):
        return _convert_choice(hint, value, place)
    if hint is float:
        return _convert_number(value, place)
    if type(value) is not hint:
        raise corrupt(place, f"expected {hint.__name__}, found {_describe(value)}")
    return value


def _convert_list(hint: Any, value: object, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise corrupt(place, f"expected a list, found {_describe(value)}")
    return tuple(_convert(hint, item, f"{place}[{index}]") for index, item in enumerate(value))


def _convert_choice(hint: type[StrEnum], value: object, place: str) -> StrEnum:
    if value not in list(hint):
        choices = ", ".join(hint)
        raise corrupt(place, f"expected one of {choices}, found {_describe(value)}")
    return hint(str(value))


def _convert_number(value: object, place: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise corrupt(place, f"expected a number, found {_describe(value)}")
    return float(value)


def _portable(value: object) -> object:
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_not_finite else value


def _describe(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"
