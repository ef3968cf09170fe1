"""Expected texts kept as files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GoldenTexts:
    """Texts kept in tests/golden, to be reviewed in the diff when they change."""

    folder: Path
    is_updating: bool

    def check(self, name: str, text: str) -> None:
        """Hold `text` against the kept file; with --update-golden, keep it instead."""
        if self.is_updating:
            (self.folder / name).write_text(text, encoding="utf-8")
        assert text == (self.folder / name).read_text(encoding="utf-8")
