"""Programs that the fuzz tests start from: error files, language pages, the library."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.csl import error_file

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHORT_CHARACTERS = 5000


def own_texts() -> list[str]:
    """Texts of this project, sorted."""
    found = [error_file.read(path).program for path in error_file.FOLDER.glob("*.csl")]
    for page in (ROOT / "docs" / "language").glob("*.md"):
        found += _BLOCK.findall(page.read_text(encoding="utf-8"))
    found += [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.csl")]
    return sorted(set(found))


def texts_below(folder: Path) -> Iterator[str]:
    """Short files of CSL below another folder."""
    for path in sorted(folder.rglob("*.csl")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) <= _SHORT_CHARACTERS:
            yield text
