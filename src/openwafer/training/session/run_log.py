"""The log of a run: what happened when, a line each, for people."""

from datetime import UTC, datetime
from pathlib import Path

from openwafer.atomic_file import naming


class RunLog:
    """Appends lines with the time in UTC to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append one line."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")
