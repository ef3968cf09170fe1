"""Columns that lie beside a run from its first look on, so that the next one need not make them.

They are found again by the run's bytes and the versions that they depend on: of a run, or an
openwafer, that has changed since they are made anew.
"""

from pathlib import Path
from typing import Final

import xxhash

import openwafer
from openwafer.diagnostics import OpenwaferError
from openwafer.view import columns

RUNS: Final = (".journal", ".record")
"""What files of runs that have columns end with."""
_PART_BYTES: Final = 1 << 24


def kept_path(run: Path) -> Path:
    """Where columns of a journal or record lie."""
    return run.with_name(f"{run.name}.view")


def journal_of(run: Path) -> Path | None:
    """The journal of a run, or what has the name of one beside its record; None for none."""
    found = run.with_suffix(".journal")
    return found if found.is_file() else None


def mark_of(run: Path) -> str:
    """Checksum of a run's file and of the versions that its columns depend on."""
    found = xxhash.xxh3_128(f"{openwafer.__version__} {columns.VERSION} ".encode())
    with run.open("rb") as file:
        while part := file.read(_PART_BYTES):
            found.update(part)
    return found.hexdigest()


def kept_columns(run: Path) -> Path | None:
    """The file of a run's columns; None where they are still to be made, or made again."""
    path = kept_path(run)
    if run.suffix not in RUNS or not run.is_file() or not path.is_file():
        return None
    try:
        mark = columns.mark_in(path)
    except OpenwaferError:
        return None
    return path if mark == mark_of(run) else None
