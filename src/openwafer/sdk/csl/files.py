"""Files of a program: their bytes, or why there are none."""

import errno
from pathlib import Path
from typing import Final

from openwafer.diagnostics import error

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)
_STANDS: Final = {errno.EISDIR: "is a folder", errno.ELOOP: "is a link that leads to itself"}


def content_of(path: Path) -> bytes | None:
    """Bytes of a file; None where nothing can be read."""
    try:
        return path.read_bytes()
    except (OSError, ValueError):
        return None


def obstacle(path: Path) -> str:
    """Why nothing can be read there, as what follows the path; empty where nothing stands there."""
    try:
        with path.open("rb"):
            return ""
    except ValueError as cause:
        return f"cannot be read: {cause}"
    except OSError as cause:
        if cause.errno in _ABSENT:
            return ""
        return _STANDS.get(cause.errno or 0, f"cannot be read: {cause.strerror}")


def check_file(path: Path, subject: str = "") -> None:
    """Raise OpenwaferError where nothing can be read; `subject` stands before the message."""
    if content_of(path) is None:
        why = obstacle(path)
        message = f"{path} {why}" if why else f"there is no file {path}"
        raise error("source-missing", subject + message, help="write the path of a CSL file")
