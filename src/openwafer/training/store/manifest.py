"""The small file that says which bytes of the store file are the committed step.

Its atomic replacement is the commit. The format is described in
docs/formats/openwafer-parameter-store.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, SealedFormat, Unchecked
from openwafer.training.store.catalog import Catalog
from openwafer.training.store.dtype_names import dtype_name, dtype_named
from openwafer.training.store.json_state import Json
from openwafer.training.store.layout import ArrayPlace, ArraySpec, Part, RecordLayout
from openwafer.training.store.part_state import Tier
from openwafer.training.store.slots import NUM_SLOTS, Version
from openwafer.training.store.store_file import FILE_NAME, FilePlan, PartKey

MANIFEST_NAME = "manifest.json"
READY_NAME = "manifest-ready.json"
"""Of a step that may be committed once other stores are ready, too."""


@dataclass(frozen=True)
class _ArrayEntry:
    name: str
    dtype: str
    shape: tuple[Count, ...]
    offset_bytes: Count
    strides: tuple[Count, ...] | None


@dataclass(frozen=True)
class _PartEntry:
    tier: Tier
    offsets: tuple[Count, ...]
    slot: Annotated[int, msgspec.Meta(ge=0, lt=NUM_SLOTS)] | None
    xxh3_64: str | None
    arrays: tuple[_ArrayEntry, ...]


@dataclass(frozen=True)
class _RecordEntry:
    name: str
    parts: dict[Part, _PartEntry]


@dataclass(frozen=True)
class _FileEntry:
    name: str
    num_bytes: Count


@dataclass(frozen=True)
class _ManifestContent:
    step: int
    state: Unchecked
    file: _FileEntry
    records: tuple[_RecordEntry, ...]


FORMAT = SealedFormat(
    name="openwafer-parameter-store",
    version=3,
    content=_ManifestContent,
    broken_code="store-manifest-broken",
    broken_help="restore the file, or load a checkpoint into a new store",
    version_code="store-format",
    version_help="use the program version that wrote the store, and move by a checkpoint",
)


@dataclass(frozen=True)
class Manifest:
    """One committed step: the caller's state, all records, and the version of each kept part.

    A part without a version was never written; its bytes are zero.
    """

    step: int
    state: Mapping[str, Json]
    catalog: Catalog
    versions: Mapping[PartKey, Version]

    def encode(self) -> bytes:
        """The manifest as JSON text in UTF-8."""
        records = tuple(
            _RecordEntry(layout.name, {part: self._encode_part(layout, part) for part in Part})
            for layout in self.catalog.layouts.values()
        )
        file = _FileEntry(FILE_NAME, self.catalog.file_plan.num_bytes)
        return FORMAT.encode(_ManifestContent(self.step, dict(self.state), file, records))

    def _encode_part(self, layout: RecordLayout, part: Part) -> _PartEntry:
        key = layout.name, part
        version = self.versions.get(key)
        arrays = tuple(
            _ArrayEntry(
                place.spec.name,
                dtype_name(place.spec.dtype),
                place.spec.shape,
                place.offset_bytes,
                place.spec.strides,
            )
            for place in layout.parts[part]
        )
        return _PartEntry(
            self.catalog.placement[key],
            self.catalog.file_plan.offsets[key],
            version.slot if version else None,
            version.checksum if version else None,
            arrays,
        )


def manifests_of(folder: Path) -> dict[int, Manifest]:
    """By their steps, what a store can be opened at: its last commit, and one that was ready.

    Raises `store-manifest-broken`, `store-format`.
    """
    there = [name for name in (READY_NAME, MANIFEST_NAME) if (folder / name).exists()]
    return {found.step: found for found in (read_manifest(folder, name) for name in there)}


def read_manifest(folder: Path, name: str = MANIFEST_NAME) -> Manifest:
    """Read the manifest of a store. Raises `store-never-committed`, `store-manifest-broken`..."""
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError as cause:
        raise _no_manifest(folder) from cause
    try:
        return _decode(FORMAT.decode(path, data))
    except (ValueError, KeyError) as cause:
        raise FORMAT.broken(path, f"{type(cause).__name__}: {cause}") from cause


def _no_manifest(folder: Path) -> OpenwaferError:
    if (folder / FILE_NAME).exists():
        return never_committed(folder, "make it anew; nothing was promised to be in it")
    return error(
        "store-missing",
        f"there is no parameter store in {folder}: no {MANIFEST_NAME}, no {FILE_NAME}",
        help="give the folder that holds both",
    )


def never_committed(folder: Path, remedy: str) -> OpenwaferError:
    """The error for whoever asks for the last committed step of a store that has none."""
    return error(
        "store-never-committed",
        f"the parameter store {folder} was made but holds no committed step",
        help=remedy,
    )


def _decode(content: _ManifestContent) -> Manifest:
    layouts, placement, offsets, versions = {}, {}, {}, {}
    for record in content.records:
        parts = {}
        for part in Part:
            entry = record.parts[part]
            parts[part] = tuple(_decode_array(array) for array in entry.arrays)
            placement[record.name, part] = entry.tier
            offsets[record.name, part] = entry.offsets
            if entry.slot is not None and entry.xxh3_64 is not None:
                versions[record.name, part] = Version(entry.slot, entry.xxh3_64)
        layouts[record.name] = RecordLayout(record.name, parts)
    plan = FilePlan(offsets, content.file.num_bytes)
    return Manifest(content.step, content.state, Catalog(layouts, placement, plan), versions)


def _decode_array(entry: _ArrayEntry) -> ArrayPlace:
    spec = ArraySpec(entry.name, dtype_named(entry.dtype), entry.shape, entry.strides)
    return ArrayPlace(spec, entry.offset_bytes, spec.num_bytes)
