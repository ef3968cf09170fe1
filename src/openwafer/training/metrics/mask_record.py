"""A run records each update of each mask, and pictures of the masks of one layer."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.training.metrics.json_records import (
    check_format,
    parse_json,
    parse_record,
    read_text,
)
from openwafer.training.metrics.step_lines import LineFormat
from openwafer.training.sparsity.pattern import Pattern

PICTURES_FILE: Final = "mask-pictures.json"
PICTURES_FORMAT: Final = "openwafer-mask-pictures"
PICTURES_VERSION: Final = 1
MOST_CELLS: Final = 48
_DIGITS = 4


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


MASKS_FORMAT: Final = LineFormat("openwafer-masks", 1, MaskChange)


@dataclass(frozen=True)
class MaskPicture:
    """A mask from afar: `cells` of `rows` by `columns` elements, each the share that is kept.

    It is the mask after `step` training steps. No element of `empty_rows` and `empty_columns` is
    kept.
    """

    weight: str
    step: int
    rows: int
    columns: int
    kept: int
    empty_rows: int
    empty_columns: int
    cells: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class _Pictures:
    pictures: tuple[MaskPicture, ...]


def picture_of(weight: str, step: int, pattern: Pattern) -> MaskPicture:
    """The picture of a pattern, of at most 48 cells a side."""
    rows, columns = pattern.shape
    kept_in_row = np.diff(pattern.row_starts)
    row_cells, column_cells = _cells(rows), _cells(columns)
    num_rows, num_columns = row_cells[-1] + 1, column_cells[-1] + 1
    places = np.repeat(row_cells, kept_in_row) * num_columns + column_cells[pattern.columns]
    kept = np.bincount(places, minlength=num_rows * num_columns).reshape(num_rows, num_columns)
    shares = kept / np.outer(np.bincount(row_cells), np.bincount(column_cells))
    in_column = np.bincount(pattern.columns, minlength=columns)
    return MaskPicture(
        weight,
        step,
        rows,
        columns,
        pattern.num_kept,
        int(np.count_nonzero(kept_in_row == 0)),
        int(np.count_nonzero(in_column == 0)),
        tuple(tuple(round(float(share), _DIGITS) for share in row) for row in shares),
    )


def write_pictures(run_folder: PathLike, pictures: Sequence[MaskPicture]) -> None:
    """Write mask-pictures.json, replacing an older one."""
    run_folder = path_of(run_folder, "run_folder")
    document = {"format": PICTURES_FORMAT, "version": PICTURES_VERSION}
    content = {**document, "pictures": [asdict(picture) for picture in pictures]}
    write_text(run_folder / PICTURES_FILE, json.dumps(content) + "\n")


def read_pictures(path: Path) -> tuple[MaskPicture, ...]:
    """Read mask-pictures.json; errors as in `read_plan`."""
    value = parse_json(read_text(path), str(path))
    check_format(value, PICTURES_FORMAT, PICTURES_VERSION, str(path))
    return parse_record(_Pictures, value, str(path)).pictures


def _cells(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The cell that each of so many rows or columns is in."""
    return np.arange(number) * min(number, MOST_CELLS) // number
