"""What was compiled before, kept on disk; docs/formats/openwafer-native-cache.md says how."""

import functools
import hashlib
import os
from pathlib import Path
from typing import Final

from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import Diagnostic, Severity, tell

_FORMAT: Final = "openwafer-native-cache"
# A change of what makes files from texts needs another version: old files would pass for new ones.
_VERSION: Final = 4
_DIGEST_BYTES: Final = 32

OBJECT: Final = ".o"
LIST: Final = ".list"
FRAMES: Final = ".frames"


def folder() -> Path:
    """``OPENWAFER_CACHE``, or ``openwafer`` in the user's cache folder; ``native`` inside of it."""
    chosen = os.environ.get("OPENWAFER_CACHE")
    if chosen:
        return Path(chosen) / "native"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "openwafer" / "native"


def key_of(*texts: str) -> str:
    """Name of what is made from texts."""
    whole = "\0".join((f"{_FORMAT} {_VERSION}", *texts))
    return hashlib.sha256(whole.encode()).hexdigest()


def read(key: str, suffix: str) -> bytes | None:
    """What was kept; None when nothing was, or when the file is damaged."""
    try:
        stored = _path(key, suffix).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as found:
        _tell_unusable(folder(), found.strerror)
        return None
    content = stored[_DIGEST_BYTES:]
    is_whole = hashlib.sha256(content).digest() == stored[:_DIGEST_BYTES]
    return content if is_whole else None


def keep(key: str, suffix: str, content: bytes) -> None:
    """Write a file; another process may be doing the same."""
    path = _path(key, suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, hashlib.sha256(content).digest() + content)
    except OSError as found:
        _tell_unusable(folder(), found.strerror)


@functools.cache
def _tell_unusable(place: Path, reason: str) -> None:
    """Warn that everything is compiled each time: once a process, whatever is asked for."""
    message = f"compiled code cannot be kept in {place}: {reason}"
    help = "name a folder that can be written: OPENWAFER_CACHE=FOLDER"
    warning = Diagnostic(Severity.WARNING, "cache-unusable", message, help=help)
    tell((warning,))


def _path(key: str, suffix: str) -> Path:
    return folder() / key[:2] / f"{key}{suffix}"
