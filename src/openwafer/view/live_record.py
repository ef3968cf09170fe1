"""A record that is being written: what it has by now."""

from pathlib import Path

from openwafer.atomic_file import growing
from openwafer.sdk.host.beside import program_of_run
from openwafer.sdk.host.record import read_growing, read_record
from openwafer.sdk.program.program import Program
from openwafer.view.columns import Columns
from openwafer.view.first_look import NAME_IT
from openwafer.view.following import Live, stamp_of
from openwafer.view.opened import opened
from openwafer.view.shown import Shown
from openwafer.view.wafer import wafer_columns


def live_record(path: Path, program: Path | None) -> Live:
    """A record that is being written.

    Args:
        path: the name that it will have, or a folder: then its newest one.
        program: output folder of cslc, where the program does not lie beside.
    """

    def named() -> Path:
        if not path.is_dir():
            return path
        found = [*path.glob("*.record"), *path.glob(".*.record")]
        if not found:
            return path / "0000.record"
        newest = max(found, key=lambda one: one.stat().st_mtime_ns)
        return path / f"{newest.name.lstrip('.').partition('.')[0]}.record"

    def files() -> list[Path]:
        found = named(), growing(named())
        return [one for one in found if one is not None]

    return Live(
        lambda: stamp_of(files()),
        lambda: _record(named(), program),
        lambda: named().is_file(),
    )


def _record(path: Path, program: Path | None) -> tuple[Shown, bool]:
    file = growing(path)
    if path.is_file() or file is None:
        record = read_record(path)
        program_of_run(path, record.head.program, program, NAME_IT)
        return opened(path, lambda runs: runs[0], program), True
    record = read_growing(file)
    own = program_of_run(path, record.head.program, program, NAME_IT)
    return Shown(wafer_columns(own, record, None, title=path.name).content()), False


def columns_so_far(program: Program, file: Path, title: str) -> Columns:
    """Columns of what the file of a record that is being written has by now.

    Raises OpenwaferError where it has nothing yet.
    """
    return wafer_columns(program, read_growing(file), None, title=title)
