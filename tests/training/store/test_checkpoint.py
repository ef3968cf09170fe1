"""Portable checkpoints: what they hold, what they refuse, and that they are whole or absent."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import load_file

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.checkpoint import (
    keep_last,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from openwafer.training.store.layout import ArraySpec, Part, lay_out
from openwafer.training.store.parameter_store import ParameterStore, Tier
from openwafer.training.store.record_access import Records
from tests.training.store.example_records import (
    content,
    differing_parts,
    make_store,
    placed,
    write_step,
)

W, S = Part.WEIGHTS, Part.STATES


def store_at(step: int, num_records: int = 3) -> ParameterStore:
    """A store in DRAM whose bytes are those of a step."""
    store = make_store(None, tier=Tier.DRAM, num_records=num_records)
    write_step(store, step)
    return store


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of step 3."""
    return save_checkpoint(store_at(3), tmp_path, 3, {"position": 30})


@pytest.mark.parametrize("saved_from", Tier)
@pytest.mark.parametrize("loaded_to", Tier)
def test_a_checkpoint_moves_between_tiers(
    tmp_path: Path, saved_from: Tier, loaded_to: Tier
) -> None:
    with make_store(tmp_path / "from", tier=saved_from, ring_bytes=2 * 12288) as store:
        write_step(store, 3)
        folder = save_checkpoint(store, tmp_path, 3, {})
    with make_store(tmp_path / "to", tier=loaded_to, ring_bytes=2 * 12288) as store:
        load_checkpoint(folder, store)
        assert differing_parts(store, 3) == []


def test_a_disk_without_room_for_a_checkpoint_is_told_before_anything_is_written(
    tmp_path: Path,
) -> None:
    layout = lay_out("large", [ArraySpec("weight", torch.float32, (1 << 58,))])
    records = cast(Records, SimpleNamespace(layouts={"large": layout}))
    told = rf"step-00000003: it needs {1 << 60} bytes, the disk has \d+ bytes free\n"
    with pytest.raises(OpenwaferError, match=rf"checkpoint-not-written.: cannot write .*{told}"):
        save_checkpoint(records, tmp_path, 3, {})
    assert [*tmp_path.iterdir()] == []


def test_a_checkpoint_gives_back_step_state_and_counts_of_updates(tmp_path: Path) -> None:
    counts = {"layer0.weight": 3, "layer1.weight": 2}
    folder = save_checkpoint(store_at(3), tmp_path, 3, {"seed": [1, 2]}, num_updates=counts)
    head = read_checkpoint(folder)
    assert (head.step, head.state, head.num_updates) == (3, {"seed": [1, 2]}, counts)


@pytest.mark.parametrize("shard_bytes", [1, 12_000, 1 << 30])
def test_shards_of_any_size_hold_all_arrays(tmp_path: Path, shard_bytes: int) -> None:
    folder = save_checkpoint(store_at(3), tmp_path, 3, {}, shard_bytes=shard_bytes)
    store = make_store(None, tier=Tier.DRAM)
    load_checkpoint(folder, store)
    assert differing_parts(store, 3) == []


def test_no_shard_holds_more_bytes_than_allowed(tmp_path: Path) -> None:
    folder = save_checkpoint(store_at(3), tmp_path, 3, {}, shard_bytes=12_000)
    data_bytes = [
        sum(tensor.nbytes for tensor in load_file(shard).values())
        for shard in folder.glob("*.safetensors")
    ]
    assert (len(data_bytes), max(data_bytes) <= 12_000) == (6, True)


def test_the_safetensors_library_reads_the_shards(saved: Path) -> None:
    layout = make_store(None, tier=Tier.DRAM).layouts["layer1"]
    place = layout.place("layer1.bias", W)
    expected = content(layout, W, 3)[place.offset_bytes : place.end_bytes]
    found = load_file(saved / "weights-00001.safetensors")["layer1.bias"]
    assert torch.equal(found.view(torch.uint8), expected)


def test_the_index_says_where_each_piece_lies_in_the_whole_array(saved: Path) -> None:
    index = json.loads((saved / "index.json").read_text())
    [piece] = index["content"]["arrays"]["weights"]["layer2.weight"]["pieces"]
    assert (piece["shard"], piece["start"], piece["shape"]) == (
        "weights-00001.safetensors",
        [0, 0],
        [42, 64],
    )


def test_arrays_that_do_not_fit_the_store_are_all_listed(saved: Path) -> None:
    spec = ArraySpec("layer0.weight", torch.float32, (40, 65))
    layouts = [lay_out("layer0", [spec, ArraySpec("new", torch.int8, (1,))])]
    store = ParameterStore.create(layouts, placed(layouts, Tier.DRAM), folder=None, ring_bytes=0)
    with pytest.raises(OpenwaferError, match=r"the weights of .* do not fit the store") as caught:
        load_checkpoint(saved, store)
    text = str(caught.value)
    assert "missing: new" in text
    assert "unexpected: layer0.bias, layer0.none, layer1.bias" in text
    assert "layer0.weight is float32[40, 64] and must be float32[40, 65]" in text


def test_of_many_arrays_that_do_not_fit_some_are_listed(saved: Path) -> None:
    layouts = [lay_out("new", [ArraySpec(f"new{n:02d}", torch.int8, (1,)) for n in range(99)])]
    store = ParameterStore.create(layouts, placed(layouts, Tier.DRAM), folder=None, ring_bytes=0)
    with pytest.raises(OpenwaferError, match=r"missing: new00, .*, new07 and 91 more\n"):
        load_checkpoint(saved, store)


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    folder = save_checkpoint(store_at(3, num_records=2), tmp_path, 3, {})
    store = store_at(8)
    with pytest.raises(OpenwaferError, match="do not fit the store"):
        load_checkpoint(folder, store)
    assert differing_parts(store, 8) == []


