"""Folders of tests keep to budgets that do not depend on how fast or busy a machine is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import ALLOWANCE, SMALL_BUDGET, Cost, Costs, budgets, room_of

ROOT = Path(__file__).parents[1]
STREAM, CLI = "tests/training/stream/deep/test_a.py::test_b[c::d]", "tests/cli/test_c.py::test_d"
CONFTEST = """
from tests.costs import Counter
def pytest_configure(config): config.pluginmanager.register(Counter(is_told=True))
"""
LONG = """
from tests import costs
def test_it():
    costs.SMALL_BUDGET = 0.0
"""


@pytest.mark.parametrize(
    ("test", "room"),
    [(STREAM, "tests/training/stream"), (CLI, "tests/cli"), ("tests/test_e.py::test_f", "tests")],
)
def test_a_folder_of_a_wing_pays_for_all_below_it(test: str, room: str) -> None:
    assert room_of(test) == room


@pytest.mark.parametrize("speed", [0.1, 1.0, 10.0])
def test_a_slow_machine_is_no_excuse_and_needs_none(speed: float) -> None:
    costs = Costs([Cost(STREAM, 40 * speed, 0.0)], [0.02 * speed, 0.04 * speed])
    cost = 40 / 0.03 / 1000
    assert costs.over_budget({"tests/training/stream": 1.01 * cost / ALLOWANCE}) == []
    (told,) = costs.over_budget({"tests/training/stream": 0.99 * cost / ALLOWANCE})
    assert told.startswith(f"tests/training/stream cost {cost:.2f}, more than {ALLOWANCE} times")


def test_a_folder_may_cost_a_little_before_it_has_a_budget() -> None:
    limit = 1000 * ALLOWANCE * SMALL_BUDGET
    assert Costs([Cost(CLI, 0.009 * limit, 0.0)], [0.01]).over_budget({}) == []
    (told,) = Costs([Cost(CLI, 0.011 * limit, 0.0)], [0.01]).over_budget({})
    assert "make its tests cheaper, mark long ones slow, or raise it" in told


def test_every_budget_is_of_a_folder_of_tests() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert budgets().keys() - set(map(room_of, files)) == set()


def test_the_slowest_tests_and_sums_of_folders_are_told() -> None:
    costs = Costs([Cost(STREAM, 1.0, 2.0), Cost(STREAM, 3.0, 3.0), Cost(CLI, 2.0, 9.0)], [0.01])
    rows = [line.split() for line in costs.lines()]
    assert [row[-1] for row in rows if "::" in row[-1]] == [CLI, STREAM, STREAM]
    assert ["4.0", "5.0", "0.40", "tests/training/stream"] in rows
    assert ["6.0", "14.0", "all", "3", "tests"] in rows


def test_a_run_over_its_budgets_fails(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]", encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "room").mkdir()
    (tmp_path / "room/test_one.py").write_text(LONG, encoding="utf-8")
    line = [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"\nroom cost 0.00, more than {ALLOWANCE} times its 0 of budgets.toml" in done.stdout
    assert ("1 passed" in done.stdout, done.returncode) == (True, 1)
