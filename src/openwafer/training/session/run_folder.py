"""The folder of a run: which file is where, and one process at a time.

The files are described in docs/formats/run-folder.md.
"""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from openwafer.atomic_file import naming, sync_path
from openwafer.diagnostics import OpenwaferError, error
from openwafer.folder_lock import FolderInUseError, FolderLock
from openwafer.training.store.checkpoint import INDEX_NAME, NOT_WRITTEN

BEST = "best"


def quoted(path: Path) -> str:
    """A path as a shell takes it, for the commands that a text recommends."""
    return shlex.quote(str(path))


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The config with every default filled in."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """What the planner decided and predicted."""
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        """One line a training step."""
        return self.path / "metrics.jsonl"

    @property
    def validation(self) -> Path:
        """One line an evaluation."""
        return self.path / "validation.jsonl"

    @property
    def masks(self) -> Path:
        """One line for each update of a mask."""
        return self.path / "masks.jsonl"

    @property
    def trace(self) -> Path:
        """Times of the traced steps, for Perfetto and the report."""
        return self.path / "trace.json"

    @property
    def log(self) -> Path:
        """What happened when, for people."""
        return self.path / "log.txt"

    @property
    def store(self) -> Path:
        """The parameter store's disk tier."""
        return self.path / "store"

    def store_of(self, rank: int) -> Path:
        """The same of a system, on its own host."""
        return self.store if rank == 0 else self.path / f"store-{rank}"

    def delete_store(self) -> None:
        """Delete the first system's store, if it is there."""
        shutil.rmtree(self.store, ignore_errors=True)

    @property
    def checkpoints(self) -> Path:
        """Portable checkpoints, a folder each."""
        return self.path / "checkpoints"

    @property
    def best_checkpoint(self) -> Path | None:
        """That of the lowest held-out loss, which the link ``best`` names; if one is kept."""
        link = self.checkpoints / BEST
        return self.checkpoints / link.readlink() if (link / INDEX_NAME).is_file() else None

    def name_best(self, checkpoint: Path) -> None:
        """Have the link ``best`` name a checkpoint of this folder.

        Raises:
            OpenwaferError: ``checkpoint-not-written`` where the disk has no room, or no links.
        """
        new = self.checkpoints / f".{BEST}"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(checkpoint.name)
            new.replace(self.checkpoints / BEST)
            # Before the one that it named is deleted.
            sync_path(self.checkpoints)
        except OSError as cause:
            raise error(
                NOT_WRITTEN,
                f"cannot make {self.checkpoints / BEST} a link to {checkpoint.name}: {cause}",
                help="keep runs on a disk that has room and links, or set checkpoint.best to false",
            ) from cause

    def chosen_checkpoint(self, path: Path) -> Path:
        """The checkpoint that a user names, by its path or as ``best``.

        Raises:
            OpenwaferError: ``checkpoint-missing`` where the run keeps no best one.
        """
        # The link moves on while the run trains.
        if path.name == BEST and path.parent in (Path(), self.checkpoints):
            best = self.best_checkpoint
            if best is None:
                raise error(
                    "checkpoint-missing",
                    f"the run {self.path} has no best checkpoint",
                    help="train with --set checkpoint.best=true, which keeps it from the next "
                    "evaluation on, or name a checkpoint by its path",
                )
            return best
        return path

    @property
    def data(self) -> Path:
        """Token shards, unless the config names another folder for them."""
        return self.path / "data"

    @property
    def rewind(self) -> Path:
        """The weights to which iterative magnitude pruning goes back."""
        return self.path / "rewind"

    @property
    def set_aside(self) -> Path:
        """A store and checkpoints that a chosen checkpoint has replaced."""
        return self.path / "set-aside"

    def put_aside(self, path: Path) -> None:
        """Move something of the folder out of the way, if it is there; delete nothing."""
        if path.exists():
            self.set_aside.mkdir(exist_ok=True)
            targets = (self.set_aside / f"{path.name}.{number}" for number in count())
            path.rename(next(target for target in targets if not target.exists()))

    def create(self) -> None:
        """Make the folder for a new run.

        Raises:
            OpenwaferError: ``run-exists`` when there is a run in it, ``run-folder``.
        """
        if self.config.exists():
            raise error(
                "run-exists",
                f"there is a run in {self.path} already",
                help=f"go on with it: openwafer resume {quoted(self.path)}; or choose another "
                "name: --set name=NAME; or delete the folder",
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise self._cannot_make(cause.strerror) from cause

    def require_place(self) -> None:
        """Raise ``run-folder`` where no folder can be made, without making it."""
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not there.is_dir():
            raise self._cannot_make(f"{there} is no folder")

    def _cannot_make(self, reason: str | None) -> OpenwaferError:
        return error(
            "run-folder",
            f"cannot make {self.path}: {reason}",
            help="choose another place: --set folder=FOLDER",
        )

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Context in which a new run begins, in a folder made for it.

        Where it ends without a run, what it wrote is deleted again, but for prepared data.

        Raises:
            OpenwaferError: as :meth:`create`, ``run-locked``.
        """
        is_new = not self.path.exists()
        self.create()
        before = set(self.path.iterdir())
        with self.locked():
            try:
                yield
            finally:
                if not self.config.exists():
                    self._clear(before)
                    if is_new and not any(self.path.iterdir()):
                        self.path.rmdir()

    def _clear(self, kept: set[Path]) -> None:
        for path in set(self.path.iterdir()) - kept - {self.data}:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def require_run(self) -> None:
        """Raise ``run-missing`` unless there is a run in the folder."""
        if not self.config.is_file():
            raise error(
                "run-missing",
                f"there is no run in {self.path}: it has no {self.config.name}",
                help="give the folder of a run, such as runs/NAME, as `openwafer train` made it",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; raises ``run-locked`` with the process that holds it."""
        try:
            lock = FolderLock(self.path)
        except FolderInUseError as cause:
            raise error(
                "run-locked",
                f"the run {self.path} is {cause}",
                help="wait until that process ends, or end it",
            ) from cause
        except OSError as cause:
            raise error(
                "run-folder",
                f"cannot lock {self.path}: {cause}",
                help="copy the run to a folder that may be written to",
            ) from cause
        try:
            yield
        finally:
            lock.release()


class RunLog:
    """Appends lines with the time in UTC to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append one line."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")
