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
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in UTF-8."""
    write_bytes(path, text.encode())


def _flush(path: Path) -> None:
    # A rename is only on disk once the folder that holds the name is flushed as well.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
