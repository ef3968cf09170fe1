"""What tests cost, told at the end of a run, and budgets that their folders keep.

Seconds of the processor are counted, of a test's process and of those that it waited for: they
say nearly the same beside other programs. Budgets are in yardsticks, a piece of work that is done
again and again between the tests, so that they hold on slow and on fast machines.
"""

import resource
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from statistics import fmean

import pytest

BUDGETS = Path(__file__).parent / "budgets.toml"
NUM_SLOWEST = 60
TESTS_BETWEEN_YARDSTICKS = 100
WINGS_OF_ROOMS = ("tests/sdk", "tests/training")
"""Folders whose folders have budgets of their own."""
ALLOWANCE = 2.0
"""How often its budget a folder may cost: neighbours in the caches cost time, too."""
SMALL_BUDGET = 1.0
"""Of a folder that has none of its own."""


def processor_seconds() -> float:
    """Of this process and of those that it started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def yardstick_seconds() -> float:
    """What a piece of work takes of the processor that needs about a hundredth of a second."""
    before = time.thread_time()
    sums: dict[int, int] = defaultdict(int)
    for number in range(60_000):
        sums[number * number % 211] += number
    return time.thread_time() - before


def room_of(test: str) -> str:
    """The folder whose budget pays for a test."""
    folder = PurePosixPath(test.partition("::")[0]).parent
    depth = 3 if str(folder).startswith(WINGS_OF_ROOMS) else 2
    return "/".join(folder.parts[:depth])


def budgets() -> dict[str, float]:
    """What each folder cost when its budget was written, in thousands of yardsticks."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Cost:
    """Of one test with its fixtures: seconds of the processor and of the clock."""

    test: str
    processor: float
    clock: float


@dataclass
class Costs:
    """What the tests of a run cost."""

    tests: list[Cost] = field(default_factory=list)
    yardsticks: list[float] = field(default_factory=list)

    def by_room(self) -> dict[str, tuple[float, float]]:
        """Sums of both kinds of seconds, the largest first."""
        rooms: dict[str, list[Cost]] = defaultdict(list)
        for cost in self.tests:
            rooms[room_of(cost.test)].append(cost)
        sums = {
            room: (sum(c.processor for c in costs), sum(c.clock for c in costs))
            for room, costs in rooms.items()
        }
        return dict(sorted(sums.items(), key=lambda one: -one[1][0]))

    def thousands(self, processor: float) -> float:
        """Seconds of the processor in thousands of yardsticks."""
        return processor / fmean(self.yardsticks) / 1000

    def over_budget(self, budgets: Mapping[str, float]) -> list[str]:
        """A line for each folder that cost more than it may."""
        told = []
        for room, (processor, _) in self.by_room().items():
            cost, budget = self.thousands(processor), budgets.get(room, SMALL_BUDGET)
            if cost > ALLOWANCE * budget:
                told.append(
                    f"{room} cost {cost:.2f}, more than {ALLOWANCE} times its {budget:g} of"
                    f" {BUDGETS.name}: make its tests cheaper, mark long ones slow, or raise it"
                )
        return told

    def write_budgets(self) -> None:
        """Make what the folders cost in this run, which is of all tests, their budgets."""
        rooms = sorted(self.by_room().items())
        costs = {room: self.thousands(processor) for room, (processor, _) in rooms}
        lines = [f'"{room}" = {cost:.2f}\n' for room, cost in costs.items() if cost > SMALL_BUDGET]
        BUDGETS.write_text("".join(lines), encoding="utf-8")

    def lines(self) -> Iterator[str]:
        """The slowest tests and the sums of folders."""
        heads = f"{'processor':>9} {'clock':>7}"
        yield f"{heads} seconds of the {NUM_SLOWEST} slowest tests"
        for cost in sorted(self.tests, key=lambda one: -one.clock)[:NUM_SLOWEST]:
            yield f"{cost.processor:9.2f} {cost.clock:7.2f} {cost.test}"
        yield f"{heads} {'budgets':>7} of folders"
        for room, (processor, clock) in self.by_room().items():
            yield f"{processor:9.1f} {clock:7.1f} {self.thousands(processor):7.2f} {room}"
        sums = [sum(getattr(cost, kind) for cost in self.tests) for kind in ("processor", "clock")]
        yield f"{sums[0]:9.1f} {sums[1]:7.1f} {'':7} all {len(self.tests)} tests"


@dataclass(eq=False)
class Counter:
    """Counts in each process that runs tests; tells in the one that was started by hand."""

    is_told: bool
    is_updating: bool = False
    costs: Costs = field(default_factory=Costs)
    _before: tuple[float, float] = (0.0, 0.0)
    _num_begun: int = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._num_begun % TESTS_BETWEEN_YARDSTICKS == 0:
            item.user_properties.append(("yardstick", yardstick_seconds()))
        self._num_begun += 1
        self._before = processor_seconds(), time.perf_counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "teardown":
            before = self._before
            cost = processor_seconds() - before[0], time.perf_counter() - before[1]
            item.user_properties.append(("cost", cost))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == "cost":
                self.costs.tests.append(Cost(report.nodeid, *value))  # type: ignore[misc]
            elif name == "yardstick":
                self.costs.yardsticks.append(value)  # type: ignore[arg-type]

    def over_budget(self) -> Sequence[str]:
        return self.costs.over_budget(budgets()) if self.is_told and self.costs.tests else ()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_told and self.is_updating and self.costs.tests:
            self.costs.write_budgets()
        if self.over_budget() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.is_told and self.costs.tests:
            terminalreporter.section("costs")
            for line in (*self.costs.lines(), *self.over_budget()):
                terminalreporter.write_line(line)
