"""The folder of a store: creation, opening, damage, locks, and file systems of less ability."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, ArraySpec, Part, lay_out
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions, Tier
from openwafer.training.store.store_file import FileIo
from openwafer.training.store.transfers import DiskTransfer
from tests.training.store.example_records import (
    differing_parts,
    example_layouts,
    make_store,
    placed,
    write_step,
)

RING_BYTES = 1 << 20


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """Folder of a store at step 3."""
    folder = tmp_path / "store"
    with make_store(folder) as store:
        write_step(store, 3)
        store.commit(3, {})
    return folder


def open_store(folder: Path) -> ParameterStore:
    return ParameterStore.open(folder, ring_bytes=RING_BYTES)


class NoDirectIo(FileIo):
    """A file system that refuses direct I/O."""

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().open(path, flags)


class FullDisk(FileIo):
    """A disk that has less space than it said."""

    def allocate(self, descriptor: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_direct_io_is_refused_the_store_works_and_says_so(tmp_path: Path) -> None:
    options = StoreOptions(file_io=NoDirectIo())
    with make_store(tmp_path / "store", options=options) as store:
        write_step(store, 1)
        store.commit(1, {})
        found = store.is_direct, store.traffic.is_direct, differing_parts(store, 1)
    assert found == (False, False, [])


def test_on_an_ordinary_disk_io_is_direct(committed: Path) -> None:
    with open_store(committed) as store:
        assert store.is_direct


def test_a_store_larger_than_the_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    layouts = [lay_out("huge", weights=[ArraySpec("w", torch.float32, (2**48,))])]
    placement = placed(layouts, Tier.DISK)
    folder = tmp_path / "store"
    with pytest.raises(OpenwaferError, match=rf"needs {2**51} bytes, the disk has \d+ bytes free"):
        ParameterStore.create(layouts, placement, folder=folder, ring_bytes=RING_BYTES)
    assert not folder.exists()


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(tmp_path: Path) -> None:
    options = StoreOptions(file_io=FullDisk())
    with pytest.raises(OpenwaferError, match=r"needs 184320 bytes, the disk has \d+ bytes free"):
        make_store(tmp_path / "store", options=options)
    assert list(tmp_path.iterdir()) == []


def test_all_blocks_of_the_file_are_reserved_at_creation(tmp_path: Path) -> None:
    with make_store(tmp_path / "store"):
        status = (tmp_path / "store" / "records.bin").stat()
    assert status.st_blocks * 512 >= status.st_size == 184320


def test_a_committed_store_is_not_overwritten(committed: Path) -> None:
    with pytest.raises(OpenwaferError, match="already holds a parameter store"):
        make_store(committed)
    with open_store(committed) as store:
        assert differing_parts(store, 3) == []


def test_a_store_never_committed_can_be_made_anew(tmp_path: Path) -> None:
    make_store(tmp_path / "store").close()
    with make_store(tmp_path / "store") as store:
        assert store.step is None


def test_a_store_never_committed_cannot_be_opened(tmp_path: Path) -> None:
    make_store(tmp_path / "store").close()
    with pytest.raises(OpenwaferError, match="was made but holds no committed step"):
        open_store(tmp_path / "store")


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no manifest\.json, no records\.bin"):
        open_store(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpenwaferError, match=r"cannot make the folder .*Not a directory"):
        make_store(tmp_path / "file" / "store")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="there is no folder"):
        open_store(tmp_path / "nowhere")


def test_one_process_cannot_open_a_store_twice(committed: Path) -> None:
    with (
        open_store(committed),
        pytest.raises(OpenwaferError, match=f"is in use by process {os.getpid()}"),
    ):
        open_store(committed)


LOCKING = """
import fcntl, os, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.truncate()
print(os.getpid(), file=file, flush=True)
print(flush=True)
sys.stdin.read()
"""


def test_a_store_that_another_process_uses_is_refused_with_its_number(committed: Path) -> None:
    command = [sys.executable, "-c", LOCKING, str(committed / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(OpenwaferError, match=f"is in use by process {other.pid}\n"):
            open_store(committed)
        other.communicate()


def test_a_closed_store_can_be_opened_again(committed: Path) -> None:
    for _ in range(2):
        with open_store(committed) as store:
            assert store.step == 3


def test_a_flipped_bit_is_found_and_placed(committed: Path) -> None:
    with (committed / "records.bin").open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    text = r"the weights of record 'layer0' at byte 0 of .*records\.bin has the checksum"
    with open_store(committed) as store, pytest.raises(OpenwaferError, match=text):
        store.borrow("layer0", (Part.WEIGHTS,)).wait()


def test_damage_to_one_part_leaves_the_others_readable(committed: Path) -> None:
    with (committed / "records.bin").open("r+b") as file:
        file.write(b"damage")
    with ParameterStore.open(committed, ring_bytes=2 * 12288) as store:
        with (
            pytest.raises(OpenwaferError, match="store-corrupt"),
            store.lent("layer0", (Part.WEIGHTS,)),
        ):
            pass
        for record, parts in (("layer0", (Part.STATES,)), ("layer1", KEPT_PARTS)):
            with store.lent(record, parts, read_only=True) as loan:
                assert loan.part_bytes_view(Part.STATES).any()


def test_damage_to_a_part_for_dram_is_found_at_opening(committed: Path) -> None:
    with (committed / "records.bin").open("r+b") as file:
        file.write(b"damage")
    placement = placed(example_layouts(), Tier.DRAM)
    with pytest.raises(OpenwaferError, match="store-corrupt"):
        ParameterStore.open(committed, placement=placement, ring_bytes=0)
    with open_store(committed) as store:
        assert store.step == 3


def test_a_file_of_another_size_is_refused_with_both(committed: Path) -> None:
    os.truncate(committed / "records.bin", 8192)
    with pytest.raises(OpenwaferError, match="has 8192 bytes where its manifest says 184320"):
        open_store(committed)


def test_a_manifest_without_its_file_is_refused(committed: Path) -> None:
    (committed / "records.bin").unlink()
    with pytest.raises(OpenwaferError, match="cannot open the store file"):
        open_store(committed)


def test_a_cut_manifest_is_refused(committed: Path) -> None:
    path = committed / "manifest.json"
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(
        OpenwaferError, match=r"manifest\.json is damaged: not JSON: Input data was trunc"
    ):
        open_store(committed)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"version":3', '"version":1', "version 1; this program reads .* version 3"),
        ("openwafer-parameter-store", "other", "is 'other' version 3; this program reads"),
        ('"slot":', '"slit":', r"is damaged: its content has the checksum \w{16}, not \w{16}"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    committed: Path, old: str, new: str, text: str
) -> None:
    path = committed / "manifest.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(OpenwaferError, match=text):
        open_store(committed)


def test_a_manifest_that_cannot_be_read_leaves_the_folder_to_others(committed: Path) -> None:
    manifest = committed / "manifest.json"
    manifest.rename(committed / "away")
    manifest.mkdir()
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_store(committed)
    manifest.rmdir()
    (committed / "away").rename(manifest)
    open_store(committed).close()


def test_a_manifest_left_half_written_by_a_killed_process_is_removed(committed: Path) -> None:
    (committed / ".manifest.0123abcd.json").write_text("{")
    open_store(committed).close()
    assert sorted(path.name for path in committed.iterdir()) == [
        "lock",
        "manifest.json",
        "records.bin",
    ]


def test_a_placement_that_lacks_parts_names_them() -> None:
    layouts = example_layouts(1)
    with pytest.raises(OpenwaferError, match="does not fit the 1 records") as caught:
        ParameterStore.create(
            layouts,
            {("layer0", Part.WEIGHTS): Tier.DRAM, ("layer7", Part.STATES): Tier.DRAM},
            folder=None,
            ring_bytes=0,
        )
    assert "without a tier: the states of 'layer0', the gradients of 'layer0'" in str(caught.value)


def test_parts_on_disk_need_a_folder() -> None:
    with pytest.raises(OpenwaferError, match="placed on disk, but the store has no folder"):
        make_store(None, tier=Tier.DISK)


def test_traffic_counts_what_went_over_the_disk(committed: Path) -> None:
    with open_store(committed) as store:
        differing_parts(store, 3)
        write_step(store, 4)
        store.drain()
        traffic = store.traffic
    assert (traffic.read_bytes, traffic.written_bytes, traffic.num_hits) == (73728, 73728, 6)


def test_listeners_are_told_of_every_transfer(tmp_path: Path) -> None:
    done: list[DiskTransfer] = []
    options = StoreOptions(num_writers=1, on_transfer=done.append)
    with make_store(tmp_path / "store", num_records=1, options=options) as store:
        write_step(store, 1)
        store.commit(1, {})
    assert [(t.kind, t.record, t.part) for t in done] == [
        ("write", "layer0", Part.WEIGHTS),
        ("write", "layer0", Part.STATES),
        ("commit", "", None),
    ]
