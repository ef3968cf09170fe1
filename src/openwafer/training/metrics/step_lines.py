"""Files of one JSON object a step: written line by line, read whole, cut when a run resumes.

The first line is a header with the format and its version. Each row is flushed when written. A
kill can leave a torn last line, which is no error: the reader sets it apart.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.metrics.json_records import (
    CORRUPT,
    check_format,
    corrupt,
    parse_json,
    parse_record,
    read_text,
    to_json,
)


class StepRow(Protocol):
    """Anything that belongs to one step, counted from 0."""

    @property
    def step(self) -> int: ...


Row = TypeVar("Row", bound=StepRow)


@dataclass(frozen=True)
class LineFormat(Generic[Row]):
    """A kind of file: its name, its version, and the dataclass of its rows.

    `oldest` is the first version whose rows that dataclass holds, too; None if only this one's.
    """

    name: str
    version: int
    row: type[Row]
    oldest: int | None = None

    def header(self) -> str:
        return json.dumps({"format": self.name, "version": self.version})

    def check(self, header: Mapping[str, object], origin: str) -> None:
        """Refuse a file of another kind, or of a version whose rows cannot be read."""
        found, oldest = header.get("version"), self.oldest or self.version
        known = self.version
        if isinstance(found, int) and oldest <= found < self.version:
            known = found
        check_format(header, self.name, known, origin)


@dataclass(frozen=True)
class StepLines(Generic[Row]):
    """The rows of a file, and the torn last line that a kill left behind, empty if none."""

    rows: tuple[Row, ...]
    torn: str


def read_lines(path: PathLike, file_format: LineFormat[Row]) -> StepLines[Row]:
    """Read the whole file.

    Raises `OpenwaferError`: run-file-missing, run-file-version, and run-file-corrupt with the
    line's number for a whole line that breaks the format.
    """
    path = path_of(path, "path")
    *lines, torn = read_text(path).split("\n")
    if not lines:
        raise corrupt(f"{path}:1", "missing header line")
    header = parse_json(lines[0], f"{path}:1")
    file_format.check(header, f"{path}:1")
    rows = tuple(
        parse_record(file_format.row, parse_json(line, f"{path}:{number}"), f"{path}:{number}")
        for number, line in enumerate(lines[1:], start=2)
    )
    return StepLines(rows, torn)


class StepWriter(Generic[Row]):
    """Appends rows to a file, each flushed to the kernel before `append` returns.

    `first_step` is the step about to run. At 0 the file starts anew; later, rows of that step
    and after it are dropped together with a torn line, by an atomic rewrite, and the rest stays.
    Of a damaged file the whole rows stay, and `damaged` is where the file is kept as it was.
    """

    def __init__(
        self, path: PathLike, file_format: LineFormat[Row], *, first_step: int = 0
    ) -> None:
        path = path_of(path, "path")
        self.damaged: Path | None = None
        kept = self._kept_rows(path, file_format) if first_step else ()
        _write_rows(path, file_format, (row for row in kept if row.step < first_step))
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _kept_rows(self, path: Path, file_format: LineFormat[Row]) -> tuple[Row, ...]:
        try:
            return read_lines(path, file_format).rows
        except OpenwaferError as found:
            if found.diagnostics[0].code != CORRUPT:
                raise
        self.damaged = path.with_name(f"damaged-{path.name}")
        shutil.copyfile(path, self.damaged)
        return _whole_rows(path, file_format)

    def append(self, row: Row) -> None:
        """Add one line; raises `OpenwaferError` (metrics-not-written), say on a full disk."""
        left = memoryview(f"{to_json(row)}\n".encode())
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as cause:
            raise error(
                "metrics-not-written",
                f"{self._path}: step {row.step}: {cause.strerror}",
                help="make room on that disk, then resume the run; no earlier step is lost",
            ) from cause

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _whole_rows(path: Path, file_format: LineFormat[Row]) -> tuple[Row, ...]:
    rows = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(OpenwaferError):
            rows.append(parse_record(file_format.row, parse_json(line, ""), ""))
    return tuple(rows)


def _write_rows(path: Path, file_format: LineFormat[Row], rows: Iterable[Row]) -> None:
    lines = [file_format.header(), *(to_json(row) for row in rows)]
    write_text(path, "".join(f"{line}\n" for line in lines))
