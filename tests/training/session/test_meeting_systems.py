"""Systems that are threads of this process: what they learn of each other."""

import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from torch._C._distributed_c10d import HashStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.joining import (
    MASTER_ADDR,
    MASTER_PORT,
    RANK,
    WORLD_SIZE,
    Meeting,
    meet_launched,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.shared_stores import FindRun, require_led_here, tell_run
from openwafer.training.session.systems import BegunStep, MicroBatchReport, Systems, blocks_of
from openwafer.training.stream.replicas.replica_link import Digests

TIMEOUT_SECONDS = 120.0


def of_digests(store: HashStore, rank: int, digests: Digests) -> str:
    """What a system says that has computed with weights of those digests."""
    systems = Systems(Meeting(store, rank, 3, TIMEOUT_SECONDS))
    systems.replicas.digests.where = digests.where
    try:
        with systems.measured(BegunStep(7, 1.0, checks_weights=True)):
            systems.replicas.digests.last = digests.last
    except OpenwaferError as told:
        return str(told)
    return ""


def all_of_digests(digests: Sequence[Digests]) -> list[str]:
    """What each of three systems says."""
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(of_digests, [store] * 3, range(3), digests))


@pytest.mark.parametrize("digests", [(5, 5, 5), (5, 5, 2**64 - 5)])
def test_a_system_with_other_weights_is_named(digests: tuple[int, int, int]) -> None:
    told = all_of_digests([Digests(last={"weights": digest}) for digest in digests])
    found = ["in step 7 rank 2 on host" in text and "ranks-differ" in text for text in told]
    assert found == [len(set(digests)) > 1] * 3


@pytest.mark.parametrize("tied", [5, 9])
def test_a_stage_is_compared_by_the_weights_that_it_has_in_common_with_others(tied: int) -> None:
    stages = ({"a": 4, "tied": 5}, {"b": 6, "tied": 5}, {"c": 7, "tied": tied})
    told = all_of_digests([Digests(last=one, where=f"stage {n}") for n, one in enumerate(stages)])
    for text in told:
        here = f"rank 0 on host {socket.gethostname()!r}"
        named = f"(stage 2) computed with other tied than {here} (stage 0"
        assert (named in text) == (tied != 5)


def test_a_system_may_take_longer_to_start_than_a_silent_one_has() -> None:
    store = HashStore()
    first = Meeting(store, 0, 2, timeout_seconds=0.1, start_seconds=TIMEOUT_SECONDS)
    late = Timer(0.5, Meeting(store, 1, 2, TIMEOUT_SECONDS).meet, ("start", [1]))
    late.start()
    assert [rank.index for rank in first.meet("start", range(2))] == [0, 1]
    late.join()


def test_a_system_that_does_not_start_is_missing() -> None:
    first = Meeting(HashStore(), 0, 2, timeout_seconds=0.1)
    with pytest.raises(OpenwaferError, match="rank-missing"):
        first.meet("start", range(2))


def test_every_system_waits_for_the_others_as_long_as_the_first_one() -> None:
    store = HashStore()
    first = Meeting(store, 0, 3, timeout_seconds=0.1, start_seconds=TIMEOUT_SECONDS)
    first.timed_by_first()
    second = Meeting(store, 1, 3, TIMEOUT_SECONDS).timed_by_first()
    assert (second.timeout_seconds, second.start_seconds) == (0.1, TIMEOUT_SECONDS)


def test_a_system_that_has_met_the_others_is_lost_at_a_later_meeting_as_soon_as_a_silent_one() -> (
    None
):
    store = HashStore()
    both = [Meeting(store, r, 2, TIMEOUT_SECONDS, start_seconds=TIMEOUT_SECONDS) for r in range(2)]
    with ThreadPoolExecutor(2) as threads:
        met, _ = (systems.meeting for systems in threads.map(Systems, both))
    with pytest.raises(OpenwaferError, match=r"rank-missing.*rank 1, .*\n.* in 0.1 s"):
        replace(met, timeout_seconds=0.1).groups(["later"])


def of_signal(store: HashStore, rank: int, number: int) -> str:
    systems = Systems(Meeting(store, rank, 3, TIMEOUT_SECONDS))
    systems.interruption.note(number)
    with systems.measured(BegunStep(7, 1.0)):
        pass
    return systems.interruption.signal_name


def test_a_signal_to_one_system_is_known_to_all_when_the_step_has_ended() -> None:
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:
        told = threads.map(of_signal, [store] * 3, range(3), (0, 0, signal.SIGTERM))
    assert list(told) == ["SIGTERM"] * 3


def of_reports(store: HashStore, rank: int) -> list[MicroBatchReport]:
    systems = Systems(Meeting(store, rank, 2, TIMEOUT_SECONDS))
    own = [MicroBatchReport(float(index), index, 10 * index) for index in systems.block(5)]
    return systems.exchange(own, 5)


