"""What a checkpoint's files say of themselves is checked before it is believed."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import ParameterStore, Tier
from tests.training.store.example_records import make_store, write_step

SHARD = "weights-00001.safetensors"


def store_in_dram() -> ParameterStore:
    store = make_store(None, tier=Tier.DRAM, num_records=2)
    write_step(store, 3)
    return store


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_checkpoint(store_in_dram(), tmp_path / "checkpoints", 3, {})


@pytest.mark.parametrize("length", [2**63, 2**40, 2**64 - 1])
def test_a_header_longer_than_its_file_is_refused_unread(saved: Path, length: int) -> None:
    data = (saved / SHARD).read_bytes()
    (saved / SHARD).write_bytes(length.to_bytes(8, "little") + data[8:])
    expected = f"its header has {length} bytes by its length, the file {len(data)}"
    with pytest.raises(OpenwaferError, match=f"{SHARD} is damaged: ValueError: {expected}"):
        load_checkpoint(saved, store_in_dram())


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"F32"', b'"F31"', "layer0.weight has the unknown dtype 'F31'"),
        (b"[40,64]", b"[40,63]", "layer0.weight of 10080 bytes lies from 0 to 10240"),
        (b"[40,64]", b"[40,-4]", r"shape\[1\]: expected int >= 0"),
        (b'"layer0.weight"', b'"layer0.height"', "KeyError: 'layer0.weight'"),
    ],
)
def test_a_header_with_a_mistake_is_refused_by_its_key(
    saved: Path, old: bytes, new: bytes, told: str
) -> None:
    data = (saved / SHARD).read_bytes()
    (saved / SHARD).write_bytes(data.replace(old, new, 1))
    with pytest.raises(OpenwaferError, match=f"{SHARD} is damaged: .*{told}"):
        load_checkpoint(saved, store_in_dram())


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/elsewhere.safetensors"])
def test_a_shard_outside_of_the_checkpoint_is_refused_by_name(saved: Path, name: str) -> None:
    head = read_checkpoint(saved)
    weights = head.arrays[Part.WEIGHTS]
    moved = {key: replace(array, shard=name) for key, array in weights.items()}
    arrays = {**head.arrays, Part.WEIGHTS: moved}
    (saved / "index.json").write_bytes(replace(head, arrays=arrays).encode())
    with pytest.raises(OpenwaferError, match=f"index.json names the file '{name}', which does not"):
        read_checkpoint(saved)


def test_a_shard_that_is_a_link_out_of_the_checkpoint_is_refused(saved: Path) -> None:
    elsewhere = saved.parent / SHARD
    (saved / SHARD).rename(elsewhere)
    (saved / SHARD).symlink_to(elsewhere)
    with pytest.raises(OpenwaferError, match=f"it would be {elsewhere}"):
        load_checkpoint(saved, store_in_dram())
