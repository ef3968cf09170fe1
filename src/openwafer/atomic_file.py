"""Files that are there whole or not at all, also when the power fails."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
