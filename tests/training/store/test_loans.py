"""What a loan gives, and when."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import Loan, ParameterStore, StoreOptions, Tier
from openwafer.training.store.transfers import DiskTransfer
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.training.store.example_records import (
    IMPATIENT,
    QUICK,
    content,
    differing_parts,
    make_store,
    poll,
    read_part,
    write_step,
)
from tests.training.store.gated_io import GatedIo

W, S, G = Part.WEIGHTS, Part.STATES, Part.GRADIENTS
RECORD_BYTES = 2 * 12288  # weights and states of any example record


def gated_store(
    folder: Path, *, num_records: int = 3, ring_bytes: int = 1 << 20
) -> tuple[ParameterStore, GatedIo]:
    """A committed store whose I/O the test can hold."""
    gate = GatedIo()
    options = dataclasses.replace(QUICK, file_io=gate)
    store = make_store(folder, num_records=num_records, ring_bytes=ring_bytes, options=options)
    write_step(store, 0)
    store.commit(0, {})
    return store, gate


@pytest.mark.parametrize("tier", Tier)
def test_parts_never_written_are_zero(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        assert differing_parts(store, None) == []


@pytest.mark.parametrize("ring_records", [1, 2, 10])
@pytest.mark.parametrize("ahead", [1, 3])
def test_updates_come_back_for_any_ring_and_read_ahead(
    tmp_path: Path, ring_records: int, ahead: int
) -> None:
    ring_bytes = ring_records * RECORD_BYTES
    with make_store(tmp_path / "store", num_records=5, ring_bytes=ring_bytes) as store:
        for step in range(3):
            write_step(store, step, ahead=ahead)
        assert differing_parts(store, 2) == []


def test_weights_in_dram_and_states_on_disk_work_together(tmp_path: Path) -> None:
    layouts = list(make_store(None, tier=Tier.DRAM).layouts.values())
    tiers = {W: Tier.DRAM, S: Tier.DISK, G: Tier.DRAM}
    placement = {(layout.name, part): tiers[part] for layout in layouts for part in Part}
    with ParameterStore.create(
        layouts, placement, folder=tmp_path / "store", ring_bytes=1 << 20
    ) as store:
        write_step(store, 7)
        store.commit(7, {})
        assert (differing_parts(store, 7), store.traffic.read_bytes) == ([], 0)


def test_a_tensor_has_the_dtype_and_shape_of_its_array() -> None:
    store = make_store(None, tier=Tier.DRAM)
    loan = store.borrow("layer0", (W, S))
    loan.wait()
    names = [("layer0.weight", W), ("layer0.bias", W), ("layer0.none", W), ("steps/layer0", S)]
    kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in (loan.tensor(*n) for n in names)]
    assert kinds == [
        (torch.float32, (40, 64)),
        (torch.bfloat16, (3,)),
        (torch.float32, (0, 4)),
        (torch.int64, ()),
    ]


def test_tensors_lie_in_the_buffer_that_a_part_has_come_back_to(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", num_records=3, ring_bytes=RECORD_BYTES) as store:
        write_step(store, 0)
        # Three parts take turns in two buffers, so that each comes back to the other one.
        for name in 2 * [*store.layouts]:
            layout = store.layouts[name]
            with store.lent(name, (W,), read_only=True) as loan:
                expected = layout.place(f"{name}.weight", W).view_in(content(layout, W, 0))
                found = loan.tensor(f"{name}.weight", W).view(torch.uint8)
                assert torch.equal(found, expected.view(torch.uint8))


def test_tensors_start_at_multiples_of_64_bytes() -> None:
    loan = make_store(None, tier=Tier.DRAM).borrow("layer0", (W,))
    loan.wait()
    names = ["layer0.weight", "layer0.bias"]
    assert [loan.tensor(name, W).data_ptr() % 64 for name in names] == [0, 0]


def test_a_loan_in_dram_is_the_memory_itself() -> None:
    store = make_store(None, tier=Tier.DRAM)
    addresses = set()
    for _ in range(2):
        loan = store.borrow("layer0", (W,))
        loan.wait()
        addresses.add(loan.part_bytes_view(W).data_ptr())
        loan.release()
    assert len(addresses) == 1


def test_reads_are_made_in_the_order_of_the_loans(tmp_path: Path) -> None:
    gated_store(tmp_path / "store", num_records=8)[0].close()
    done: list[DiskTransfer] = []
    options = dataclasses.replace(QUICK, num_readers=1, on_transfer=done.append)
    with ParameterStore.open(tmp_path / "store", ring_bytes=1 << 20, options=options) as store:
        order = [f"layer{i}" for i in (5, 0, 7, 2)]
        for loan in [store.borrow(record, (W,)) for record in order]:
            loan.wait()
    assert list(dict.fromkeys(transfer.record for transfer in done)) == order


def test_a_paced_store_lends_when_the_disk_has_done_what_it_can(tmp_path: Path) -> None:
    gate = GatedIo()
    options = dataclasses.replace(QUICK, file_io=gate, is_paced=True)
    with make_store(tmp_path / "store", options=options) as store, ThreadPoolExecutor(1) as threads:
        gate.writes.clear()
        with store.lent("layer0", (W,)):
            pass
        loan = threads.submit(store.borrow, "layer1", (W,))
        is_lent = bool(wait([loan], 0.1).done)
        gate.writes.set()
        assert (is_lent, loan.result().is_ready) == (False, True)


def test_a_loan_waits_for_room_until_another_is_released(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        first = store.borrow("layer0", KEPT_PARTS)
        second = store.borrow("layer1", KEPT_PARTS)
        first.wait()
        was_ready = second.is_ready
        first.release()
        second.wait()
        assert not was_ready


def test_a_hit_behind_a_loan_without_room_waits_its_turn(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=2 * RECORD_BYTES)
    with store:
        read_part(store, "layer2", W)
        held = store.borrow("layer0", KEPT_PARTS)
        held.wait()
        big = store.borrow("layer1", (W, S, G), read_only=True)
        hit = store.borrow("layer2", (W,), read_only=True)
        assert (big.is_ready, hit.is_ready) == (False, False)


def test_a_part_still_in_the_ring_is_not_read_again(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store")
    with store:
        gate.offsets_read.clear()
        assert differing_parts(store, 0) == []
        assert (gate.offsets_read, store.traffic.num_hits) == ([], 6)


def test_a_loan_during_the_write_of_its_part_sees_the_new_bytes(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store")
    with store:
        gate.writes.clear()
        write_step(store, 1)
        assert differing_parts(store, 1) == []
        gate.writes.set()


def test_a_loan_that_may_change_bytes_waits_for_the_end_of_their_write(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store")
    with store:
        gate.writes.clear()
        write_step(store, 1)
        loan = store.borrow("layer0", (W,))
        # The writer has taken up the part when the loan is no longer ready.
        was_held = poll(lambda: not loan.is_ready)
        gate.writes.set()
        loan.wait()
        assert was_held


def test_a_changed_part_is_not_written_while_a_loan_may_change_it_again(tmp_path: Path) -> None:
    done: list[DiskTransfer] = []
    options = dataclasses.replace(QUICK, on_transfer=done.append)
    with make_store(tmp_path / "store", options=options) as store:
        one, two, other = (store.borrow(f"layer{i}", (W,)) for i in (0, 0, 1))
        for loan in (one, two, other):
            loan.wait()
        one.release(dirty={W})
        other.release(dirty={W})
        assert poll(lambda: done)
        two.release(dirty={W})
        store.drain()
    assert list(dict.fromkeys(transfer.record for transfer in done)) == ["layer1", "layer0"]


def test_parts_never_written_are_zero_in_a_buffer_used_before(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", ring_bytes=12288) as store:
        used = store.borrow("layer0", (W,))
        used.wait()
        used.part_bytes_view(W).fill_(255)
        used.release(dirty={W})
        assert not read_part(store, "layer1", W).any()


def test_a_record_lent_for_a_block_comes_back_changed_however_it_ends(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", ring_bytes=RECORD_BYTES) as store:
        with suppress(ZeroDivisionError), store.lent("layer0", (W, S)) as loan:
            loan.part_bytes_view(W).fill_(7)
            raise ZeroDivisionError
        with store.lent("layer1", (W, S)):
            pass
        assert bool((read_part(store, "layer0", W) == 7).all())


def test_fresh_parts_are_not_read(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        before = store.traffic.read_bytes
        loan = store.borrow("layer0", (W,), fresh=(W,))
        loan.wait()
        loan.part_bytes_view(W).copy_(content(store.layouts["layer0"], W, 5))
        loan.release()
        store.drain()
        assert store.traffic.read_bytes == before


def test_fresh_parts_count_as_changed(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        loan = store.borrow("layer0", (G,), fresh=(G,))
        loan.wait()
        loan.tensor("layer0.weight", G).fill_(3)
        loan.release()
        for part in KEPT_PARTS:
            read_part(store, "layer1", part)
        assert read_part(store, "layer0", G).view(torch.float32)[0] == 3


def test_a_reader_of_a_fresh_part_waits_until_it_is_filled(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        fresh = store.borrow("layer0", (G,), fresh=(G,))
        reader = store.borrow("layer0", (G,), read_only=True)
        fresh.wait()
        was_ready = reader.is_ready
        fresh.release()
        assert (was_ready, reader.is_ready) == (False, True)


def test_a_reader_behind_a_fresh_part_that_is_given_back_unfilled_reads_it(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        fresh = store.borrow("layer0", (W,), fresh=(W,))
        reader = store.borrow("layer0", (W,), read_only=True)
        was_blocked = reader.is_blocked
        fresh.release()
        reader.wait()
        expected = content(store.layouts["layer0"], W, 0)
        assert was_blocked
        assert torch.equal(reader.part_bytes_view(W), expected)


def test_a_fresh_part_whose_bytes_are_wanted_after_all_is_read(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        loan = store.borrow("layer0", (W,), fresh=(W,))
        loan.want_bytes(W)
        loan.wait()
        assert torch.equal(loan.part_bytes_view(W), content(store.layouts["layer0"], W, 0))


def test_bytes_that_another_loan_is_filling_in_are_not_read_over(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        filling, wanting = (store.borrow("layer0", (W,), fresh=(W,)) for _ in range(2))
        filling.wait()
        wanting.want_bytes(W)
        filling.part_bytes_view(W).fill_(7)
        filling.release()
        wanting.wait()
        assert bool((wanting.part_bytes_view(W) == 7).all())


def test_gaps_of_a_fresh_part_are_zero_whatever_the_buffer_held(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", num_records=6, ring_bytes=RECORD_BYTES)
    with store:
        *others, last = store.layouts
        for record in others:
            used = store.borrow(record, (W,))
            used.wait()
            used.part_bytes_view(W).fill_(255)
            used.release(dirty={W})
        loan = store.borrow(last, (W,), fresh=(W,))
        loan.wait()
        assert loan.part_bytes_view(W)[-64:].tolist() == [0] * 64


def test_a_request_larger_than_the_ring_is_refused_with_both_sizes(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", ring_bytes=8192)
    with store, pytest.raises(OpenwaferError, match="need 24576 bytes of the ring, which has 8192"):
        store.borrow("layer0", KEPT_PARTS)


def test_a_wait_for_room_that_never_comes_is_reported_with_what_is_lent(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", ring_bytes=RECORD_BYTES, options=IMPATIENT)
    with store:
        store.borrow("layer0", KEPT_PARTS).wait()
        with pytest.raises(OpenwaferError, match=r"weights, states of record 'layer1': room") as e:
            store.borrow("layer1", KEPT_PARTS).wait()
        assert "24576 are lent: the weights of record 'layer0'" in str(e.value)


def test_a_read_that_never_ends_is_reported_with_its_record(tmp_path: Path) -> None:
    gated_store(tmp_path / "store")[0].close()
    gate = GatedIo()
    gate.reads.clear()
    options = dataclasses.replace(IMPATIENT, file_io=gate)
    store = ParameterStore.open(tmp_path / "store", ring_bytes=1 << 20, options=options)
    with pytest.raises(OpenwaferError, match=r"the states of record 'layer1': the end of its read"):
        store.borrow("layer1", (S,)).wait()
    gate.reads.set()
    store.close()


def test_a_loan_released_before_its_read_ends_leaves_no_harm(tmp_path: Path) -> None:
    gated_store(tmp_path / "store")[0].close()
    gate = GatedIo()
    gate.reads.clear()
    options = StoreOptions(file_io=gate)
    with ParameterStore.open(tmp_path / "store", ring_bytes=32768, options=options) as store:
        for record in store.layouts:
            store.borrow(record, KEPT_PARTS).release()
        gate.reads.set()
        assert differing_parts(store, 0) == []


MISUSES: dict[str, Callable[[Loan], object]] = {
    "is used before wait": lambda loan: loan.part_bytes_view(W),
    "nobody waited for its bytes": lambda loan: loan.release(dirty={W}),
}


@pytest.mark.parametrize("text", MISUSES)
def test_a_loan_used_wrongly_says_how(text: str) -> None:
    loan = make_store(None, tier=Tier.DRAM).borrow("layer0", (W,))
    with pytest.raises(OpenwaferError, match=f"the loan of the weights of record 'layer0'.*{text}"):
        MISUSES[text](loan)


WAITED_MISUSES: dict[str, Callable[[Loan], object]] = {
    "does not include the states": lambda loan: loan.part_bytes_view(S),
    "changed parts it lacks: states": lambda loan: loan.release(dirty={S}),
    "is to be read, but wait": lambda loan: loan.want_bytes(W),
}


@pytest.mark.parametrize("text", WAITED_MISUSES)
def test_a_loan_used_wrongly_after_its_wait_says_how(text: str) -> None:
    loan = make_store(None, tier=Tier.DRAM).borrow("layer0", (W,))
    loan.wait()
    with pytest.raises(OpenwaferError, match=f"the loan of the weights of record 'layer0'.*{text}"):
        WAITED_MISUSES[text](loan)


LATE_USES: dict[str, Callable[[Loan], object]] = {
    "is released after its release": lambda loan: loan.release(),
    "is waited for after its release": lambda loan: loan.wait(),
    "is used after its release": lambda loan: loan.tensor("layer0.weight", W),
}


@pytest.mark.parametrize("text", LATE_USES)
def test_a_released_loan_is_of_no_use(text: str) -> None:
    loan = make_store(None, tier=Tier.DRAM).borrow("layer0", (W,))
    loan.release()
    with pytest.raises(OpenwaferError, match=text):
        LATE_USES[text](loan)


def test_a_read_only_loan_cannot_be_released_as_changed() -> None:
    loan = make_store(None, tier=Tier.DRAM).borrow("layer0", (W,), read_only=True)
    loan.wait()
    with pytest.raises(OpenwaferError, match="is read-only and is released as changed"):
        loan.release(dirty={W})


def test_an_unknown_record_is_answered_with_the_closest() -> None:
    with pytest.raises(OpenwaferError, match="has no record 'layer9'") as caught:
        make_store(None, tier=Tier.DRAM).borrow("layer9", (W,))
    assert "layer" in str(caught.value).split("help")[1]


def test_a_closed_store_lends_nothing() -> None:
    store = make_store(None, tier=Tier.DRAM)
    store.close()
    with pytest.raises(OpenwaferError, match="the parameter store is closed"):
        store.borrow("layer0", (W,))


def test_a_part_is_read_while_its_record_waits_for_more_room(tmp_path: Path) -> None:
    gated_store(tmp_path / "store")[0].close()
    done: list[DiskTransfer] = []
    options = dataclasses.replace(QUICK, on_transfer=done.append)
    ring_bytes = RECORD_BYTES * 3 // 2
    with ParameterStore.open(tmp_path / "store", ring_bytes=ring_bytes, options=options) as store:
        store.borrow("layer0", (W, S)).wait()
        blocked = store.borrow("layer1", (W, S))
        read = ("read", "layer1")
        assert poll(lambda: read in [(item.kind, item.record) for item in done])
        assert blocked.is_blocked


def test_a_loan_with_half_its_room_gives_it_back(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", ring_bytes=RECORD_BYTES * 3 // 2) as store:
        held = store.borrow("layer0", (W, S))
        store.borrow("layer1", (W, S)).release()
        held.release()
        store.borrow("layer2", (W, S)).wait()
        assert store.ring_mapped_bytes <= store.ring_bytes


def test_a_part_that_was_foreseen_is_read_before_it_is_borrowed(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        store.foresee([("layer0", (W,))])
        store.drain()
        num_before = len(gate.offsets_read)
        read_part(store, "layer0", W)
        assert (num_before, len(gate.offsets_read)) == (2, 2)


def test_what_is_foreseen_takes_no_room_from_a_loan(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        store.foresee([("layer0", KEPT_PARTS)])
        store.drain()
        assert torch.equal(read_part(store, "layer1", S), content(store.layouts["layer1"], S, 0))


def test_what_is_foreseen_first_stays_when_the_ring_is_full(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        store.foresee([(f"layer{i}", (W,)) for i in range(3)])
        store.drain()
        num_before = len(gate.offsets_read)
        read_part(store, "layer0", W)
        assert (num_before, len(gate.offsets_read)) == (4, 4)


def test_a_foreseen_part_that_was_never_written_is_zero(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        store.foresee([("layer0", (W,))])
        assert not read_part(store, "layer0", W).any()


def test_a_record_that_is_not_there_cannot_be_foreseen(tmp_path: Path) -> None:
    with (
        make_store(tmp_path / "store") as store,
        pytest.raises(OpenwaferError, match="has no record 'layer9'"),
    ):
        store.foresee([("layer9", (W,))])


def test_a_foreseen_read_that_fails_is_made_again_for_the_loan(tmp_path: Path) -> None:
    gated_store(tmp_path / "store")[0].close()
    failing = dataclasses.replace(QUICK, file_io=FailingIo(Call.READ, 0, Fault.REFUSE))
    with ParameterStore.open(tmp_path / "store", ring_bytes=1 << 20, options=failing) as store:
        store.foresee([("layer0", (W,))])
        store.drain()
        assert torch.equal(read_part(store, "layer0", W), content(store.layouts["layer0"], W, 0))


def test_a_shared_part_outlives_the_loan_that_shared_it(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        whole = store.borrow("layer0", KEPT_PARTS)
        whole.wait()
        shared = whole.share(W)
        whole.release()
        store.borrow("layer1", KEPT_PARTS)
        expected = content(store.layouts["layer0"], W, 0)
        assert torch.equal(shared.part_bytes_view(W), expected)


def test_a_shared_part_is_ready_while_other_loans_wait_for_room(tmp_path: Path) -> None:
    store, _ = gated_store(tmp_path / "store", ring_bytes=RECORD_BYTES)
    with store:
        whole = store.borrow("layer0", KEPT_PARTS)
        whole.wait()
        store.borrow("layer1", KEPT_PARTS)
        assert whole.share(W).is_ready


def test_a_part_that_is_not_lent_cannot_be_shared(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        loan = store.borrow("layer0", (W,))
        loan.wait()
        with pytest.raises(OpenwaferError, match="does not include the states"):
            loan.share(S)
