"""No wait of the link's threads is for a loan that nobody gives back, however small the ring is.

The records are pushed and fetched in orders that the schedule did not foresee, or that a ring of
one record cannot keep all at once. Where a wait had no end, the store would report `store-stuck`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.device import CpuDevice, Recorder
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming
from tests.examples import examples
from tests.training.store.example_records import poll
from tests.training.stream.small_link import (
    NUM_RECORDS,
    PATIENT,
    WEIGHT_BYTES,
    SmallLink,
    reads_of,
)

ONE_RECORD = 2 / 3  # weights and states, without gradients
MakeLink = Callable[..., "ThreadedLink"]


@dataclass
class ThreadedLink(SmallLink):
    """A link with threads, over a ring with little room."""

    timing: UpdateTiming = UpdateTiming.ON_PUSH
    ring_records: float = ONE_RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        device = CpuDevice(link_bytes_per_second=1e9)
        self.link = StoreLink(self.store, self.updater, device, self.timing, Recorder(device))

    def prefetch(self, index: int) -> None:
        """Begin a fetch whose loan is to be kept for the push."""
        slot = torch.empty(WEIGHT_BYTES, dtype=torch.uint8)
        self.link.fetch(str(index), slot, keeps_loan=True)


@pytest.fixture
def make_link(tmp_path: Path) -> Iterator[MakeLink]:
    """Makes links that are closed in the end."""
    made: list[ThreadedLink] = []

    def make(**options: object) -> ThreadedLink:
        made.append(ThreadedLink(tmp_path / str(len(made)), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for link in made:
        link.close()


def keeping(kind: Kind, order: Sequence[int]) -> list[Action]:
    """Actions that keep their loans for a push."""
    return [Action(kind, str(index), WEIGHT_BYTES, keeps_loan=True) for index in order]


def test_a_fetch_finds_room_while_the_loan_before_it_waits_for_its_push(
    make_link: MakeLink,
) -> None:
    link = make_link()
    link.link.begin_pass(keeping(Kind.FETCH, [0, 1]))
    link.prefetch(0)
    link.prefetch(1)
    link.link.complete("1")
    link.push(0, 0.25)
    link.link.end_pass()
    assert torch.equal(link.stored(0), link.weights[0] - 0.25)


def test_pushes_in_another_order_than_their_reads_find_room(make_link: MakeLink) -> None:
    link = make_link()
    link.link.begin_pass(keeping(Kind.READ, [0, 1]))
    link.push(1, 0.25)
    link.push(0, 0.5)
    link.link.end_pass()
    assert torch.equal(link.stored(1), link.weights[1] - 0.25)


def test_a_push_without_a_loan_finds_room_beside_a_fetch_that_keeps_its_own(
    make_link: MakeLink,
) -> None:
    link = make_link()
    link.link.begin_pass(keeping(Kind.FETCH, [1]))
    link.prefetch(1)
    link.push(0, 0.25)
    link.push(1, 0.5)
    link.link.end_pass()
    assert torch.equal(link.stored(1), link.weights[1] - 0.5)


def test_a_pass_can_be_abandoned_while_a_fetch_waits_for_a_kept_loan(make_link: MakeLink) -> None:
    link = make_link()
    link.link.begin_pass(keeping(Kind.FETCH, [0, 1, 2]))
    link.prefetch(0)
    link.link.complete("0")
    link.prefetch(1)
    link.link.abandon()
    assert torch.equal(link.fetch(2), link.weights[2])


def test_a_link_can_be_closed_while_a_fetch_waits_for_a_kept_loan(make_link: MakeLink) -> None:
    link = make_link()
    link.link.begin_pass(keeping(Kind.FETCH, [0, 1]))
    link.prefetch(0)
    link.link.complete("0")
    link.prefetch(1)
    link.link.close()
    assert torch.equal(link.stored(1), link.weights[1])


def test_reads_further_ahead_go_on_after_a_wait_for_room(make_link: MakeLink) -> None:
    done: list[DiskTransfer] = []
    link = make_link(options=replace(PATIENT, on_transfer=done.append))
    link.link.begin_pass(keeping(Kind.FETCH, [0, 1, 2]))
    link.prefetch(0)
    link.prefetch(1)
    link.link.complete("1")
    link.push(1, 0.25)
    assert poll(lambda: "2" in reads_of(done))


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], int]:
    """The order of the fetches foreseen, of those made, of the pushes, and fetches ahead."""
    records = st.permutations(range(NUM_RECORDS))
    foreseen = draw(st.one_of(records, st.lists(st.integers(0, NUM_RECORDS - 1), max_size=5)))
    return foreseen, draw(records), draw(records), draw(st.integers(0, NUM_RECORDS - 1))


@pytest.mark.parametrize("timing", UpdateTiming)
@examples(40, by_default=6, deadline=None)
@given(step=steps(), is_reading=st.booleans())
def test_any_order_of_fetches_and_pushes_ends(
    timing: UpdateTiming, step: tuple[list[int], list[int], list[int], int], *, is_reading: bool
) -> None:
    foreseen, fetched, pushed, ahead = step
    with TemporaryDirectory() as folder:
        link = ThreadedLink(Path(folder) / "store", timing, ring_records=1)
        actions = keeping(Kind.READ if is_reading else Kind.FETCH, foreseen)
        link.link.begin_pass([replace(action, keeps_loan=True) for action in actions])
        walk(link, fetched, pushed, ahead)
        stored = torch.stack([link.stored(index) for index in range(NUM_RECORDS)])
        link.close()
    assert torch.equal(stored, torch.stack([weight - 0.25 for weight in link.weights]))


def walk(link: ThreadedLink, fetched: Sequence[int], pushed: Sequence[int], ahead: int) -> None:
    """Fetch with some prefetch, push, and apply what is due."""
    for position in range(NUM_RECORDS + ahead):
        if position < NUM_RECORDS:
            link.prefetch(fetched[position])
        if position >= ahead:
            link.link.complete(str(fetched[position - ahead]))
            link.push(pushed[position - ahead], 0.25)
        link.link.advance(position)
    link.link.end_pass()
    if link.link.kept.has_waiting:
        link.complete_step()
        link.link.flush()
