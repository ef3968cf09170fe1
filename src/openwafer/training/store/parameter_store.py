"""The parameter store: home of weights, optimizer states and gradients, in DRAM and on disk.

The design and its reasons are told in docs/design/parameter-store.md.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from openwafer.config import Bytes, PathLike, Size, bytes_of, convert_fields, path_of
from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.training.store.layout import Part, PartKey, RecordLayout
from openwafer.training.store.lending import Lending, Loan
from openwafer.training.store.parts import (
    Commits,
    Json,
    Monitor,
    PartState,
    PendingCommit,
    Ring,
    Tier,
    Version,
    json_copy,
)
from openwafer.training.store.record_access import Records
from openwafer.training.store.store_file import FileIo
from openwafer.training.store.store_folder import (
    Catalog,
    Manifest,
    Placement,
    StoreFolder,
    make_catalog,
    never_committed,
)
from openwafer.training.store.transfers import Traffic, TrafficMeter, TransferListener

__all__ = ["Loan", "ParameterStore", "Placement", "Tier"]

_PARTS: Final = tuple(Part)


@dataclass(frozen=True)
class StoreOptions:
    """How the store talks to the disk.

    `agree`, given a step that is ready to be committed, returns when it may be: for several stores
    that commit as one, each of which can then be opened at that step or the one before. It is
    called from an I/O thread. `is_paced` has whoever borrows, releases or foresees wait until the
    disk has done what it can, so that as much moves on any disk; it is for measurements, and slow.
    `io_unit_bytes`, the size of one read or write, is a multiple of 4096. A wait that sees no
    transfer end for `stall_seconds` is reported as stuck. `on_transfer` is called from the I/O
    threads; it must return at once and raise nothing.
    """

    io_unit_bytes: Bytes = 8 << 20
    num_readers: int = 2
    num_writers: int = 2
    stall_seconds: float = 120.0
    file_io: FileIo = field(default_factory=FileIo)
    on_transfer: TransferListener | None = None
    agree: Callable[[int], None] | None = None
    is_paced: bool = False

    def __post_init__(self) -> None:
        convert_fields(self)


class ParameterStore(Records):
    """Records of named arrays, lent in the order asked for and committed step by step.

    Make one with `create` or `open`; end it with `close` or by leaving a `with` block. Any thread
    may call any method.
    """

    def __init__(self, catalog: Catalog, ring_bytes: Size, options: StoreOptions) -> None:
        ring_bytes = bytes_of(ring_bytes, "ring_bytes")
        self._catalog = catalog
        self._options = options
        self._parts = catalog.new_states()
        self._monitor = Monitor(options.stall_seconds)
        self._commits = Commits(self._parts.values(), self._publish)
        self._meter = TrafficMeter(options.on_transfer)
        self._ring = Ring(ring_bytes)
        self._lending = Lending(
            self._monitor,
            self._ring,
            self._commits,
            self._meter,
            options.io_unit_bytes,
            self._keep_pace,
        )
        self._folder: StoreFolder | None = None
        self.ring_bytes = ring_bytes

    @classmethod
    def create(
        cls,
        layouts: Iterable[RecordLayout],
        placement: Placement,
        *,
        folder: PathLike | None,
        ring_bytes: Size,
        options: StoreOptions = StoreOptions(),
    ) -> "ParameterStore":
        """Make a store whose bytes are all zero.

        `folder` may be None when every part is in DRAM; such a store cannot commit. `ring_bytes`
        bounds the memory for parts on their way from and to the disk, apart from those in DRAM.
        Raises `store-disk-full` with the bytes needed and free, `store-exists`, `store-locked`,
        `store-placement`, `store-duplicate-name`.
        """
        folder = None if folder is None else path_of(folder, "folder")
        catalog = make_catalog(layouts, placement)
        if folder is None and catalog.has_disk_parts:
            raise error(
                "store-no-folder",
                "parts are placed on disk, but the store has no folder",
                help="give a folder, or place every part in DRAM",
            )
        store = cls(catalog, ring_bytes, options)
        if folder is not None:
            num_bytes = catalog.file_plan.num_bytes
            store._start(StoreFolder.create(folder, num_bytes, options.file_io))
        return store

    @classmethod
    def open(
        cls,
        folder: PathLike,
        *,
        placement: Placement | None = None,
        ring_bytes: Size,
        options: StoreOptions = StoreOptions(),
        read_only: bool = False,
        step: int | None = None,
    ) -> "ParameterStore":
        """Open a store at its last committed step; parts in DRAM are read and verified now.

        With `step`, at that one, which is the last committed or was ready to be.

        `placement` None keeps the one it was made with. With `read_only` nothing is locked and
        nothing written, nor can be; the caller sees to it that no process writes.

        Raises `store-missing`, `store-locked`, `store-never-committed`, `store-manifest-broken`,
        `store-format`, `store-step`, `store-file-size`, `store-corrupt`, `store-placement`.
        """
        folder = path_of(folder, "folder")
        opened, manifest = StoreFolder.open(folder, options.file_io, step, read_only=read_only)
        catalog = manifest.catalog
        try:
            if placement is not None:
                catalog = catalog.placed_anew(placement)
        except OpenwaferError:
            opened.close()
            raise
        store = cls(catalog, ring_bytes, options)
        store._start(opened)
        try:
            store._adopt(manifest)
        except OpenwaferError:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        """The records by name, in the order they were given."""
        return self._catalog.layouts

    @property
    def placement(self) -> Placement:
        """The tier of every part of every record."""
        return self._catalog.placement

    @property
    def step(self) -> int | None:
        """The step of the last durable commit; None before the first."""
        return self._commits.step

    @property
    def state(self) -> Mapping[str, Json]:
        """What the caller gave with the last durable commit."""
        return self._commits.state

    @property
    def folder(self) -> Path | None:
        """Where the file and the manifest are; None for a store in DRAM alone."""
        return self._folder.path if self._folder else None

    @property
    def is_direct(self) -> bool:
        """Whether the disk is used without the page cache; not where the file system refuses."""
        return self._folder is not None and self._folder.file.is_direct

    @property
    def has_failed(self) -> bool:
        """Whether a write or commit failed, so that every further call will raise."""
        return self._monitor.failure is not None

    @property
    def dram_bytes(self) -> int:
        """Bytes of the parts in DRAM, without the ring."""
        return sum(part.num_bytes for part in self._parts.values() if part.is_resident)

    @property
    def has_disk_parts(self) -> bool:
        """Whether any part is on disk."""
        return self._catalog.has_disk_parts

    @property
    def ring_mapped_bytes(self) -> int:
        """Memory the ring holds at the moment, at most `ring_bytes`."""
        with self._monitor.changed:
            return self._ring.mapped_bytes

    @property
    def traffic(self) -> Traffic:
        """What went from and to the disk so far."""
        return self._meter.snapshot(self.is_direct)

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> Loan:
        """Ask for parts of a record; start reading what is on disk. Never blocks.

        A `read_only` loan need not wait for the end of writes. Parts in `fresh` are to be
        overwritten whole: they are not read, and count as changed when released.
        Raises `store-unknown-record`, `store-ring-too-small`, `store-loan-misuse`.
        """
        layout = self._layout_of(record)
        if fresh:
            _require_consistent(record, frozenset(parts), frozenset(fresh), read_only)
        with self._monitor.changed:
            self._monitor.require_alive()
            states = {part: self._parts[record, part] for part in _PARTS if part in parts}
            return self._lending.lend(layout, states, frozenset(fresh), is_read_only=read_only)

    def foresee(self, wanted: Sequence[tuple[str, Collection[Part]]]) -> None:
        """Say what will be borrowed next, in that order, to have it read while the disk is free.

        It takes no room that a loan needs, so that some of it may have to be read again. Replaces
        what was foreseen before. Raises `store-unknown-record`.
        """
        for record, _ in wanted:
            self._layout_of(record)
        parts = [self._parts[record, part] for record, of in wanted for part in Part if part in of]
        with self._monitor.changed:
            self._monitor.require_alive()
            self._lending.foresee(parts)

    def commit_begin(self, step: int, state: Mapping[str, Json]) -> None:
        """Make all changes of the loans borrowed so far the committed step, in the background.

        `state` is any JSON: random generators, data position. Waits only for an earlier commit.
        Raises `store-no-folder`, `store-state-not-json`.
        """
        self._require_folder()
        frozen_state = json_copy(state)
        with self._monitor.changed:
            self._wait_for_commit()
            for part in self._commits.begin(step, frozen_state):
                self._lending.write_behind.enqueue(part)
            self._monitor.announce()

    def commit_wait(self) -> None:
        """Return when the commit begun last is durable. Raises the failure that prevented it."""
        with self._monitor.changed:
            self._wait_for_commit()

    def commit(self, step: int, state: Mapping[str, Json]) -> None:
        """`commit_begin` and `commit_wait`: on return the step would survive a power failure."""
        self.commit_begin(step, state)
        self.commit_wait()

    def roll_back(self) -> None:
        """Forget what was changed since the last commit was begun, which is awaited first.

        No loan may be out. What is changed on disk stays in the slots that no manifest names; parts
        in DRAM are read again from those that one does. Gradients are none of it. Raises
        `store-no-folder`, `store-never-committed`, `store-loan-misuse`, or the error of a read.
        """
        folder = self._require_folder()
        with self._monitor.changed:
            self._wait_for_commit()
            if self.step is None:
                raise never_committed(folder.path, "commit once before changes that may be undone")
            self._lending.foresee(())
            for part in self._parts.values():
                self._lending.write_behind.forget(part)
            self._monitor.wait_until(
                lambda: not self._is_moving(),
                lambda: "reads and writes to end before changes are forgotten",
            )
            changed = [part for part in self._parts.values() if part.is_changed]
            for part in changed:
                self._lending.forget_changes(part)
            self._await_reads(changed)

    def drain(self) -> None:
        """Return when no read, write or commit is left to do."""
        with self._monitor.changed:
            self._monitor.wait_until(self._is_idle, lambda: "all reads, writes and commits to end")

    def close(self) -> None:
        """End the commit under way, stop the threads, free memory, folder and file.

        Changes that were not committed are lost, and so is a commit that waits for a loan nobody
        released. Raises the failure that stopped the store unless another call has.
        """
        with self._monitor.changed:
            if self._monitor.is_closed:
                return
        try:
            with self._monitor.changed:
                if self._monitor.failure is None and not self._commits.is_owed:
                    self._wait_for_commit()
        finally:
            self._stop()
        with self._monitor.changed:
            self._monitor.raise_unreported_failure()

    def abandon(self) -> None:
        """As `close`, for a garbage collector, which may be running in a thread of this store."""
        own = (*self._lending.read_ahead.threads, *self._lending.write_behind.threads)
        if threading.current_thread() in own:
            threading.Thread(target=self.close, name="store-close", daemon=True).start()
        else:
            self.close()

    def _stop(self) -> None:
        with self._monitor.changed:
            self._monitor.is_closed = True
            self._monitor.announce()
        self._lending.read_ahead.join()
        self._lending.write_behind.join()
        if self._folder is not None:
            self._folder.close()
        self._parts.clear()

    def _start(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._lending.read_ahead.start(folder.file, self._options.num_readers)
        self._lending.write_behind.start(folder.file, self._options.num_writers)

    def _adopt(self, manifest: Manifest) -> None:
        self._commits.step, self._commits.state = manifest.step, manifest.state
        for key, version in manifest.versions.items():
            slots = self._parts[key].slots
            slots.working = slots.committed = version
        resident = [part for part in self._parts.values() if part.is_resident]
        with self._monitor.changed:
            for part in resident:
                self._lending.load(part)
            self._await_reads(resident)

    def _await_reads(self, parts: Sequence[PartState]) -> None:
        self._monitor.wait_until(
            lambda: not any(part.is_reading for part in parts), lambda: "the parts in DRAM"
        )
        for part in parts:
            if part.read_error is not None:
                raise OpenwaferError(*part.read_error.diagnostics)

    def _publish(self, pending: PendingCommit, versions: Mapping[PartKey, Version]) -> None:
        manifest = Manifest(pending.step, pending.state, self._catalog, versions)
        folder = self._require_folder()
        if self._options.agree is not None:
            folder.prepare(manifest)
            self._options.agree(pending.step)
        folder.publish(manifest)

    def _require_folder(self) -> StoreFolder:
        if self._folder is None:
            raise error(
                "store-no-folder",
                "a store in DRAM alone has no folder to commit to",
                help="save a checkpoint instead, or create the store with a folder",
            )
        return self._folder

    def _wait_for_commit(self) -> None:
        self._monitor.wait_until(
            lambda: self._commits.pending is None,
            lambda: f"the commit under way; not written: {self._commits.describe_unwritten()}",
        )

    def _keep_pace(self) -> None:
        """In a paced store, wait until the disk has done what it can. The lock must be held."""
        if self._options.is_paced:
            self._monitor.wait_until(
                lambda: not self._is_moving() and self._lending.write_behind.next_ready() is None,
                lambda: "the disk to have done what it can",
            )

    def _is_moving(self) -> bool:
        return any(part.is_reading or part.is_writing for part in self._parts.values())

    def _is_idle(self) -> bool:
        return not (
            self._is_moving()
            or self._lending.num_waiting
            or self._lending.write_behind.num_waiting
            or self._commits.pending
        )

    def _layout_of(self, record: str) -> RecordLayout:
        if record not in self.layouts:
            raise error(
                "store-unknown-record",
                f"the parameter store has no record {record!r}",
                help=did_you_mean(record, self.layouts),
            )
        return self.layouts[record]


def _require_consistent(
    record: str, parts: frozenset[Part], fresh: frozenset[Part], read_only: bool
) -> None:
    if not fresh <= parts:
        problem = f"has fresh parts that are not borrowed: {', '.join(sorted(fresh - parts))}"
    elif read_only:
        problem = f"is read-only, but is to overwrite its {', '.join(sorted(fresh))}"
    else:
        return
    raise error(
        "store-loan-misuse",
        f"the loan of record {record!r} {problem}",
        help="borrow the parts that are to be overwritten, and not read-only",
    )


@contextmanager
def closed_on_error(store: ParameterStore) -> Iterator[ParameterStore]:
    """Context that closes a store if the block raises, and leaves it open otherwise."""
    with ExitStack() as stack:
        yield stack.enter_context(store)
        stack.pop_all()
