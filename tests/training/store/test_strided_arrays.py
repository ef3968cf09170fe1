"""Arrays that are not in C order: so in memory and in the store's file, and not in checkpoints."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from openwafer.training.store import ArraySpec, ParameterStore, Part, Tier, lay_out, load_checkpoint
from openwafer.training.store.checkpoint import save_checkpoint
from tests.training.store.example_records import placed

VALUES = torch.arange(24.0).view(4, 6)
COLUMNS = (1, 4)


def store_of(strides: tuple[int, ...] | None, folder: Path | None = None) -> ParameterStore:
    layouts = [lay_out("r", [ArraySpec("w", torch.float32, (4, 6), strides)])]
    tier = Tier.DRAM if folder is None else Tier.DISK
    placement = placed(layouts, tier)
    return ParameterStore.create(layouts, placement, folder=folder, ring_bytes=1 << 20)


def fill(store: ParameterStore) -> None:
    with store.lent("r", (Part.WEIGHTS,)) as loan:
        loan.tensor("w", Part.WEIGHTS).copy_(VALUES)


def held(store: ParameterStore) -> torch.Tensor:
    with store.lent("r", (Part.WEIGHTS,), read_only=True) as loan:
        return loan.tensor("w", Part.WEIGHTS).clone()


def test_an_array_lies_in_memory_as_its_strides_say() -> None:
    with store_of(COLUMNS) as store:
        fill(store)
        with store.lent("r", (Part.WEIGHTS,), read_only=True) as loan:
            bytes_held = loan.part_bytes_view(Part.WEIGHTS)[: VALUES.nbytes]
        assert torch.equal(bytes_held.view(torch.float32), VALUES.t().reshape(-1))
        assert (held(store).stride(), torch.equal(held(store), VALUES)) == (COLUMNS, True)


def test_a_store_that_is_opened_again_has_the_strides(tmp_path: Path) -> None:
    with store_of(COLUMNS, tmp_path) as store:
        fill(store)
        store.commit(1, {})
    with ParameterStore.open(tmp_path, ring_bytes=1 << 20) as again:
        assert (held(again).stride(), torch.equal(held(again), VALUES)) == (COLUMNS, True)


def test_checkpoints_fit_stores_of_other_strides(tmp_path: Path) -> None:
    with store_of(COLUMNS) as store, store_of(None) as other, store_of(COLUMNS) as again:
        fill(store)
        folder = save_checkpoint(store, tmp_path, 1, {})
        load_checkpoint(folder, other)
        load_checkpoint(save_checkpoint(other, tmp_path, 2, {}), again)
        assert torch.equal(held(other), VALUES)
        assert torch.equal(held(again), VALUES)
    assert torch.equal(load_file(folder / "weights-00001.safetensors")["w"], VALUES)
