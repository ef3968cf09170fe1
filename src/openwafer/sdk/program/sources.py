"""A word for the sources of a part of the SDK, so that what they made is not taken for new."""

import functools
import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal, as :class:`~.debug_info.Source` has it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def source_digest(*folders: str) -> str:
    """Hexadecimal digest of the Python files below some folders of the SDK."""
    sdk = Path(__file__).parents[1]
    files = sorted(file for folder in folders for file in (sdk / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
