"""The page about cycles shows the parameters that the code has."""

from pathlib import Path

from benchmarks.bench_timing import parameters


def test_the_page_has_the_parameters_of_the_code() -> None:
    page = Path(__file__).parents[3] / "docs/design/timing-parameters.inc"
    assert page.read_text(encoding="utf-8") == parameters()
