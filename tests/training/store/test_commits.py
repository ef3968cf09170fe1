"""Which bytes a commit holds, while the next step already runs."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, Part, RecordLayout
from openwafer.training.store.parameter_store import Loan, ParameterStore, Tier
from openwafer.training.store.store_file import FileIo
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
RING_BYTES = 1 << 20


def gated_store(folder: Path, tier: Tier = Tier.DISK) -> tuple[ParameterStore, GatedIo]:
    gate = GatedIo()
    options = dataclasses.replace(QUICK, file_io=gate)
    return make_store(folder, tier=tier, options=options), gate


class NotingIo(FileIo):
    """Notes when bytes become durable, and when a manifest names them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.calls.append("sync")

    def replace(self, path: Path, data: bytes) -> None:
        self.calls.append(path.suffix)
        super().replace(path, data)


def test_a_commit_names_only_bytes_that_are_durable(tmp_path: Path) -> None:
    noted = NotingIo()
    options = dataclasses.replace(QUICK, file_io=noted)
    with make_store(tmp_path / "store", tier=Tier.DISK, options=options) as store:
        write_step(store, 1)
        store.commit(1, {})
    assert noted.calls == ["sync", ".json"]


@pytest.mark.parametrize("tier", Tier)
def test_a_store_opens_at_its_last_commit(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        for step in (1, 2, 3):
            write_step(store, step)
            store.commit(step, {"position": step * 10})
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        found = store.step, store.state, differing_parts(store, 3)
    assert found == (3, {"position": 30}, [])


@pytest.mark.parametrize("tier", Tier)
def test_steps_after_the_last_commit_are_forgotten(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        write_step(store, 1)
        store.commit(1, {})
        for step in (2, 3, 4):
            write_step(store, step)
        store.drain()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert (store.step, differing_parts(store, 1)) == (1, [])


@pytest.mark.parametrize("made_in", Tier)
@pytest.mark.parametrize("opened_in", Tier)
def test_a_store_opens_under_any_placement(tmp_path: Path, made_in: Tier, opened_in: Tier) -> None:
    with make_store(tmp_path / "store", tier=made_in) as store:
        write_step(store, 5)
        store.commit(5, {})
        placement = dict.fromkeys(store.placement, opened_in)
    with ParameterStore.open(
        tmp_path / "store", placement=placement, ring_bytes=RING_BYTES
    ) as store:
        assert (differing_parts(store, 5), set(store.placement.values())) == ([], {opened_in})


def test_parts_never_written_are_zero_after_opening_too(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        write_step(store, 1, (W,))
        store.commit(1, {})
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert not any(read_part(store, name, S).any() for name in store.layouts)


@pytest.mark.parametrize("tier", Tier)
def test_a_commit_writes_only_what_changed(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        write_step(store, 1)
        store.commit(1, {})
        before = store.traffic.written_bytes
        write_step(store, 2, (S,))
        store.commit(2, {})
        states_bytes = sum(layout.part_bytes(S) for layout in store.layouts.values())
        assert store.traffic.written_bytes - before == states_bytes


def test_gradients_are_never_committed(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        write_step(store, 1, tuple(Part))
        store.commit(1, {})
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert not read_part(store, "layer0", G).any()


@pytest.mark.parametrize("tier", Tier)
def test_the_next_step_does_not_leak_into_the_commit_under_way(tmp_path: Path, tier: Tier) -> None:
    store, gate = gated_store(tmp_path / "store", tier)
    with store:
        write_step(store, 1)
        store.commit(1, {})
        write_step(store, 2)
        gate.manifest.clear()
        store.commit_begin(2, {})
        write_step(store, 3)
        gate.manifest.set()
        store.commit_wait()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert (store.step, differing_parts(store, 2)) == (2, [])


def test_the_next_step_is_written_while_a_commit_is_flushed(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store")
    with store:
        write_step(store, 1)
        gate.manifest.clear()
        store.commit_begin(1, {})
        write_step(store, 2)
        layouts = store.layouts.values()
        num_bytes = sum(layout.part_bytes(part) for layout in layouts for part in KEPT_PARTS)
        has_written = poll(lambda: store.traffic.written_bytes == 2 * num_bytes)
        gate.manifest.set()
        assert has_written


@pytest.mark.parametrize("tier", Tier)
def test_loans_borrowed_before_a_commit_belong_to_it(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        write_step(store, 1)
        loan = store.borrow("layer0", KEPT_PARTS)
        store.commit_begin(1, {})
        loan.wait()
        for part in KEPT_PARTS:
            loan.part_bytes_view(part).copy_(content(store.layouts["layer0"], part, 9))
        loan.release(dirty=KEPT_PARTS)
        store.commit_wait()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        nine = content(store.layouts["layer0"], W, 9)
        assert torch.equal(read_part(store, "layer0", W), nine)


@pytest.mark.parametrize("tier", Tier)
def test_loans_borrowed_after_a_commit_wait_until_its_bytes_are_safe(
    tmp_path: Path, tier: Tier
) -> None:
    store, gate = gated_store(tmp_path / "store", tier)
    with store:
        gate.writes.clear()
        write_step(store, 1)
        store.commit_begin(1, {})
        changing = store.borrow("layer2", (W,))
        reading = store.borrow("layer2", (W,), read_only=True)
        readiness = changing.is_ready, reading.is_ready
        gate.writes.set()
        changing.wait()
        assert readiness == (False, True)


def test_loans_of_unchanged_parts_do_not_wait_for_a_commit(tmp_path: Path) -> None:
    store, gate = gated_store(tmp_path / "store", Tier.DRAM)
    with store:
        write_step(store, 1, (S,))
        gate.writes.clear()
        store.commit_begin(1, {})
        is_ready = store.borrow("layer2", (W,)).is_ready
        gate.writes.set()
        assert is_ready


def test_a_commit_that_waits_for_a_loan_names_it(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", options=IMPATIENT) as store:
        store.borrow("layer1", (W,)).wait()
        text = r"commit under way; not written: the weights of record 'layer1' \(lent\)"
        with pytest.raises(OpenwaferError, match=text):
            store.commit(1, {})


def test_closing_ends_the_commit_under_way(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        write_step(store, 4)
        store.commit_begin(4, {})
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert store.step == 4


def test_a_store_in_dram_alone_cannot_commit() -> None:
    store = make_store(None, tier=Tier.DRAM)
    with pytest.raises(OpenwaferError, match="has no folder to commit to") as caught:
        store.commit(1, {})
    assert "save a checkpoint instead" in str(caught.value)


def test_a_state_that_is_not_json_is_refused_before_anything_happens(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        with pytest.raises(OpenwaferError, match=r"must be JSON: .*Tensor"):
            store.commit(1, {"rng": torch.zeros(1)})  # type: ignore[dict-item]
        assert store.step is None


def update(loan: Loan, layout: RecordLayout, step: int) -> None:
    """What an update thread does with a loan it is handed."""
    loan.wait()
    for part in KEPT_PARTS:
        loan.part_bytes_view(part).copy_(content(layout, part, step))
    loan.release(dirty=KEPT_PARTS)


@pytest.mark.parametrize("tier", Tier)
def test_an_update_thread_and_a_fetching_one_share_a_small_ring(tmp_path: Path, tier: Tier) -> None:
    store = make_store(tmp_path / "store", tier=tier, ring_bytes=3 * 12288)
    with store, ThreadPoolExecutor(1) as pool:
        for step in range(20):
            for name, layout in store.layouts.items():
                done = pool.submit(update, store.borrow(name, KEPT_PARTS), layout, step)
                fetched = store.borrow(name, (W,), read_only=True)
                fetched.wait()
                fetched.release()
            store.commit_begin(step, {})
        done.result()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert (store.step, differing_parts(store, 19)) == (19, [])


def test_equal_content_gives_equal_manifests(tmp_path: Path) -> None:
    manifests = []
    for name in "ab":
        with make_store(tmp_path / name, ring_bytes=1 << 16) as store:
            for step in range(3):
                write_step(store, step, ahead=2)
            store.commit(2, {})
        manifests.append((tmp_path / name / "manifest.json").read_bytes())
    assert manifests[0] == manifests[1]
