"""Files that are there whole or not at all, also when the power fails."""

import fcntl
import glob
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{8}")
"""What the name of a temporary file is before its suffix."""
_ABANDONED_SECONDS: Final = 60.0


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with its suffix, that takes its place at the end.

    The block writes the temporary file and closes it. When the block raises, `path` stays as it
    was and the temporary file is gone. Raises OSError where the disk refuses.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    with naming(path):
        try:
            yield temporary
            sync_path(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        # The new name is only on disk once its folder is, too.
        sync_path(path.parent)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files beside `path`, with its suffix, whose writers were killed.

    Those are files that were not written to for a minute, and that nobody holds. Raises OSError
    where the disk refuses.
    """
    for temporary in path.parent.glob(f".*{path.suffix}"):
        if _TEMPORARY.fullmatch(temporary.stem):
            # Another process may be about to do the same.
            with suppress(FileNotFoundError):
                is_old = time.time() - temporary.stat().st_mtime > _ABANDONED_SECONDS
                if is_old and not _is_held(temporary):
                    temporary.unlink()


def growing(path: Path) -> Path | None:
    """The newest file that takes the place of `path` once it is whole; None for none."""
    found = path.parent.glob(f".{glob.escape(path.stem)}.*{glob.escape(path.suffix)}")
    own = [one for one in found if _TEMPORARY.fullmatch(one.stem)]
    return max(own, key=lambda one: one.stat().st_mtime_ns, default=None)


@contextmanager
def held(temporary: Path) -> Iterator[None]:
    """Context in which :func:`remove_abandoned` leaves a file alone, however long nobody writes."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _is_held(temporary: Path) -> bool:
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which an OSError that tells no file, as of a write to a full disk, gets `path`."""
    try:
        yield
    except OSError as cause:
        if cause.filename is None:
            cause.filename = str(path)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in UTF-8."""
    write_bytes(path, text.encode())


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
