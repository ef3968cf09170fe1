"""Whoever waits for a compilation hears that it goes on, and where."""

import pytest

from openwafer.sdk.csl.sema.progress import Progress
from openwafer.source import SourceText, Span

LOOP = Span(SourceText("pe.csl", "comptime {\n  while (true) {} }"), 13, 18)


def test_long_work_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(50_000_000, seconds=0.0).look(20_000, LOOP)
    due = "openwafer: 0 s at compile time, 20,000 of at most 50,000,000 calls and iterations"
    assert capsys.readouterr().err == f"{due}, now at pe.csl:2\n"


def test_short_work_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(50_000_000)
    for num_steps in range(0, 100_000, 1000):
        progress.look(num_steps, LOOP)
    assert capsys.readouterr().err == ""