def test_a_flipped_bit_in_a_shard_is_found_and_placed(saved: Path) -> None:
    shard = saved / "states-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(OpenwaferError, match=r"states-00001.* is damaged: steps/layer2 at byte"):
        load_checkpoint(saved, store_at(0))


def test_a_cut_shard_is_found(saved: Path) -> None:
    os.truncate(saved / "weights-00001.safetensors", 5000)
    with pytest.raises(
        OpenwaferError, match=r"is damaged: layer0.weight at byte \d+: \d+ of 10240"
    ):
        load_checkpoint(saved, store_at(0))


def test_a_missing_shard_is_named(saved: Path) -> None:
    (saved / "weights-00001.safetensors").unlink()
    with pytest.raises(
        OpenwaferError, match=r"weights-00001\.safetensors is damaged: FileNotFound"
    ):
        load_checkpoint(saved, store_at(0))


def test_a_folder_without_an_index_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(
        OpenwaferError, match=r"there is no checkpoint in .*: it has no index\.json"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"version":2', '"version":1', "version 1; this program reads .* version 2"),
        ('"version"', '"edition"', "is damaged: missing key 'version'"),
        ('"format":', '"format"', "is damaged: not JSON: JSON is malformed"),
        ('"step":3', '"step":4', r"its content has the checksum \w{16}, not \w{16}"),
    ],
)
def test_an_index_of_another_kind_is_refused(saved: Path, old: str, new: str, text: str) -> None:
    path = saved / "index.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(OpenwaferError, match=text):
        read_checkpoint(saved)


def test_saving_a_step_again_replaces_it(tmp_path: Path, saved: Path) -> None:
    again = save_checkpoint(store_at(4), tmp_path, 3, {"again": True})
    store = store_at(0)
    assert (again, load_checkpoint(saved, store).state) == (saved, {"again": True})
    assert differing_parts(store, 4) == []


def test_nothing_but_the_checkpoint_is_left_in_the_folder(tmp_path: Path, saved: Path) -> None:
    save_checkpoint(store_at(4), tmp_path, 3, {})
    assert list(tmp_path.iterdir()) == [saved]


def test_what_a_kill_left_of_an_earlier_save_is_no_hindrance(tmp_path: Path, saved: Path) -> None:
    for name in ("weights-00002.safetensors", ".index.01234567.json", "notes.txt"):
        (saved / name).touch()
    save_checkpoint(store_at(4), tmp_path, 3, {})
    left = {path.name for path in saved.iterdir()} - read_checkpoint(saved).shards
    assert left == {"index.json", "notes.txt"}
    (saved / "index.json").unlink()
    (tmp_path / f".{saved.name}.partial").mkdir()
    save_checkpoint(store_at(4), tmp_path, 3, {})
    assert list(tmp_path.iterdir()) == [saved]


def test_a_replacement_that_fails_keeps_the_checkpoint_there(tmp_path: Path, saved: Path) -> None:
    with make_store(tmp_path / "store") as store:
        write_step(store, 1)
        store.commit(1, {})
    with (tmp_path / "store" / "records.bin").open("r+b") as file:
        file.write(b"damage")
    before = sorted(saved.iterdir())
    with (
        ParameterStore.open(tmp_path / "store", ring_bytes=1 << 20) as store,
        pytest.raises(OpenwaferError, match="store-corrupt"),
    ):
        save_checkpoint(store, tmp_path, 3, {})
    assert sorted(saved.iterdir()) == before
    assert load_checkpoint(saved, store_at(0)).step == 3


def test_a_file_is_no_checkpoint(saved: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"there is no checkpoint in .*index\.json: it has no"):
        read_checkpoint(saved / "index.json")


def test_a_checkpoint_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(OpenwaferError, match="cannot write the checkpoint") as caught:
        save_checkpoint(store_at(3), blocked, 3, {})
    assert os.strerror(errno.EEXIST) in str(caught.value)


def test_a_checkpoint_of_a_damaged_store_fails_and_leaves_no_trace(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        write_step(store, 1)
        store.commit(1, {})
    with (tmp_path / "store" / "records.bin").open("r+b") as file:
        file.write(b"damage")
    with ParameterStore.open(tmp_path / "store", ring_bytes=1 << 20) as store:
        with pytest.raises(OpenwaferError, match="store-corrupt"):
            save_checkpoint(store, tmp_path / "checkpoints", 1, {})
        assert list((tmp_path / "checkpoints").iterdir()) == []


def test_only_whole_checkpoints_are_listed_by_step(tmp_path: Path) -> None:
    for step in (20, 100, 3):
        save_checkpoint(store_at(3, num_records=1), tmp_path, step, {})
    (tmp_path / "step-00000050").mkdir()
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-00000003", "step-00000020", "step-00000100"]


@pytest.mark.parametrize(("num_kept", "left"), [(0, []), (2, [2, 3]), (9, [1, 2, 3])])
def test_the_last_checkpoints_are_kept(tmp_path: Path, num_kept: int, left: list[int]) -> None:
    for step in (1, 2, 3):
        save_checkpoint(store_at(3, num_records=1), tmp_path, step, {})
    deleted = keep_last(tmp_path, num_kept)
    assert [int(path.name[-8:]) for path in list_checkpoints(tmp_path)] == left
    assert len(deleted) == 3 - len(left)
