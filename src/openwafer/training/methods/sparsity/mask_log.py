"""What becomes of masks in a run, until its files have it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from openwafer.training.metrics import MASKS_FORMAT, MaskChange, StepWriter
from openwafer.training.metrics.run_record import PICTURES, MaskPicture, MaskPictures
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sparsity.masks.algorithms import MaskUpdate
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.pattern import Pattern

MOST_PICTURES: Final = 4
MOST_CELLS: Final = 48
_DIGITS: Final = 4


class MaskLog:
    """Notes updates of masks as they come.

    Args:
        rooms: of the sparse weights, by name. Pictures are made of the largest of one layer, in the
            middle of the model.
    """

    def __init__(self, rooms: Mapping[str, PackedRoom]) -> None:
        self.pictured = _of_one_layer(rooms)
        self._changes: list[MaskChange] = []
        self._pictures: dict[str, MaskPicture] = {}
        self._has_new = False

    def draw(self, name: str, pattern: Pattern, steps_done: int) -> None:
        """Make a picture of a weight's mask."""
        self._pictures[name] = picture_of(name, steps_done, pattern)
        self._has_new = True

    def note(self, name: str, update: MaskUpdate, pattern: Pattern, steps_done: int) -> None:
        """A mask was updated; ``pattern`` is what it is from then on."""
        dropped, grown = update.num_dropped, update.num_regrown
        self._changes.append(MaskChange(0, name, pattern.num_kept, dropped, grown))
        if name in self.pictured:
            self.draw(name, pattern, steps_done)

    @contextmanager
    def recording(self, folder: RunFolder, first_step: int) -> Iterator[Path | None]:
        """Context in which changes go to the run's file; gives where a damaged one is kept."""
        first_step = first_step if folder.masks.exists() else 0
        with StepWriter(folder.masks, MASKS_FORMAT, first_step=first_step) as self._lines:
            self._folder = folder
            yield self._lines.damaged

    def record(self, step: int) -> None:
        """Write what was noted since the last call, behind a training step."""
        for change in self._changes:
            self._lines.append(replace(change, step=step))
        self._changes.clear()
        self.write_pictures(self._folder.path)

    def write_pictures(self, run_folder: Path) -> None:
        """Write the pictures, if there are new ones."""
        if self._has_new:
            PICTURES.write(run_folder, MaskPictures(tuple(self._pictures.values())))
            self._has_new = False


def _of_one_layer(rooms: Mapping[str, PackedRoom]) -> list[str]:
    names = list(rooms)
    if not names:
        return []
    layer = _layer_of(names[len(names) // 2])
    alike = [name for name in names if _layer_of(name) == layer]
    alike.sort(key=lambda name: -rooms[name].shape[0] * rooms[name].shape[1])
    return alike[:MOST_PICTURES]


def _layer_of(name: str) -> str:
    """A name up to its last number, or to the module's parent."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[-1] + 1] if numbers else parts[:-2])


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


def _cells(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The cell that each of so many rows or columns is in."""
    return np.arange(number) * min(number, MOST_CELLS) // number
