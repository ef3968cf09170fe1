"""openwafer fit for a budget of hours or money on a named system."""

import re
from pathlib import Path

import pytest

from openwafer.planning.systems import H200
from tests.cli.command import Done, run_command
from tests.planning.laws.pile_models import CSV


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("budgets") / "pile.csv"
    path.write_text(CSV)
    return path


def fit(points: Path, *asked: object) -> Done:
    return run_command("fit", points, "--replicas", 20, *asked)


def test_hours_on_systems_are_spent_at_their_utilisation(points: Path) -> None:
    done = fit(points, "--hours", 100, "--system", "h200", "--systems", 8)
    assert done.code == 0, done.err
    work = 100 * 3600 * 8 * H200.peak.value * H200.utilisation.value
    assert f"a budget of {work:.3g} FLOPs" in done.out
    assert re.search(r"^hours +100 h +given +as asked for *$", done.out, re.MULTILINE)
    assert re.search(r"^utilisation .* (published|inferred)", done.out, re.MULTILINE)


def test_money_pays_hours_at_a_price(points: Path) -> None:
    done = fit(points, "--money", 1000, "--price", 2.5, "--system", "h200", "--systems", 4)
    assert re.search(r"^hours +100 h +inferred +money / price / systems *$", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--hours", 5), "--hours is spent on no system"),
        (("--money", 5, "--system", "h200"), "--money stands without --price"),
        (("--hours", 5, "--price", 2, "--system", "h200"), "--price stands without --money"),
        (("--system", "h200"), "--system stands without --hours or --money"),
        (("--hours", 0, "--system", "h200"), "--hours is 0"),
        (("--hours", 5, "--system", "h300"), "no system 'h300' is known"),
    ],
)
def test_half_a_budget_is_refused(points: Path, asked: tuple[object, ...], told: str) -> None:
    done = fit(points, *asked)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_money_that_does_not_pay_a_step_is_refused(points: Path) -> None:
    asked = ("--money", 0.001, "--price", 2.5, "--system", "h200", "--batch", 1e9)
    text = fit(points, *asked).err
    assert "error[budget-below-step]: a budget of " in text