def test_all_systems_know_all_losses_in_order() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(of_reports, [store] * 2, range(2))
    assert first == second == [MicroBatchReport(float(i), i, 10 * i) for i in range(5)]


@pytest.mark.parametrize("num_systems", range(1, 8))
def test_blocks_are_neighbours_and_alike(num_systems: int) -> None:
    blocks = blocks_of(7, num_systems)
    assert [index for block in blocks for index in block] == list(range(7))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_the_timeout_of_the_first_counts_for_all() -> None:
    store = HashStore()
    met = [Meeting(store, 0, 2, 7.5), Meeting(store, 1, 2, 600.0)]
    with ThreadPoolExecutor(2) as threads:
        timed = list(threads.map(Meeting.timed_by_first, met))
    assert [meeting.timeout_seconds for meeting in timed] == [7.5, 7.5]


def test_a_first_that_nobody_reaches_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("localhost", 0))
        for name, value in ((RANK, 1), (WORLD_SIZE, 2), (MASTER_PORT, closed.getsockname()[1])):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv(MASTER_ADDR, "localhost")
        told = r"\[rank-missing\]: rank 1 of 2 waited \d+\.\d s for rank 0, which is not there"
        with pytest.raises(OpenwaferError, match=told):
            meet_launched(1.0)


def test_another_program_at_the_port_of_the_first_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as foreign:
        foreign.bind(("localhost", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        for name, value in ((RANK, 1), (WORLD_SIZE, 2), (MASTER_PORT, port)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv(MASTER_ADDR, "localhost")
        told = (
            rf"rank 1 of 2 waited \d+\.\d s for rank 0.*\n.* another program .*localhost:{port}\n"
        )
        with pytest.raises(OpenwaferError, match=told):
            meet_launched(1.0)


def test_a_port_that_somebody_has_is_told_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in ((RANK, 0), (WORLD_SIZE, 2), (MASTER_PORT, port)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv(MASTER_ADDR, "localhost")
        told = rf"\[port-in-use\]: rank 0 cannot wait .* at localhost:{port}\n.*failed to listen"
        with pytest.raises(OpenwaferError, match=told):
            meet_launched(5.0)


def test_nobody_waits_for_a_system_that_is_known_to_have_ended() -> None:
    def check() -> None:
        raise KeyError("ended")

    with pytest.raises(KeyError, match="ended"):
        Systems(Meeting(HashStore(), 0, 2, TIMEOUT_SECONDS, check))


def test_who_does_not_come_to_a_later_group_is_named() -> None:
    store = HashStore()
    first, second = (Meeting(store, rank, 2, TIMEOUT_SECONDS) for rank in range(2))
    with ThreadPoolExecutor(2) as threads:
        # Neither leaves while the other one still connects.
        joined = list(threads.map(Meeting.groups, (first, second), (["records"], ["records"])))
    assert [group.rank for (group,) in joined] == [0, 1]
    told = r"\[rank-missing\]: rank 0 of 2 waited \d+\.\d s for rank 1, which is not there\n"
    with pytest.raises(OpenwaferError, match=told):
        replace(first, timeout_seconds=0.1).groups(["experts"])


def test_who_has_come_and_does_not_connect_is_waited_for() -> None:
    store = HashStore()
    first, second = (Meeting(store, rank, 2, TIMEOUT_SECONDS) for rank in range(2))
    with ThreadPoolExecutor(1) as threads:
        came = threads.submit(second.meet, "records", range(2))
        first.meet("records", range(2))
        came.result()
    told = r"\[rank-lost\]: rank 0 on host '\S+' waited \d+\.\d s for the other ranks to connect\n"
    with pytest.raises(OpenwaferError, match=told):
        replace(first, timeout_seconds=0.5).groups(["records"])


def leads_run(store: HashStore, folder: Path, other: Path) -> str:
    """What a system says that leads where the run is in the folder of another one."""

    def follow() -> None:
        systems = Systems(Meeting(store, 1, 2, TIMEOUT_SECONDS))

        def answer(_asked: object) -> None:
            tell_run(systems, FindRun(other))

        systems.control.answer = answer
        systems.follow()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(follow)
        systems = Systems(Meeting(store, 0, 2, TIMEOUT_SECONDS))
        try:
            with systems.leading():
                require_led_here(RunFolder(folder), systems)
        except OpenwaferError as told:
            return str(told)
    return ""


def test_a_run_that_another_system_has_is_not_led_from_here(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    other.mkdir()
    assert leads_run(HashStore(), here, other) == ""
    (other / "config.yaml").touch()
    told = leads_run(HashStore(), here, other)
    assert "[run-elsewhere]: rank 0 on host" in told
    assert f"leads, and the run {here} is with rank 1 on host" in told
