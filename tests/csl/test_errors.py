"""Each file in errors/ holds one mistake and the report it gets."""

from pathlib import Path

import pytest

from tests.csl.error_file import FOLDER, read
from tests.golden_text import GoldenTexts

FILES = sorted(FOLDER.glob("*.csl"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_mistake_gets_its_report(path: Path, golden: GoldenTexts) -> None:
    file = read(path)
    if golden.is_updating:
        file.rewrite()
        file = read(path)
    assert file.reported() == file.expected


def test_every_file_expects_a_report() -> None:
    assert [path.name for path in FILES if not read(path).expected] == []
