"""No mistake of a learner passes in silence; few need a checked run to be told."""

from collections import Counter

import pytest

from tests.golden_text import GoldenTexts
from tests.sdk.mistakes.mistake_file import FOLDER, MistakeFile, Teller, read

FILES = [read(path) for path in sorted(FOLDER.glob("*.csl"))]
MIN_MISTAKES = 180
MOST_IN_CHECKED_RUNS = 20
"""Mistakes that are silent unless somebody asks: most are values that nothing wrote."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_mistake_is_told_as_its_file_says(file: MistakeFile, golden: GoldenTexts) -> None:
    if golden.is_updating:
        file.rewrite()
        file = read(file.file.path)
    assert file.told() == file.file.expected


def test_nobody_is_left_alone_with_a_mistake() -> None:
    tellers = Counter(file.teller for file in FILES)
    assert tellers[Teller.NOBODY] == 0
    assert tellers[Teller.CHECKED_RUN] <= MOST_IN_CHECKED_RUNS
    assert tellers.total() >= MIN_MISTAKES
