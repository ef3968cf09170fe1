"""Files of one JSON object a step: written line by line, read whole, cut when a run resumes.

The first line is a header with the format and its version. Each row is flushed when written. A
kill can leave a torn last line, which is no error: the reader sets it apart.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

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
    `kept` are the rows that stay.
    """

    def __init__(
        self, path: PathLike, file_format: LineFormat[Row], *, first_step: int = 0
    ) -> None:
        path = path_of(path, "path")
        self.damaged: Path | None = None
        kept = self._kept_rows(path, file_format) if first_step else ()
        self.kept = tuple(row for row in kept if row.step < first_step)
        _write_rows(path, file_format, self.kept)
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


@dataclass(frozen=True)
class StepMetrics:
    """The work and the cost of one training step.

    `step` counts from 0. `grad_norm` is the global norm before clipping, None when it was not
    computed. `tokens` were trained on in this step, in `seconds` of wall time. Fetch and push
    bytes crossed the link between store and device; `host_bytes` is the resident set.
    `device_bytes_peak` is None where the step was not metered. `expert_bytes` are those of the
    experts' weights that the step used, None where no experts stream one by one. Where several
    systems ran the step, there is a number for each, in the order of ranks: `system_seconds` from
    the beginning of its forward to the end of its backward, `system_waiting_seconds` of these in
    which it waited for others, and `system_received_bytes` that came from them; None otherwise.
    Where it is measured, there are the gradient noise scale, smoothed, in samples (`noise_scale`)
    and in tokens, and of this step alone squared norm of the gradient (`gradient_signal`) and
    variance of one sample's gradient (`gradient_noise`), both unbiased.
    `layer_calls` are those of layers in the forwards of all micro-batches, where the model streams;
    None elsewhere.
    `flops` are those of matrix products, convolutions and attentions, None where the step was not
    metered.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    tokens: int
    tokens_per_second: float
    seconds: float
    fetch_bytes: int
    push_bytes: int
    disk_read_bytes: int
    disk_write_bytes: int
    device_bytes_peak: int | None
    host_bytes: int
    expert_bytes: int | None = None
    system_seconds: tuple[float, ...] | None = None
    system_waiting_seconds: tuple[float, ...] | None = None
    system_received_bytes: tuple[int, ...] | None = None
    noise_scale: float | None = None
    noise_scale_tokens: float | None = None
    gradient_signal: float | None = None
    gradient_noise: float | None = None
    layer_calls: int | None = None
    flops: int | None = None


def measured_peaks(metrics: Sequence[StepMetrics]) -> dict[int, int]:
    """The highest device memory by step, of the steps that were metered."""
    return {row.step: row.device_bytes_peak for row in metrics if row.device_bytes_peak is not None}


@dataclass(frozen=True)
class ValidationPoint:
    """The loss on held-out data with the parameters that step `step` left behind.

    Where a scaling law judges it, it has the bounds that the law expects, and whether the loss is
    between them.
    """

    step: int
    loss: float
    expected_low: float | None = None
    expected_high: float | None = None
    is_on_track: bool | None = None


@dataclass(frozen=True)
class MaskChange:
    """One update of one mask, after step `step`, counted from 0.

    `kept` elements of `weight` are kept from then on; `dropped` were kept before, `grown` were not.
    """

    step: int
    weight: str
    kept: int
    dropped: int
    grown: int

    @property
    def churn(self) -> float:
        """Share of the elements kept before that are not any more; 0 where none was."""
        before = self.kept + self.dropped - self.grown
        return self.dropped / before if before else 0.0


METRICS_FORMAT: Final = LineFormat("openwafer-metrics", 2, StepMetrics, oldest=1)
VALIDATION_FORMAT: Final = LineFormat("openwafer-validation", 2, ValidationPoint, oldest=1)
MASKS_FORMAT: Final = LineFormat("openwafer-masks", 1, MaskChange)
