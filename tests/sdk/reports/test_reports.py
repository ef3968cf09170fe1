"""What stops a program is reported in full: PE, color, task and line of the source."""

import re

import pytest

from tests.golden_text import GoldenTexts
from tests.sdk.reports.report_file import FOLDER, ReportFile, read

FILES = [read(path) for path in sorted(FOLDER.glob("*.csl"))]
MIN_DEADLOCKS = 15


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.stem)
def test_the_report_is_the_one_of_the_file(file: ReportFile, golden: GoldenTexts) -> None:
    if golden.is_updating:
        file.rewrite()
        file = read(file.path)
    assert file.reported() == file.expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.stem)
def test_every_report_names_a_pe_and_most_a_line(file: ReportFile) -> None:
    has_place = re.search(rf"{file.path.name}:\d+ \(\w+\)", file.expected) is not None
    has_task = re.search(r"task|unblock_cmd_stream|to send", file.expected) is not None
    assert "PE (" in file.expected
    assert has_place or has_task


def test_there_are_many_kinds_of_deadlocks() -> None:
    deadlocks = [file for file in FILES if "error[fabric-deadlock]" in file.expected]
    assert len(deadlocks) >= MIN_DEADLOCKS
