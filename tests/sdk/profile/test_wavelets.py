"""Every wavelet of a recorded run has one end a branch."""

import runpy
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import EventKind, Record, read_record
from openwafer.sdk.fabric import Scope, SimulatorOptions
from openwafer.sdk.fabric.words import NO_COLOR
from openwafer.sdk.host.record import RecordFile
from openwafer.sdk.profile import End, Wavelets, wavelets
from openwafer.sdk.profile.wavelets import Passages, Stay, followed
from tests.sdk.fabric.random_machines import CYCLES, build, random_machine
from tests.tables import case

EXAMPLES = Path(__file__).parents[3] / "examples" / "wafer"
FROM_HOST = 5


def of_machine(seed: int, path: Path) -> Record:
    """The record of a random machine, which may wait for ever or stop with an error."""
    simulator, _code = build(random_machine(Random(seed)), SimulatorOptions(scope=Scope()))
    file = RecordFile(path, simulator._program, Scope())  # noqa: SLF001
    simulator.record_to(file.add)
    with suppress(OpenwaferError):
        simulator.run_until_idle(CYCLES)
        simulator.run_until_command_done()
    file.close()
    return read_record(path)


def num_by_port(record: Record) -> int:
    """Wavelets that came over links which end at the rectangle's edge."""
    came = record.events(EventKind.LANDING, EventKind.NOWHERE)
    # What a route sends nowhere has landed.
    came = came.take((came.kind == EventKind.LANDING) | (came.number == NO_COLOR))
    last = [(0, came.x), (record.head.width - 1, came.x)]
    last += [(record.head.height - 1, came.y), (0, came.y)]
    # Where a wavelet lands on both colors of a pair it is two.
    return sum(int(((came.link == k) & (at == end)).sum()) for k, (end, at) in enumerate(last))


def check(record: Record, found: Wavelets) -> None:
    """All that was sent is there, all that was taken, and nothing twice."""
    events = record.events()
    sent = events.of(EventKind.SENT).cycle.size
    entered = events.of(EventKind.ENTERED)
    num_from_host = int((entered.link == FROM_HOST).sum()) + num_by_port(record)
    assert len(set(found.wavelet.tolist())) == sent + num_from_host
    ends = Counter(found.end.tolist())
    assert ends[End.CONSUMED] == len(events.of(EventKind.TAKEN))
    assert ends[End.FILTERED] == len(events.of(EventKind.FILTERED))
    assert ends[End.LOST] == len(events.of(EventKind.LOST, EventKind.NOWHERE))
    came = found.consumed >= 0
    assert (found.sent[came] <= found.arrived[came]).all()
    assert (found.arrived[came] < found.consumed[came]).all()


@pytest.mark.parametrize(
    "first", [case(first, by_default=first < 20) for first in range(0, 40, 10)]
)
def test_each_wavelet_of_a_random_machine_has_one_end_a_branch(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        record = of_machine(seed, tmp_path / "run.record")
        check(record, wavelets(record))


def test_random_machines_have_all_ends(tmp_path: Path) -> None:
    seen = Counter[int]()
    for seed in range(12):
        seen.update(wavelets(of_machine(seed, tmp_path / "run.record")).end.tolist())
    assert {End.CONSUMED, End.FILTERED, End.SUNK, End.STILL_THERE} <= set(seen)


@pytest.mark.parametrize("script", ["heat/run.py", "pipeline/run.py", "saxpy.py"])
def test_each_wavelet_of_an_example_is_consumed_or_goes_to_the_host(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENWAFER_RECORD", str(tmp_path))
    runpy.run_path(str(EXAMPLES / script))
    for path in tmp_path.glob("*.record"):
        record = read_record(path)
        found = wavelets(record)
        check(record, found)
        assert set(found.end.tolist()) <= {End.CONSUMED, End.SUNK}


def test_a_record_of_a_part_has_no_join(tmp_path: Path) -> None:
    path = tmp_path / "run.record"
    simulator, _code = build(random_machine(Random(1)), SimulatorOptions(scope=Scope()))
    RecordFile(path, simulator._program, Scope(cycles=(3, 9))).close()  # noqa: SLF001
    with pytest.raises(OpenwaferError, match=r"a part of the run(.|\n)*whole rectangle"):
        wavelets(read_record(path))


def slow_stays(record: Record, found: Passages) -> list[int]:
    """How each fares, by a look at all others."""
    hop = {"wse2": 1, "wse3": 2}[record.head.arch]
    steps = [(-1, 0), (1, 0), (0, 1), (0, -1)]
    stays: list[int] = []
    for one in range(len(found)):
        x, y, begin, end = (int(part[one]) for part in (found.x, found.y, found.landed, found.gone))
        others = found.color != found.color[one]
        others &= (found.landed >= begin + hop) & (found.landed < end)
        is_delayed = False
        for side, (dx, dy) in enumerate(steps):
            there = others & (found.x == x + dx) & (found.y == y + dy) & (found.link == side ^ 1)
            is_delayed |= bool(found.outputs[one] >> side & 1) and bool(there.any())
        waited = Stay.DELAYED if is_delayed else Stay.BACK_PRESSURED
        stays.append(Stay.STILL_THERE if end < 0 else waited if end > begin + hop else Stay.ACTIVE)
    return stays


@pytest.mark.parametrize("seed", range(6))
def test_wavelets_at_routers_fare_as_a_look_at_all_others_says(seed: int, tmp_path: Path) -> None:
    record = of_machine(seed, tmp_path / "run.record")
    branches, found = followed(record)
    assert slow_stays(record, found) == found.stay.tolist()
    gone = found.gone >= 0
    assert (found.gone[gone] - found.landed[gone] >= 1).all()
    assert len(found) == len(record.events(EventKind.LANDING))
    assert set(found.wavelet.tolist()) <= set(branches.wavelet.tolist())
