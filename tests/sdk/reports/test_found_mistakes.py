"""Mistakes that a run passes over, each told with its PE, cycle, line and remedy.

Files with a line `//! check` are run with checks; the others tell of theirs in every run.
"""

from pathlib import Path

import pytest

from openwafer.sdk.host.pe_code import EngineKind
from tests.golden_text import GoldenTexts
from tests.sdk.reports.report_file import ReportFile, read

FOLDER = Path(__file__).parent / "checks"
FILES = [read(path) for path in sorted(FOLDER.glob("*.csl"))]
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.stem)


@EACH
def test_native_code_finds_what_the_file_says(file: ReportFile, golden: GoldenTexts) -> None:
    if golden.is_updating:
        file.rewrite()
        file = read(file.path)
    assert file.reported() == file.expected


@EACH
def test_the_interpreter_finds_the_same(file: ReportFile) -> None:
    assert file.reported(EngineKind.INTERPRETER) == file.expected


@EACH
def test_every_finding_has_a_cycle_and_a_remedy(file: ReportFile) -> None:
    num_findings = sum(file.expected.count(f"// {kind}[") for kind in ("warning", "note"))
    assert file.expected.count("cycle N") >= num_findings
    assert file.expected.count("= help: ") == num_findings
