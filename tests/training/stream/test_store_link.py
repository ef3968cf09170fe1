"""The link over a store: reads run ahead in order, updates happen when due, failures leave it."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.training.stream.small_link import (
    NUM_RECORDS,
    PATIENT,
    WEIGHT_BYTES,
    SmallLink,
    fetches,
    interleaved,
    reads_of,
)

MakeLink = Callable[..., SmallLink]


@pytest.fixture
def make_link(tmp_path: Path) -> Iterator[MakeLink]:
    """Makes links over stores of their own, and closes them."""
    made: list[SmallLink] = []

    def make(**options: object) -> SmallLink:
        made.append(SmallLink(tmp_path / str(len(made)), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for link in made:
        link.close()


def test_reads_run_ahead_in_the_order_of_the_schedule(make_link: MakeLink) -> None:
    transfers: list[DiskTransfer] = []
    one_reader = StoreOptions(num_readers=1, on_transfer=transfers.append)
    small = make_link(options=one_reader)
    small.link.begin_pass(fetches([2, 0, 1]))
    small.store.drain()
    assert reads_of(transfers) == ["2", "0", "1"]


def test_a_fetch_brings_the_weights_of_its_record(make_link: MakeLink) -> None:
    small = make_link()
    small.link.begin_pass(fetches([0, 1, 2]))
    assert all(torch.equal(small.fetch(index), small.weights[index]) for index in range(3))


def test_a_demand_out_of_order_is_served_in_a_ring_full_of_reads(make_link: MakeLink) -> None:
    small = make_link(ring_records=2 / 3)
    small.link.begin_pass(fetches([0, 1, 2]))
    demanded = small.fetch(2)
    assert torch.equal(demanded, small.weights[2])


def test_the_order_goes_on_after_a_demand_out_of_order(make_link: MakeLink) -> None:
    small = make_link(ring_records=2 / 3)
    small.link.begin_pass(fetches([0, 1, 2]))
    fetched = [small.fetch(index) for index in (2, 0, 1, 2)]
    assert torch.equal(torch.stack(fetched[1:]), torch.stack(small.weights))


def test_the_end_of_a_pass_reads_for_the_next(make_link: MakeLink) -> None:
    small = make_link(timing=UpdateTiming.ON_PUSH, ring_records=1 / 3)
    small.link.begin_pass(fetches([0, 1]))
    for index in range(2):
        small.fetch(index)
        small.link.advance(index + 1)
    small.store.drain()
    num_read = small.store.traffic.num_reads
    assert (torch.equal(small.fetch(0), small.weights[0]), num_read) == (True, 3)


def test_an_update_on_push_is_in_the_store_at_once(make_link: MakeLink) -> None:
    small = make_link(timing=UpdateTiming.ON_PUSH)
    small.link.begin_pass(fetches([1]))
    small.fetch(1)
    small.push(1, 0.25)
    assert torch.equal(small.stored(1), small.weights[1] - 0.25)


def test_an_update_on_fetch_waits_for_the_end_of_the_step(make_link: MakeLink) -> None:
    small = make_link()
    small.link.begin_pass(fetches([1]))
    small.push(1, 0.25)
    small.link.end_pass()
    assert torch.equal(small.stored(1), small.weights[1])


def test_an_update_on_fetch_is_made_before_the_next_fetch(make_link: MakeLink) -> None:
    small = make_link()
    small.push(1, 0.25)
    small.complete_step(0.5)
    small.link.begin_pass(fetches([1]))
    assert torch.equal(small.fetch(1), small.weights[1] - 0.125)


def test_gradients_of_one_record_that_come_apart_are_added_up(make_link: MakeLink) -> None:
    small = make_link()
    small.push(1, 0.25)
    small.push(1, 0.5)
    small.complete_step()
    small.link.flush()
    assert torch.equal(small.stored(1), small.weights[1] - 0.75)


def test_a_second_fetch_of_the_same_record_waits_for_its_update(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.complete_step()
    small.link.begin_pass(fetches([0, 1, 0]))
    first, _, second = small.fetch(0), small.fetch(1), small.fetch(0)
    assert torch.equal(first, second)


def test_flush_applies_what_no_fetch_has_applied(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.push(2, 0.5)
    small.complete_step()
    small.link.flush()
    assert torch.equal(small.stored(2), small.weights[2] - 0.5)


def test_gradients_find_room_in_a_ring_full_of_reads(make_link: MakeLink) -> None:
    small = make_link(ring_records=1)
    small.link.begin_pass(fetches([0, 1, 2, 1, 0]))
    small.fetch(0)
    small.push(0, 0.25)
    assert small.link.kept.has_waiting


def test_gradients_send_no_reads_away(make_link: MakeLink) -> None:
    transfers: list[DiskTransfer] = []
    options = StoreOptions(num_readers=1, on_transfer=transfers.append)
    small = make_link(ring_records=2 / 3, options=options)
    small.link.begin_pass(interleaved([2, 1, 0]))
    for index in (2, 1, 0):
        small.fetch(index)
        small.push(index, 0.25)
    # What comes behind is read for the next pass.
    assert reads_of(transfers)[:NUM_RECORDS] == ["2", "1", "0"]


def with_room_asked_for(make_link: MakeLink) -> SmallLink:
    """A gradient of 0.25 was applied and is on disk alone; room for the next is asked for ahead."""
    small = make_link(ring_records=1)
    small.push(0, 0.25)
    small.complete_step()
    small.link.flush()
    with small.store.lent("1", tuple(Part), read_only=True):
        pass
    small.link.begin_pass([Action(Kind.PUSH, "0", WEIGHT_BYTES)])
    return small


def test_a_gradient_that_is_kept_again_is_added_to_though_room_was_asked_for(
    make_link: MakeLink,
) -> None:
    small = with_room_asked_for(make_link)
    small.link.kept.add("0", ["0.weight"])
    small.push(0, 0.5)
    assert bool((small.kept(0) == 0.75).all())


def test_a_gradient_in_whose_place_room_is_asked_for_can_be_read(make_link: MakeLink) -> None:
    small = with_room_asked_for(make_link)
    with small.link.lent("0", Part.GRADIENTS) as loan:
        assert bool((loan.tensor("0.weight", Part.GRADIENTS) == 0.25).all())


def test_a_gradient_in_whose_place_room_is_asked_for_can_be_changed(make_link: MakeLink) -> None:
    small = with_room_asked_for(make_link)
    small.link.keep_gradient("0", "0.weight", torch.ones(64, 64))
    small.push(0, 0.5)
    assert bool((small.kept(0) == 1.5).all())


def test_what_was_foreseen_and_found_no_room_is_not_read_in_the_pass(make_link: MakeLink) -> None:
    small = make_link(ring_records=1 / 3)
    loan = small.store.borrow("2", (Part.WEIGHTS,))
    small.store.foresee([("0", (Part.WEIGHTS,))])
    small.link.begin_pass([])
    loan.release()
    small.store.drain()
    assert small.store.traffic.num_reads == 1


def test_updates_find_room_in_a_ring_full_of_reads(make_link: MakeLink) -> None:
    small = make_link(ring_records=1)
    small.push(2, 0.25)
    small.complete_step()
    small.link.begin_pass(fetches([0, 1, 0, 1]))
    small.link.flush()
    assert torch.equal(small.stored(2), small.weights[2] - 0.25)


def test_a_step_completed_twice_is_refused(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.complete_step()
    with pytest.raises(OpenwaferError, match="call backward between two optimizer steps"):
        small.complete_step()


def test_discarded_gradients_change_nothing(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.link.kept.discard()
    small.link.flush()
    assert torch.equal(small.stored(0), small.weights[0])


def test_a_pass_that_is_abandoned_gives_every_loan_back(make_link: MakeLink) -> None:
    small = make_link(ring_records=1)
    small.link.begin_pass(fetches([0, 1, 2]))
    small.link.fetch("0", torch.empty(64 * 64 * 4, dtype=torch.uint8), keeps_loan=False)
    small.link.abandon()
    small.store.borrow("2", tuple(Part)).wait()


def test_a_pass_that_is_abandoned_forgets_its_gradients(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.link.abandon()
    assert not small.link.kept.has_waiting


def test_a_pass_that_is_abandoned_keeps_the_updates_of_the_step_before(make_link: MakeLink) -> None:
    small = make_link()
    small.push(0, 0.25)
    small.complete_step()
    small.link.begin_pass(fetches([1]))
    small.link.abandon()
    small.link.flush()
    assert torch.equal(small.stored(0), small.weights[0] - 0.25)


def failing_reads(failing: int) -> StoreOptions:
    return replace(PATIENT, file_io=FailingIo(Call.READ, failing, Fault.REFUSE))


def test_a_fetch_whose_read_fails_gives_its_loan_back(make_link: MakeLink) -> None:
    small = make_link(ring_records=1, options=failing_reads(0))
    small.link.begin_pass(fetches([0]))
    with pytest.raises(OpenwaferError, match="cannot read the weights of record '0'"):
        small.fetch(0)
    small.link.abandon()
    small.store.borrow("2", tuple(Part)).wait()


def fail(record: str) -> None:
    raise ValueError(f"the update of {record} fails")


def test_a_push_that_fails_gives_its_loan_back(make_link: MakeLink) -> None:
    small = make_link(ring_records=1)
    with pytest.raises(RuntimeError, match="size of tensor"):
        small.link.push("0", [{"0.weight": torch.ones(3, 3)}])
    small.link.abandon()
    small.store.borrow("2", tuple(Part)).wait()


def test_an_update_on_push_that_fails_gives_its_loan_back(make_link: MakeLink) -> None:
    small = make_link(timing=UpdateTiming.ON_PUSH, ring_records=1)
    small.link.on_update = fail
    with pytest.raises(ValueError, match="the update of 0 fails"):
        small.push(0, 0.25)
    small.link.abandon()
    small.store.borrow("2", tuple(Part)).wait()


def test_a_fetch_whose_update_fails_gives_its_loan_back(make_link: MakeLink) -> None:
    small = make_link(ring_records=1)
    small.push(0, 0.25)
    small.complete_step()
    small.link.on_update = fail
    with pytest.raises(ValueError, match="the update of 0 fails"):
        small.fetch(0)
    small.link.abandon()
    small.store.borrow("2", tuple(Part)).wait()


def test_a_record_can_be_fetched_after_its_read_has_failed(make_link: MakeLink) -> None:
    small = make_link(options=failing_reads(0))
    small.link.begin_pass(fetches([0]))
    with pytest.raises(OpenwaferError, match="cannot read the weights of record '0'"):
        small.fetch(0)
    small.link.abandon()
    assert torch.equal(small.fetch(0), small.weights[0])


def test_traffic_counts_bytes_each_way(make_link: MakeLink) -> None:
    small = make_link()
    small.fetch(0)
    small.fetch(1)
    small.push(1, 0.25)
    traffic = asdict(small.link.traffic)
    assert (traffic["fetch_bytes"], traffic["push_bytes"]) == (2 * 16384, 16384)


@pytest.mark.parametrize("timing", UpdateTiming)
def test_gradients_cross_a_slow_link_at_its_rate(make_link: MakeLink, timing: UpdateTiming) -> None:
    device = CpuDevice(link_bytes_per_second=10 * WEIGHT_BYTES)
    small = make_link(timing=timing, device=device)
    small.link.begin_pass([])
    start = time.perf_counter()
    small.push(0, 1.0)
    small.link.end_pass()
    assert time.perf_counter() - start >= 0.1


def test_watchers_may_change_gradients_on_their_way(make_link: MakeLink) -> None:
    small = make_link(timing=UpdateTiming.ON_PUSH)

    def double(gradients: Mapping[str, torch.Tensor]) -> None:
        gradients["0.weight"].mul_(2)

    small.link.watchers.append(double)
    small.push(0, 0.25)
    assert torch.equal(small.stored(0), small.weights[0] - 0.5)


def test_a_fetch_that_was_not_needed_gives_its_room_back(make_link: MakeLink) -> None:
    small = make_link(ring_records=1 / 3)
    small.link.begin_pass(fetches([0, 1]))
    small.link.advance(1)
    assert torch.equal(small.fetch(1), small.weights[1])


class Refusing(CpuDevice):
    """Refuses uploads, as a GPU does while a graph is captured."""

    def submitted(self) -> None:
        raise error("device-graph", "no")


def test_a_fetch_that_the_device_refuses_leaves_no_loan(make_link: MakeLink) -> None:
    small = make_link(device=Refusing(), ring_records=2 / 3)
    for index in range(NUM_RECORDS):
        with pytest.raises(OpenwaferError, match="device-graph"):
            small.fetch(index)
    with small.link.lent("0", Part.WEIGHTS, Part.STATES, changes=True) as loan:
        assert torch.equal(loan.tensor("0.weight", Part.WEIGHTS), small.weights[0])
