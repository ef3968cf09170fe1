"""Runs of this process that have ended, for tools that look at them afterwards."""

from pathlib import Path

from openwafer.diagnostics import error
from openwafer.sdk.host import MemoryDump, read_memory_dump, read_program

CORE_FILE = Path("corefile.cs1")
"""Where a script leaves the memory for a later process."""

_DUMPS: dict[Path, MemoryDump] = {}


def remember(folder: Path, dump: MemoryDump) -> None:
    """Keep the memory that a run of the program in `folder` ended with."""
    _DUMPS[folder.resolve()] = dump


def last_memory(folder: Path) -> MemoryDump:
    """Return the memory of the last run of the program in `folder`.

    Raises OpenwaferError when there is neither such a run in this process nor a core file.
    """
    found = _DUMPS.get(folder.resolve())
    if found is not None:
        return found
    if not CORE_FILE.is_file():
        raise error(
            "no-finished-run",
            f"no run of {folder} has ended in this process, and there is no {CORE_FILE}",
            help="call stop() first, or dump_core('corefile.cs1') in the other process",
        )
    return read_memory_dump(CORE_FILE, read_program(folder))
