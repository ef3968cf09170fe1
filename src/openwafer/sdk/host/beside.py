"""Programs beside what runs of them have left: journals, records and cores in a folder."""

from pathlib import Path

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.sdk.program import FILE_NAME, file
from openwafer.sdk.program.program import Program


def program_beside(folder: Path, digest: str) -> Path:
    """Where a folder of runs keeps the program of that digest."""
    return folder / f"{digest}.program.zip"


def keep_program(program: Program, digest: str, folder: Path) -> None:
    """Write a program beside what its runs leave, once."""
    path = program_beside(folder, digest)
    if not path.is_file():
        file.write(program, path)


def read_program(folder: PathLike) -> Program:
    """Read the program of a compiler's output folder, or of its ``bin`` folder."""
    folder = path_of(folder, "folder")
    inside = folder / "bin" / FILE_NAME
    return file.read(inside if inside.is_file() or folder.name != "bin" else folder / FILE_NAME)


def program_of_run(path: Path, digest: str, folder: Path | None, remedy: str) -> Program:
    """The program of a run: of a compiler's output folder, or as it lies beside the run.

    Args:
        path: what the run left.
        digest: of its program.
        folder: output folder; None where the program lies beside.
        remedy: what to do where it does not.

    Raises OpenwaferError where it does not, and for one that is damaged.
    """
    if folder is not None:
        return read_program(folder)
    beside = program_beside(path.parent, digest)
    if beside.is_file():
        return file.read(beside)
    raise error(
        "run-no-program",
        f"the program of {path} does not lie beside it: there is no {beside.name}",
        help=remedy,
    )
