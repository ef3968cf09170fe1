"""Points in CSV and JSON files, as docs/formats/openwafer-points.md describes them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.figures import Origin
from openwafer.json_files import JsonMistake, decode
from openwafer.planning.laws.points import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    CurvePoint,
    TrainedPoint,
)

FORMAT = "openwafer-points"
VERSION = 1
HEAD = f"# {FORMAT} {VERSION}"
REMEDY = f"docs/formats/{FORMAT}.md describes the file"


@dataclass(frozen=True)
class PointRow:
    """One point as a file has it; without `flops` it is 6 x parameters x tokens."""

    loss: float
    flops: float | None = None
    parameters: float | None = None
    tokens: float | None = None
    tokenizer: str | None = None
    name: str | None = None
    origin: Origin = Origin.MEASURED
    data: str | None = None
    precision: str | None = None
    sequence_length: int | None = None
    sparsity: float | None = None
    schedule: str | None = None
    held_out_tokens: int | None = None
    batch_tokens: float | None = None
    learning_rate: float | None = None
    parametrization: str | None = None
    noise_scale_tokens: float | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class PointFile:
    """The content of a JSON file of points."""

    format: str
    version: int
    points: tuple[PointRow, ...]


TEXTS = ("tokenizer", "name", "data", "precision", "schedule", "parametrization")
COUNTS = ("sequence_length", "held_out_tokens")
# A curve has many numbers, and so stands in JSON only.
COLUMNS = tuple(field.name for field in fields(PointRow) if field.name != "curve")
NUMBERS = tuple(name for name in COLUMNS if name not in (*TEXTS, *COUNTS, "origin"))


def read_points(path: PathLike) -> tuple[TrainedPoint, ...]:
    """The points of a .json file, or of a CSV file by any other name.

    Raises:
        OpenwaferError: ``points-file`` with the line or key that is wrong.
    """
    path = path_of(path, "path")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as cause:
        raise _mistake(f"{path}: {cause.strerror}", "give a run, or a file of points") from cause
    except UnicodeDecodeError as cause:
        raise _mistake(f"{path}: not UTF-8 text: {cause}") from cause
    rows = _json_rows(path, text) if path.suffix == ".json" else _csv_rows(path, text)
    if not rows:
        raise _mistake(f"{path} has no points")
    return tuple(_point(row, place) for place, row in rows.items())


def _json_rows(path: Path, text: str) -> dict[str, PointRow]:
    try:
        content = decode(PointFile, text)
    except JsonMistake as cause:
        raise _mistake(f"{path}: {cause}") from cause
    if (content.format, content.version) != (FORMAT, VERSION):
        raise _other_version(path, f"{content.format} {content.version}")
    return {f"{path}: points[{n}]": row for n, row in enumerate(content.points)}


def _csv_rows(path: Path, text: str) -> dict[str, PointRow]:
    lines = text.splitlines()
    if lines and lines[0].startswith(f"# {FORMAT}") and lines[0].strip() != HEAD:
        raise _other_version(path, lines[0].removeprefix("# ").strip())
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    rows = list(csv.reader([line for _, line in numbered], skipinitialspace=True))
    columns = [column.strip() for column in rows[0]] if rows else []
    _require_columns(path, columns)
    return {
        f"{path}:{number}": _csv_row(f"{path}:{number}", columns, row)
        for (number, _), row in zip(numbered[1:], rows[1:], strict=True)
    }


def _require_columns(path: Path, columns: Sequence[str]) -> None:
    if "loss" not in columns:
        raise _mistake(f"{path} has no column 'loss', only {', '.join(columns) or 'nothing'}")
    for column in columns:
        if column not in COLUMNS or columns.count(column) > 1:
            problem = "no column of points" if column not in COLUMNS else "a column twice"
            raise _mistake(f"{path}: {column!r} is {problem}", did_you_mean(column, COLUMNS))


def _csv_row(place: str, columns: Sequence[str], row: Sequence[str]) -> PointRow:
    if len(row) != len(columns):
        raise _mistake(f"{place}: {len(row)} values for {len(columns)} columns")
    given = {key: text.strip() for key, text in zip(columns, row, strict=True) if text.strip()}
    if "loss" not in given:
        raise _mistake(f"{place} has no loss")
    values: dict[str, Any] = {key: given[key] for key in TEXTS if key in given}
    values |= {key: _number(place, key, given[key]) for key in NUMBERS if key in given}
    values |= {key: _count(place, key, given[key]) for key in COUNTS if key in given}
    return PointRow(**values, origin=_origin(place, given))


def _number(place: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as cause:
        raise _mistake(f"{place}: {key} is {text!r}, not a number") from cause


def _count(place: str, key: str, text: str) -> int:
    number = _number(place, key, text)
    if not number.is_integer():
        raise _mistake(f"{place}: {key} is {text!r}, not a whole number")
    return int(number)


def _origin(place: str, given: Mapping[str, str]) -> Origin:
    text = given.get("origin", Origin.MEASURED)
    if text not in (*Origin,):
        raise _mistake(f"{place}: origin is {text!r}", f"one of {', '.join(Origin)}")
    return Origin(text)


def _point(row: PointRow, place: str) -> TrainedPoint:
    flops = row.flops
    if flops is None:
        if row.parameters is None or row.tokens is None:
            raise _mistake(f"{place} has neither flops nor both parameters and tokens")
        flops = FLOPS_PER_PARAMETER_AND_TOKEN * row.parameters * row.tokens
    known = {field.name: getattr(row, field.name) for field in fields(PointRow)}
    return TrainedPoint(**(known | {"flops": flops, "name": row.name or place}))


def _mistake(message: str, remedy: str = REMEDY) -> OpenwaferError:
    return error("points-file", message, help=remedy)


def _other_version(path: Path, found: str) -> OpenwaferError:
    return _mistake(f"{path} is {found}; this program reads {FORMAT} {VERSION}")
