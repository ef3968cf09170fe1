"""Sums of a profile: by state, task, function and line."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from openwafer.sdk.host import LineCycles
from openwafer.sdk.host.line_cycles import Line
from openwafer.sdk.profile.model import PeGroup, Profile, line_of

SHARED: Final = "(several tasks)"
"""In place of the task of a function that more than one reaches."""


MEMORY_BYTES_A_CYCLE: Final = 24
"""Two reads and a write of 64 bits."""
_DOC: Final = "documented, of neighbours in memory"


@dataclass(frozen=True)
class CodeTime:
    """Cycles of some code, as :class:`~openwafer.sdk.host.LineCycles` has them.

    Attributes:
        note: what starts a task; empty for other code.
    """

    name: str
    taken: int
    waited: int
    operation: int
    note: str = ""

    @property
    def cycles(self) -> int:
        """All of them."""
        return self.taken + self.waited + self.operation


@dataclass(frozen=True)
class StateTime:
    """Cycles in which slots were in a state.

    Attributes:
        colors: of the queue that is waited for.
        main: of main threads.
        microthreads: of microthreads.
    """

    state: str
    colors: tuple[int, ...]
    main: int
    microthreads: int


def by_line(profile: Profile) -> tuple[LineCycles, ...]:
    """Lines of all groups, those with most cycles first."""
    sums: dict[Line, LineCycles] = {}
    for one in profile.lines():
        key = line_of(one)
        sums[key] = _added(sums[key], one) if key in sums else one
    return tuple(
        sorted(sums.values(), key=lambda one: (-(one.cycles + one.operation), one.file, one.line))
    )


def _added(one: LineCycles, other: LineCycles) -> LineCycles:
    return replace(
        one,
        executions=one.executions + other.executions,
        taken=one.taken + other.taken,
        waited=one.waited + other.waited,
        operation=one.operation + other.operation,
    )


def short_names(profile: Profile) -> dict[str, str]:
    """Files by their names alone, where no two have the same."""
    files = {one.file for one in profile.lines()}
    short = {file: PurePath(file).name if not file.startswith("<") else file for file in files}
    counts = Counter(short.values())
    return {file: name if counts[name] == 1 else file for file, name in short.items()}


def by_function(profile: Profile) -> tuple[CodeTime, ...]:
    """Functions without what they call, those with most cycles first."""
    return _summed(profile.lines(), lambda one: one.function)


def task_of(profile: Profile) -> Callable[[str], str]:
    """What gives the task of a function; :data:`SHARED` where more than one reaches it."""
    owners: dict[str, set[str]] = defaultdict(set)
    for task in profile.tasks:
        for function in task.reaches:
            owners[function].add(task.function)
    return lambda function: min(owners[function]) if len(owners[function]) == 1 else SHARED


def by_task(profile: Profile) -> tuple[CodeTime, ...]:
    """Tasks with all that no other task calls, those with most cycles first."""
    notes = {task.function: ", ".join(task.started_by) for task in profile.tasks}
    task = task_of(profile)
    found = _summed(profile.lines(), lambda one: task(one.function))
    return tuple(replace(one, note=notes.get(one.name, "")) for one in found)


def _summed(lines: Iterable[LineCycles], name: Callable[[LineCycles], str]) -> tuple[CodeTime, ...]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in lines:
        found = sums[name(one)]
        for index, cycles in enumerate((one.taken, one.waited, one.operation)):
            found[index] += cycles
    times = (CodeTime(name, taken, waited, held) for name, (taken, waited, held) in sums.items())
    return tuple(sorted(times, key=lambda one: (-one.cycles, one.name)))


def by_state(profile: Profile) -> tuple[StateTime, ...]:
    """States with the colors that are waited for, those of main threads with most cycles first."""
    sums: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for one in profile.times():
        sums[one.state, one.colors][not one.is_main] += one.cycles
    times = (StateTime(*key, *cycles) for key, cycles in sums.items())
    return tuple(sorted(times, key=lambda one: (-one.main, -one.microthreads, one.state)))


def beats_of(group: PeGroup) -> int:
    """Cycles in which an operation has the datapath, of all slots."""
    return sum(one.cycles for one in group.times if one.state == "beat")


def main_cycles(group: PeGroup, *states: str) -> int:
    """Cycles of the main threads in some states."""
    return sum(one.cycles for one in group.times if one.is_main and one.state in states)


@dataclass(frozen=True)
class Roof:
    """How much of something a PE had in a cycle, against the most that it can have.

    Attributes:
        best: None where the program has nothing of that kind.
        why: where the most comes from.
    """

    name: str
    rate: float
    best: float | None
    why: str

    @property
    def share(self) -> float:
        """Of the most; 0 where there is none."""
        return self.rate / self.best if self.best else 0.0


def roofline(profile: Profile) -> tuple[Roof, ...]:
    """What the PEs' parts did a cycle on average, against the documented best."""
    pe_cycles = max(1, profile.width * profile.height * profile.cycles)
    whole = max(1, profile.pe_cycles)
    beats = sum(map(beats_of, profile.groups))
    widths = sorted({(one.best, one.name) for one in profile.operations})
    told = ", ".join(f"@{name} {best}" for best, name in widths) or "no vector operations"
    totals = profile.totals
    return (
        Roof("beats of operations", beats / whole, 1.0, "a beat a cycle"),
        Roof("elements of operations", totals.elements / pe_cycles, _best_rate(profile), told),
        Roof("wavelets sent", totals.wavelets / pe_cycles, 1.0, "one a cycle on the ramp"),
        Roof(
            "bytes of memory",
            profile.memory_bytes / whole,
            float(MEMORY_BYTES_A_CYCLE),
            "two reads and a write of 8 a cycle",
        ),
        *(
            Roof(f"elements of @{one.name}", one.elements / whole, float(one.best), _DOC)
            for one in sorted(profile.kinds, key=lambda one: (-one.elements, one.name))
        ),
    )


def _best_rate(profile: Profile) -> float | None:
    """Documented elements a cycle: the mean of lines, each by its cycles in operations.

    Where no code waits for its operations, that of the fastest one; None without any.
    """
    best: dict[Line, int] = {}
    for one in profile.operations:
        line = line_of(one)
        best[line] = max(best.get(line, 0), one.best)
    cycles = dict.fromkeys(best, 0)
    for counted in profile.lines():
        line = line_of(counted)
        if line in cycles:
            cycles[line] += counted.operation
    whole = sum(cycles.values())
    if whole == 0:
        return float(max(best.values())) if best else None
    return sum(best[line] * number for line, number in cycles.items()) / whole
