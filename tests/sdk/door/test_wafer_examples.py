"""The wafer programs of examples/ end with results that are checked in them."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "wafer"


@pytest.mark.parametrize(
    ("script", "figure"),
    [
        ("saxpy.py", "cycles an element"),
        ("heat/run.py", "cycles a step"),
        ("pipeline/run.py", "cycles a value"),
    ],
)
def test_an_example_runs(script: str, figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / script))
    assert figure in capsys.readouterr().out


def test_no_script_is_left_out() -> None:
    scripts = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    assert scripts == {"saxpy.py", "heat/run.py", "pipeline/run.py"}
