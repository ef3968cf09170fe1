"""A store's folder: its lock, its file, and the manifest of the committed step.

The manifest says which bytes of the store file are that step; its atomic replacement is the commit.
The format is described in docs/formats/openwafer-parameter-store.md.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from openwafer.atomic_file import sync_path
from openwafer.diagnostics import OpenwaferError, error
from openwafer.folder_lock import FolderInUseError, FolderLock
from openwafer.json_files import Count, SealedFormat, Unchecked
from openwafer.training.store.layout import (
    ArrayPlace,
    ArraySpec,
    Part,
    PartKey,
    RecordLayout,
    dtype_name,
    dtype_named,
    index_by_name,
)
from openwafer.training.store.parts import NUM_SLOTS, Json, PartState, Tier, Version
from openwafer.training.store.store_file import FILE_NAME, FileIo, FilePlan, StoreFile, plan_file

Placement = Mapping[PartKey, Tier]


@dataclass(frozen=True)
class Catalog:
    """Records by name, a tier for every part of every record, and the plan of the file."""

    layouts: Mapping[str, RecordLayout]
    placement: Placement
    file_plan: FilePlan

    @property
    def has_disk_parts(self) -> bool:
        """Whether any part with bytes lives on disk."""
        return any(
            tier is Tier.DISK and self.layouts[record].part_bytes(part)
            for (record, part), tier in self.placement.items()
        )

    def new_states(self) -> dict[PartKey, PartState]:
        """A state for every part, with memory for those in DRAM, all bytes zero."""
        return {
            (record, part): PartState(
                record,
                part,
                tier,
                self.layouts[record].part_bytes(part),
                self.file_plan.offsets[record, part],
            )
            for (record, part), tier in self.placement.items()
        }

    def placed_anew(self, placement: Placement) -> "Catalog":
        """The same records and file under another placement."""
        complete = complete_placement(self.layouts, placement)
        return Catalog(self.layouts, complete, self.file_plan)


def make_catalog(layouts: Iterable[RecordLayout], placement: Placement) -> Catalog:
    """Check names and placement, and plan the file."""
    by_name = index_by_name(layouts)
    return Catalog(by_name, complete_placement(by_name, placement), plan_file(by_name.values()))


def complete_placement(layouts: Mapping[str, RecordLayout], placement: Placement) -> Placement:
    """Give parts without bytes the DRAM tier where they are left out.

    Raises `store-placement` for parts with bytes but no tier, and for records that do not exist.
    """
    keys = [(name, part) for name in layouts for part in Part]
    missing = [
        f"the {part} of {name!r}"
        for name, part in keys
        if (name, part) not in placement and layouts[name].part_bytes(part)
    ]
    unknown = [f"the {part} of {name!r}" for name, part in placement if name not in layouts]
    if missing or unknown:
        raise error(
            "store-placement",
            f"the placement does not fit the {len(layouts)} records",
            notes=(
                f"parts without a tier: {', '.join(missing) or 'none'}",
                f"placed, but in no record: {', '.join(unknown) or 'none'}",
            ),
            help="give every part that has bytes the tier DRAM or DISK",
        )
    return {key: placement.get(key, Tier.DRAM) for key in keys}


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


class StoreFolder:
    """A locked folder with its open file."""

    def __init__(self, path: Path, lock: FolderLock | None, file: StoreFile) -> None:
        self.path = path
        self.file = file
        self._lock = lock

    @classmethod
    def create(cls, path: Path, num_bytes: int, file_io: FileIo) -> "StoreFolder":
        """Make the folder and its file. What is made is removed again when an error is raised."""
        is_new = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            sync_path(path.parent)
            lock = _locked(path)
        except OSError as cause:
            raise error(
                "store-create-failed",
                f"cannot make the folder {path} for a parameter store: {cause}",
                help="give a folder that may be written to",
            ) from cause
        try:
            _refuse_committed_store(path)
            # A file without a manifest was never committed: nothing was promised to be in it.
            (path / FILE_NAME).unlink(missing_ok=True)
            file = StoreFile.create(path / FILE_NAME, num_bytes, file_io)
        except (OpenwaferError, OSError):
            lock.release()
            if is_new:
                shutil.rmtree(path)
            raise
        return cls(path, lock, file)

    @classmethod
    def open(
        cls, path: Path, file_io: FileIo, step: int | None, *, read_only: bool
    ) -> tuple["StoreFolder", Manifest]:
        """Read a folder's manifest, or that of a step, and open its file.

        Unless read-only, the folder is locked, and the step is the one committed from here on.
        """
        if not (read_only or path.is_dir()):
            raise error("store-missing", f"there is no folder {path}", help="check the path")
        lock = None if read_only else _locked(path)
        try:
            manifest = read_manifest(path) if step is None else _manifest_at(path, step)
            if step is not None and not read_only:
                _settle_on(path, step)
            num_bytes = manifest.catalog.file_plan.num_bytes
            flags = os.O_RDONLY if read_only else os.O_RDWR
            file = StoreFile.open(path / FILE_NAME, num_bytes, file_io, flags)
        except (OpenwaferError, OSError):
            if lock is not None:
                lock.release()
            raise
        # A process killed while it replaced its manifest leaves the temporary file.
        for leftover in path.glob(f".{Path(MANIFEST_NAME).stem}.*") if lock is not None else ():
            leftover.unlink()
        return cls(path, lock, file), manifest

    def prepare(self, manifest: Manifest) -> None:
        """Let the store be opened at a manifest's step, too. Raises OSError."""
        self.file.file_io.replace(self.path / READY_NAME, manifest.encode())

    def publish(self, manifest: Manifest) -> None:
        """Make a manifest the committed one. Raises OSError."""
        self.file.file_io.replace(self.path / MANIFEST_NAME, manifest.encode())

    def close(self) -> None:
        """Close the file and give the folder free."""
        self.file.close()
        if self._lock is not None:
            self._lock.release()


def _locked(path: Path) -> FolderLock:
    try:
        return FolderLock(path)
    except FolderInUseError as cause:
        raise error(
            "store-locked",
            f"the parameter store {path} is {cause}",
            help="wait until that process ends, end it, or use another folder",
        ) from cause


def _settle_on(path: Path, step: int) -> None:
    """Make a step the committed one, and the only one.

    Bytes of another step that was ready are overwritten from here on.
    """
    ready = path / READY_NAME
    is_committed = (path / MANIFEST_NAME).exists() and read_manifest(path).step == step
    if is_committed:
        ready.unlink(missing_ok=True)
    else:
        ready.replace(path / MANIFEST_NAME)
    sync_path(path)


def _manifest_at(path: Path, step: int) -> Manifest:
    found = manifests_of(path)
    if step not in found:
        steps = ", ".join(map(str, sorted(found))) or "none"
        raise error(
            "store-step",
            f"the parameter store {path} does not hold step {step}, but {steps}",
            help="go on from a checkpoint",
        )
    return found[step]


def _refuse_committed_store(path: Path) -> None:
    if (path / MANIFEST_NAME).exists():
        raise error(
            "store-exists",
            f"{path} already holds a parameter store with a committed step",
            help="open it, remove it, or give another folder",
        )
