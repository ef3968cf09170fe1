"""A store's folder: its lock, its file and its manifest."""

import os
import shutil
from pathlib import Path

from openwafer.atomic_file import sync_path
from openwafer.diagnostics import OpenwaferError, error
from openwafer.folder_lock import FolderInUseError, FolderLock
from openwafer.training.store.direct_io import FileIo
from openwafer.training.store.manifest import (
    MANIFEST_NAME,
    READY_NAME,
    Manifest,
    manifests_of,
    read_manifest,
)
from openwafer.training.store.store_file import FILE_NAME, StoreFile


class StoreFolder:
    """A locked folder with its open file."""

    def __init__(self, path: Path, lock: FolderLock | None, file: StoreFile) -> None:
        self.path = path
        self.file = file
        self._lock = lock

    @classmethod
    def create(cls, path: Path, num_bytes: int, file_io: FileIo) -> "StoreFolder":
        """Make the folder and its file. What is made is removed again when an error is raised."""
        is_new = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            sync_path(path.parent)
            lock = _locked(path)
        except OSError as cause:
            raise error(
                "store-create-failed",
                f"cannot make the folder {path} for a parameter store: {cause}",
                help="give a folder that may be written to",
            ) from cause
        try:
            _refuse_committed_store(path)
            # A file without a manifest was never committed: nothing was promised to be in it.
            (path / FILE_NAME).unlink(missing_ok=True)
            file = StoreFile.create(path / FILE_NAME, num_bytes, file_io)
        except (OpenwaferError, OSError):
            lock.release()
            if is_new:
                shutil.rmtree(path)
            raise
        return cls(path, lock, file)

    @classmethod
    def open(cls, path: Path, file_io: FileIo, step: int | None) -> tuple["StoreFolder", Manifest]:
        """Lock a folder, read its manifest and open its file.

        With a step, that is the one committed from here on, be it so far or ready to be.
        """
        if not path.is_dir():
            raise error("store-missing", f"there is no folder {path}", help="check the path")
        lock = _locked(path)
        try:
            if step is not None:
                _settle_on(path, step)
            manifest = read_manifest(path)
            num_bytes = manifest.catalog.file_plan.num_bytes
            file = StoreFile.open(path / FILE_NAME, num_bytes, file_io)
        except (OpenwaferError, OSError):
            lock.release()
            raise
        # A process killed while it replaced its manifest leaves the temporary file.
        for leftover in path.glob(f".{Path(MANIFEST_NAME).stem}.*"):
            leftover.unlink()
        return cls(path, lock, file), manifest

    @classmethod
    def open_read_only(
        cls, path: Path, file_io: FileIo, step: int | None
    ) -> tuple["StoreFolder", Manifest]:
        """Read a folder's manifest, or that of a step, and open its file to read; lock nothing."""
        manifest = read_manifest(path) if step is None else _manifest_at(path, step)
        num_bytes = manifest.catalog.file_plan.num_bytes
        file = StoreFile.open(path / FILE_NAME, num_bytes, file_io, os.O_RDONLY)
        return cls(path, None, file), manifest

    def prepare(self, manifest: Manifest) -> None:
        """Let the store be opened at a manifest's step, too. Raises OSError."""
        self.file.file_io.replace(self.path / READY_NAME, manifest.encode())

    def publish(self, manifest: Manifest) -> None:
        """Make a manifest the committed one. Raises OSError."""
        self.file.file_io.replace(self.path / MANIFEST_NAME, manifest.encode())

    def close(self) -> None:
        """Close the file and give the folder free."""
        self.file.close()
        if self._lock is not None:
            self._lock.release()


def _locked(path: Path) -> FolderLock:
    try:
        return FolderLock(path)
    except FolderInUseError as cause:
        raise error(
            "store-locked",
            f"the parameter store {path} is {cause}",
            help="wait until that process ends, end it, or use another folder",
        ) from cause


def _settle_on(path: Path, step: int) -> None:
    """Make a step the committed one, and the only one.

    Bytes of another step that was ready are overwritten from here on.
    """
    ready = path / READY_NAME
    _manifest_at(path, step)
    is_committed = (path / MANIFEST_NAME).exists() and read_manifest(path).step == step
    if is_committed:
        ready.unlink(missing_ok=True)
    else:
        ready.replace(path / MANIFEST_NAME)
    sync_path(path)


def _manifest_at(path: Path, step: int) -> Manifest:
    found = manifests_of(path)
    if step not in found:
        steps = ", ".join(map(str, sorted(found))) or "none"
        raise error(
            "store-step",
            f"the parameter store {path} does not hold step {step}, but {steps}",
            help="go on from a checkpoint",
        )
    return found[step]


def _refuse_committed_store(path: Path) -> None:
    if (path / MANIFEST_NAME).exists():
        raise error(
            "store-exists",
            f"{path} already holds a parameter store with a committed step",
            help="open it, remove it, or give another folder",
        )
