"""Who finds a folder locked is told by whom, whatever the lock's file says."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openwafer.folder_lock import LOCK_NAME, FolderInUseError, FolderLock

HOLDING = """
import sys
from pathlib import Path
from openwafer.folder_lock import FolderLock, standing_still
held = {"alone": FolderLock, "reading": standing_still}[sys.argv[2]](Path(sys.argv[1]))
if sys.argv[2] == "reading":
    held.__enter__()
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(folder: Path, how: str) -> Iterator[int]:
    """The number of a process that holds a folder, or reads it while nobody may."""
    command = [sys.executable, "-c", HOLDING, str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        yield other.pid
        other.communicate()


@pytest.mark.parametrize("how", ["alone", "reading"])
def test_the_process_that_holds_a_lock_is_named_and_not_one_before_it(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / LOCK_NAME).write_text("1")
    with (
        held_by_another(tmp_path, how) as holder,
        pytest.raises(FolderInUseError, match=f"in use by process {holder}$"),
    ):
        FolderLock(tmp_path)
