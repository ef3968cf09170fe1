"""The shards of a checkpoint: safetensors files of bounded size, streamed array by array."""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash

from openwafer.atomic_file import sync_path
from openwafer.json_files import path_named
from openwafer.training.store.checkpoint_index import INDEX_NAME, StoredArray, broken
from openwafer.training.store.layout import ArrayPlace, ArraySpec, Part
from openwafer.training.store.record_access import Records
from openwafer.training.store.safetensors_file import (
    cut_into_shards,
    read_header,
    write_header,
)
from openwafer.training.store.slices import offset_in_whole, whole_name, whole_specs


def write_shards(
    store: Records, folder: Path, part: Part, shard_bytes: int
) -> dict[str, StoredArray]:
    """Write all arrays of one part of all records, and say where each went. Raises OSError.

    Slices of an array are written as that array. A shard exceeds `shard_bytes` only where one array
    does. Names of shards that are there are passed over. One record's part is in memory at a time,
    and the next on its way.
    """
    specs = [place.spec for layout in store.layouts.values() for place in layout.parts[part]]
    with closing(_ShardWriter(folder, part)) as writer, closing(_stream(store, part)) as windows:
        for shard in cut_into_shards(whole_specs(specs).values(), shard_bytes):
            writer.begin(shard)
        for spec, window in windows:
            writer.write(spec, window)
        return writer.stored


class _ShardWriter:
    """Writes arrays into shards, slices of them too, each behind the one before it.

    Attributes:
        stored: the arrays that are complete, in the order in which they were.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.stored: dict[str, StoredArray] = {}
        self._folder = folder
        names = {path.name for path in folder.iterdir()}
        self._free = (
            name for number in count(1) if (name := _shard_name(part, number)) not in names
        )
        self._places: dict[str, tuple[str, ArrayPlace]] = {}
        self._checksums: dict[str, xxhash.xxh3_64] = {}
        self._num_unwritten: dict[str, int] = {}
        self._file: BinaryIO | None = None
        self._open_name = ""

    def begin(self, shard: Sequence[ArraySpec]) -> None:
        """Make a shard for these arrays, which are still to be written."""
        name = next(self._free)
        with (self._folder / name).open("xb") as file:
            write_header(file, shard)
        header = read_header(self._folder / name)
        self._places |= {spec.name: (name, header[spec.name]) for spec in shard}
        self._num_unwritten[name] = len(shard)

    def write(self, spec: ArraySpec, window: memoryview) -> None:
        """Write an array, or the next slice of one."""
        whole, offset = whole_name(spec.name), offset_in_whole(spec)
        name, place = self._places[whole]
        if whole in self.stored:
            # One number for all slices.
            return
        file = self._opened(name)
        file.seek(place.offset_bytes + offset)
        file.write(window)
        checksum = self._checksums.setdefault(whole, xxhash.xxh3_64())
        checksum.update(window)
        if offset + len(window) == place.num_bytes:
            del self._checksums[whole]
            self.stored[whole] = StoredArray(place.spec, name, checksum.hexdigest())
            self._end_one_of(name)

    def _opened(self, name: str) -> BinaryIO:
        if self._file is None or name != self._open_name:
            self.close()
            self._file, self._open_name = (self._folder / name).open("r+b"), name
        return self._file

    def _end_one_of(self, name: str) -> None:
        self._num_unwritten[name] -= 1
        if not self._num_unwritten[name]:
            self.close()
            sync_path(self._folder / name)

    def close(self) -> None:
        """Close the shard that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _shard_name(part: Part, number: int) -> str:
    return f"{part}-{number:05d}.safetensors"


class ShardReader:
    """Reads arrays of one checkpoint; each shard's header is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[str, dict[str, ArrayPlace]] = {}
        self._checksums: dict[str, xxhash.xxh3_64] = {}

    def read(self, stored: StoredArray, target: torch.Tensor, offset_bytes: int = 0) -> None:
        """Fill `target`, uint8 with one dim, and verify it. Raises `checkpoint-broken`.

        Slices of an array are read one after the other, and verified with the last of them.
        """
        path, name = path_named(stored.shard, self._folder / INDEX_NAME), stored.spec.name
        try:
            place = self._place(path, name)
            with path.open("rb") as file:
                file.seek(place.offset_bytes + offset_bytes)
                num_read = file.readinto(target.numpy().data)
        except (OSError, ValueError, KeyError) as cause:
            raise broken(path, f"{type(cause).__name__}: {cause}") from cause
        if not offset_bytes:
            self._checksums[name] = xxhash.xxh3_64()
        checksum, end_bytes = self._checksums[name], offset_bytes + num_read
        checksum.update(target.numpy().data)
        is_last = end_bytes >= stored.spec.num_bytes
        if num_read != target.numel() or (is_last and checksum.hexdigest() != stored.checksum):
            raise broken(
                path,
                f"{name} at byte {place.offset_bytes}: {end_bytes} of {stored.spec.num_bytes} "
                f"bytes read, checksum {checksum.hexdigest()} where {stored.checksum} was written",
            )

    def read_whole(self, stored: StoredArray) -> torch.Tensor:
        """An array in memory of its own. Raises `checkpoint-broken`."""
        data = torch.empty(stored.spec.num_bytes, dtype=torch.uint8)
        self.read(stored, data)
        return data.view(stored.spec.dtype).view(stored.spec.shape)

    def _place(self, path: Path, name: str) -> ArrayPlace:
        if path.name not in self._headers:
            self._headers[path.name] = read_header(path)
        return self._headers[path.name][name]


def _stream(store: Records, part: Part) -> Generator[tuple[ArraySpec, memoryview], None, None]:
    layouts = [layout for layout in store.layouts.values() if layout.parts[part]]
    loans = deque(store.borrow(layout.name, (part,), read_only=True) for layout in layouts[:1])
    try:
        for number, layout in enumerate(layouts):
            loans[0].wait()
            for following in layouts[number + 1 : number + 2]:
                loans.append(store.borrow(following.name, (part,), read_only=True))
            view = loans[0].part_bytes_view(part).numpy().data
            for place in layout.parts[part]:
                if place.spec.strides is None:
                    yield place.spec, view[place.offset_bytes : place.end_bytes]
                else:
                    in_c_order = loans[0].tensor(place.spec.name, part).contiguous()
                    yield place.spec, in_c_order.view(-1).view(torch.uint8).numpy().data
            loans.popleft().release()
    finally:
        for loan in loans:
            loan.release()
