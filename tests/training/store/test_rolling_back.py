"""A store that is rolled back is what its last commit made it, in memory and on disk."""

import dataclasses
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import ParameterStore, Tier
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.training.store.example_records import (
    QUICK,
    differing_parts,
    make_store,
    write_step,
)

RING_BYTES = 1 << 20
SMALL_RING_BYTES = 1 << 15


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("ring_bytes", [RING_BYTES, SMALL_RING_BYTES])
def test_changes_since_the_last_commit_are_gone(
    tmp_path: Path, tier: Tier, ring_bytes: int
) -> None:
    with make_store(tmp_path / "store", tier=tier, ring_bytes=ring_bytes) as store:
        write_step(store, 1)
        store.commit_begin(1, {})
        write_step(store, 2)
        store.roll_back()
        assert (store.step, differing_parts(store, 1)) == (1, [])


@pytest.mark.parametrize("tier", Tier)
def test_what_was_never_written_is_zero_again(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        store.commit(0, {})
        write_step(store, 1)
        store.roll_back()
        assert differing_parts(store, None) == []


@pytest.mark.parametrize("tier", Tier)
def test_what_is_written_after_a_roll_back_is_committed(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        for step in (1, 2, 3):
            write_step(store, 10 * step)
            store.drain()
            if step > 1:
                store.roll_back()
            write_step(store, step)
            store.commit_begin(step, {})
        store.commit_wait()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert (store.step, differing_parts(store, 3)) == (3, [])


@pytest.mark.parametrize("tier", Tier)
def test_a_store_closed_after_a_roll_back_opens_at_its_commit(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        write_step(store, 1)
        store.commit(1, {})
        write_step(store, 2)
        store.roll_back()
        write_step(store, 3)
        store.drain()
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert differing_parts(store, 1) == []


def test_a_record_that_is_lent_and_changed_cannot_be_rolled_back(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", tier=Tier.DRAM) as store:
        store.commit(0, {})
        write_step(store, 1)
        loan = store.borrow("layer1", (Part.WEIGHTS,), read_only=True)
        with pytest.raises(OpenwaferError, match="weights of record 'layer1' is lent"):
            store.roll_back()
        loan.release()


def test_a_part_in_dram_that_cannot_be_read_again_is_told(tmp_path: Path) -> None:
    options = dataclasses.replace(QUICK, file_io=FailingIo(Call.READ, 0, Fault.REFUSE))
    with make_store(tmp_path / "store", tier=Tier.DRAM, options=options) as store:
        write_step(store, 1)
        store.commit(1, {})
        write_step(store, 2)
        with pytest.raises(OpenwaferError, match="cannot read the weights of record 'layer0'"):
            store.roll_back()


def test_a_store_without_a_folder_has_nothing_to_roll_back_to() -> None:
    store = make_store(None, tier=Tier.DRAM)
    with store, pytest.raises(OpenwaferError, match="no folder"):
        store.roll_back()


@pytest.mark.parametrize("tier", Tier)
def test_a_store_that_was_never_committed_keeps_its_changes(tmp_path: Path, tier: Tier) -> None:
    with make_store(tmp_path / "store", tier=tier) as store:
        write_step(store, 1)
        with pytest.raises(OpenwaferError, match="holds no committed step") as found:
            store.roll_back()
        assert found.value.diagnostics[0].help == "commit once before changes that may be undone"
        assert differing_parts(store, 1) == []
