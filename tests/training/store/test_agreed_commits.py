"""Stores that commit as one: each can be opened at the step that all had, or were about to have."""

from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.parameter_store import ParameterStore, Tier
from openwafer.training.store.store_folder import manifests_of
from tests.training.store.example_records import (
    QUICK,
    differing_parts,
    make_store,
    write_step,
)

RING_BYTES = 1 << 20


def stopped_in_step(folder: Path, last: int, tier: Tier) -> None:
    """A store that was ready for a step to which others never agreed."""

    def agree(step: int) -> None:
        if step == last:
            raise error("rank-lost", f"nobody came to step {step}")

    store = make_store(folder, tier=tier, options=replace(QUICK, agree=agree))
    for step in range(1, last):
        write_step(store, step)
        store.commit(step, {"position": step})
    write_step(store, last)
    with pytest.raises(OpenwaferError, match=f"nobody came to step {last}"):
        store.commit(last, {"position": last})
    store.close()


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.parametrize("tier", Tier)
def test_a_store_opens_at_the_step_that_is_chosen(tmp_path: Path, tier: Tier, step: int) -> None:
    stopped_in_step(tmp_path / "store", 4, tier)
    assert set(manifests_of(tmp_path / "store")) == {3, 4}
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES, step=step) as store:
        assert (store.step, store.state) == (step, {"position": step})
        assert differing_parts(store, step) == []


@pytest.mark.parametrize("step", [3, 4])
def test_what_is_not_chosen_is_not_found_again(tmp_path: Path, step: int) -> None:
    stopped_in_step(tmp_path / "store", 4, Tier.DISK)
    ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES, step=step).close()
    assert set(manifests_of(tmp_path / "store")) == {step}


def test_a_store_goes_on_from_the_step_before(tmp_path: Path) -> None:
    stopped_in_step(tmp_path / "store", 4, Tier.DISK)
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES, step=3) as store:
        write_step(store, 5)
        store.commit(5, {})
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES) as store:
        assert differing_parts(store, 5) == []


def test_a_step_that_a_store_lacks_is_refused(tmp_path: Path) -> None:
    stopped_in_step(tmp_path / "store", 4, Tier.DISK)
    with pytest.raises(OpenwaferError, match="does not hold step 2, but 3, 4"):
        ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES, step=2)


def test_two_stores_wait_for_each_other(tmp_path: Path) -> None:
    both = Barrier(2, timeout=120)

    def agree(_step: int) -> None:
        both.wait()

    options = replace(QUICK, agree=agree)
    stores = [make_store(tmp_path / name, options=options) for name in ("one", "two")]
    for step in range(1, 5):
        for store in stores:
            write_step(store, step)
            store.commit_begin(step, {})
    for store in stores:
        store.close()
    assert [max(manifests_of(tmp_path / name)) for name in ("one", "two")] == [4, 4]
