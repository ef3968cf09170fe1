"""The shards of a checkpoint: safetensors files of bounded size, streamed array by array."""

from collections import deque
from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path

import torch
import xxhash

from openwafer.atomic_file import sync_path
from openwafer.json_files import path_named
from openwafer.training.store.checkpoint_index import INDEX_NAME, StoredArray, broken
from openwafer.training.store.layout import ArrayPlace, Part
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.safetensors_file import (
    cut_into_shards,
    read_header,
    write_header,
)


def write_shards(
    store: ParameterStore, folder: Path, part: Part, shard_bytes: int
) -> dict[str, StoredArray]:
    """Write all arrays of one part of all records, and say where each went. Raises OSError.

    A shard exceeds `shard_bytes` only where one array does. Names of shards that are there are
    passed over. One record's part is in memory at a time, and the next on its way.
    """
    stored = {}
    names = {path.name for path in folder.iterdir()}
    free = (name for number in count(1) if (name := _shard_name(part, number)) not in names)
    specs = [place.spec for layout in store.layouts.values() for place in layout.parts[part]]
    with closing(_stream(store, part)) as windows:
        for shard in cut_into_shards(specs, shard_bytes):
            path = folder / next(free)
            with path.open("xb") as file:
                write_header(file, shard)
                for spec in shard:
                    window = next(windows)
                    file.write(window)
                    checksum = xxhash.xxh3_64_hexdigest(window)
                    stored[spec.name] = StoredArray(spec, path.name, checksum)
            sync_path(path)
    return stored


def _shard_name(part: Part, number: int) -> str:
    return f"{part}-{number:05d}.safetensors"


class ShardReader:
    """Reads arrays of one checkpoint; each shard's header is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[str, dict[str, ArrayPlace]] = {}

    def read(self, stored: StoredArray, target: torch.Tensor) -> None:
        """Fill `target`, uint8 with one dim, and verify it. Raises `checkpoint-broken`."""
        path = path_named(stored.shard, self._folder / INDEX_NAME)
        try:
            place = self._place(path, stored.spec.name)
            with path.open("rb") as file:
                file.seek(place.offset_bytes)
                num_read = file.readinto(target.numpy().data)
        except (OSError, ValueError, KeyError) as cause:
            raise broken(path, f"{type(cause).__name__}: {cause}") from cause
        found = xxhash.xxh3_64_hexdigest(target.numpy().data)
        if (num_read, found) != (stored.spec.num_bytes, stored.checksum):
            raise broken(
                path,
                f"{stored.spec.name} at byte {place.offset_bytes}: {num_read} of "
                f"{stored.spec.num_bytes} bytes read, checksum {found} where {stored.checksum} "
                "was written",
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


def _stream(store: ParameterStore, part: Part) -> Generator[memoryview, None, None]:
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
                    yield view[place.offset_bytes : place.end_bytes]
                else:
                    in_c_order = loans[0].tensor(place.spec.name, part).contiguous()
                    yield in_c_order.view(-1).view(torch.uint8).numpy().data
            loans.popleft().release()
    finally:
        for loan in loans:
            loan.release()
