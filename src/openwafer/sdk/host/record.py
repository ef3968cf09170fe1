"""A record of a run: what happened on the fabric, event by event, in a file of columns.

It is an Arrow IPC file, as docs/formats/openwafer-record.md says; :func:`read_record` maps it.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import openwafer
from openwafer import json_files
from openwafer.atomic_file import held, remove_abandoned, replacing
from openwafer.config import PathLike, convert_fields, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import JsonMistake
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric.events import (
    EventKind,
    Rows,
    Scope,
    columns_of,
    event_of,
    is_for_host,
)
from openwafer.sdk.host.operations import OPERATIONS, Operation, Stop, Words
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.environment import next_path
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-record"
VERSION: Final = 1
RECORD_VARIABLE: Final = "OPENWAFER_RECORD"
"""Environment variable with a folder that each run writes its record to, under the next number."""
HOST_OPERATIONS: Final = tuple(OPERATIONS.values())
"""What an operation of the host is, by the data of its event."""
CarryOut: TypeAlias = Callable[[Operation], Words | None]
Columns: TypeAlias = dict[str, NDArray[np.int64]]
_MAGIC: Final = b"ARROW1"
_BATCH: Final = 1 << 16
_FLUSH_SECONDS: Final = 1.0
"""After so long few events are written, too: somebody may follow the run."""
"""Events from which on those of some drains become a batch of the file."""
_KINDS: Final = pa.array([kind.name.lower().replace("_", " ") for kind in EventKind])
_FIRST_KIND: Final = min(EventKind)
_TYPES: Final = {
    "cycle": pa.int64(),
    "x": pa.int16(),
    "y": pa.int16(),
    "kind": pa.dictionary(pa.int8(), pa.string()),
    "color": pa.int8(),
    "link": pa.int8(),
    "queue": pa.int8(),
    "slot": pa.int8(),
    "place": pa.int32(),
    "number": pa.int32(),
    "data": pa.int64(),
    "other_color": pa.int8(),
    "other_queue": pa.int8(),
    "gap": pa.int32(),
    "turns": pa.int32(),
}


@dataclass(frozen=True)
class RecordOptions:
    """What of a run is recorded, and where.

    Attributes:
        path: the file.
        rectangle: x, y, columns and rows of the PEs; None is all of them.
        cycles: the first and the last one; None is all of them.
        colors: of what concerns a color, those; None is all of them.
    """

    path: Path
    rectangle: tuple[int, int, int, int] | None = None
    cycles: tuple[int, int] | None = None
    colors: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        convert_fields(self)

    @property
    def scope(self) -> Scope:
        """The same without the file."""
        return Scope(self.rectangle, self.cycles, self.colors)


def record_options(record: RecordOptions | PathLike | None) -> RecordOptions | None:
    """What is asked for, a path being its file; None is no record."""
    if record is None or isinstance(record, RecordOptions):
        return record
    return RecordOptions(path_of(record, "record"))


def scope_of(options: RecordOptions | None) -> Scope | None:
    """What of a run is recorded."""
    return None if options is None else options.scope


def record_of_environment() -> Path | None:
    """Where the environment wants a run's record: the next number in its folder."""
    return next_path(RECORD_VARIABLE, ".record")


@dataclass(frozen=True)
class RecordHead:
    """What a record is of.

    Attributes:
        openwafer: version of the program that wrote it.
        program: digest of the program.
        arch: its generation.
        width: columns of PEs.
        height: rows of PEs.
        scope: what of the run it has.
    """

    openwafer: str
    program: str
    arch: str
    width: int
    height: int
    scope: Scope


class RecordFile:
    """A record that is written as the run goes; it stands under its name once it is closed.

    Raises OSError where it cannot be written.
    """

    def __init__(self, path: Path, program: Program, scope: Scope) -> None:
        self._size = program.width, program.height
        self._scope = scope
        self._rows: list[Rows] = []
        self._num_rows = 0
        self._flushed_at = time.monotonic()
        head = RecordHead(
            openwafer.__version__,
            digest_of(program),
            program.arch,
            program.width,
            program.height,
            scope,
        )
        told = {"format": FORMAT, "version": str(VERSION), "head": json_files.encode(head).decode()}
        schema = pa.schema(list(_TYPES.items()), metadata=told)
        remove_abandoned(path.absolute())
        with ExitStack() as stack:
            temporary = stack.enter_context(replacing(path.absolute()))
            sink = stack.enter_context(pa.OSFile(str(temporary), "wb"))
            stack.enter_context(held(temporary))
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._file = stack.enter_context(pa.ipc.new_file(sink, schema, options=options))
            self._schema = schema
            self._open = stack.pop_all()

    def add(self, rows: Rows) -> None:
        """Write events of a drain, with those of the next ones where they are few."""
        self._rows.append(rows)
        self._num_rows += rows.size
        if self._num_rows >= _BATCH or time.monotonic() > self._flushed_at + _FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        """Write what is left, and give the file its name."""
        self._flush()
        self._open.close()

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if self._num_rows:
            columns = columns_of(np.concatenate(self._rows), self._size[1])
            self._rows, self._num_rows = [], 0
            if not self._scope.is_whole:
                columns = self._inside(columns)
            self._file.write_batch(_batch(columns, self._schema))

    def _inside(self, columns: Columns) -> Columns:
        """Events that the scope has: the machine tells the host more."""
        x, y, width, height = self._scope.rectangle_of(*self._size)
        first, last = self._scope.cycles or (0, np.iinfo(np.int64).max)
        at, color = columns["cycle"], columns["color"]
        is_in = (columns["x"] >= x) & (columns["x"] < x + width) & (at >= first) & (at <= last)
        is_in &= (columns["y"] >= y) & (columns["y"] < y + height)
        is_in &= (color < 0) | (self._scope.color_mask >> np.maximum(color, 0) & 1 == 1)
        is_in |= (columns["x"] < 0) | ~is_for_host(columns["kind"])
        return {name: column[is_in] for name, column in columns.items()}


def _batch(columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    kinds = pa.array((columns["kind"] - _FIRST_KIND).astype(np.int8))
    arrays = [
        pa.DictionaryArray.from_arrays(kinds, _KINDS)
        if name == "kind"
        else pa.array(columns[name].astype(kind.to_pandas_dtype()))
        for name, kind in _TYPES.items()
    ]
    return pa.record_batch(arrays, schema=schema)


class Recording:
    """Carries operations out, and keeps in a file what happens on the fabric meanwhile.

    The record ends with the first operation that fails, at the stop, or with the process.
    """

    def __init__(self, carry_out: CarryOut, simulator: Simulator, file: RecordFile) -> None:
        self._carry_out = carry_out
        self._simulator = simulator
        self._file = file
        self._number = 0
        simulator.record_to(file.add)
        self._end = weakref.finalize(self, _end, file, simulator, is_cut=True)

    def carry_out(self, operation: Operation) -> Words | None:
        """As :meth:`Interpreter.carry_out`."""
        if not self._end.alive:
            return self._carry_out(operation)
        self._note(EventKind.HOST, operation)
        try:
            result = self._carry_out(operation)
        except BaseException:
            self.close(is_cut=True)
            raise
        self._note(EventKind.HOST_END, operation)
        self._number += 1
        if isinstance(operation, Stop):
            self.close()
        return result

    def close(self, *, is_cut: bool = False) -> None:
        """End the record, unless it has ended."""
        if self._end.detach() is not None:
            _end(self._file, self._simulator, is_cut=is_cut)

    def _note(self, kind: EventKind, operation: Operation) -> None:
        data = HOST_OPERATIONS.index(type(operation))
        self._file.add(event_of(kind, self._simulator.cycle, self._number, data))


def _end(file: RecordFile, simulator: Simulator, *, is_cut: bool) -> None:
    simulator.record_no_more(file.add)
    file.add(event_of(EventKind.END, simulator.cycle, int(is_cut), 0))
    file.close()


@contextmanager
def recorded(
    carry_out: CarryOut, program: Program, simulator: Simulator, options: RecordOptions | None
) -> Iterator[CarryOut]:
    """Context with what carries operations out and keeps a record where options ask for one."""
    if options is None:
        yield carry_out
        return
    file = RecordFile(options.path, program, options.scope)
    recording = Recording(carry_out, simulator, file)
    try:
        yield recording.carry_out
    finally:
        recording.close()


@dataclass(frozen=True)
class Events:
    """Events of a record, by cycle, PE and kind; arrays of the shape (n,), -1 for what is not.

    Attributes:
        cycle: when.
        x: column of the PE, -1 for the host's.
        y: its row.
        kind: an :class:`EventKind`, which says what the other columns mean.
        color: of a wavelet, or of a configuration.
        link: side of a router: west, east, south, north, ramp; 5 is the host.
        queue: an input or output queue.
        slot: microthread, or 8 for the main thread.
        place: in the source, index into the program's places.
        number: see the kind.
        data: see the kind.
        other_color: that a wavelet came on; of an operation's output.
        other_queue: an operation's output queue.
        gap: cycles from beat to beat of an operation; 0 for other kinds.
        turns: in how many cycles reads of an operation's operands take turns.
    """

    cycle: NDArray[np.int64]
    x: NDArray[np.int16]
    y: NDArray[np.int16]
    kind: NDArray[np.int8]
    color: NDArray[np.int8]
    link: NDArray[np.int8]
    queue: NDArray[np.int8]
    slot: NDArray[np.int8]
    place: NDArray[np.int32]
    number: NDArray[np.int32]
    data: NDArray[np.int64]
    other_color: NDArray[np.int8]
    other_queue: NDArray[np.int8]
    gap: NDArray[np.int32]
    turns: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.cycle)

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Some of them, by a mask or by indices."""
        return type(self)(**{one.name: getattr(self, one.name)[which] for one in fields(self)})

    def of(self, *kinds: EventKind) -> Self:
        """Those of some kinds."""
        return self.take(np.isin(self.kind, kinds))


@dataclass(frozen=True)
class Record:
    """A record of a run, which is mapped into memory.

    Attributes:
        path: its file.
        head: what it is of.
        table: its columns, in batches; :meth:`events` has them in order.
    """

    path: Path
    head: RecordHead
    table: pa.Table

    def require_program(self, program: Program) -> None:
        """Raise OpenwaferError where it is of another program."""
        found = digest_of(program)
        if self.head.program != found:
            raise error(
                "record-of-other-program",
                f"{self.path} is of the program {self.head.program}, and this is {found}",
                help="give the program that the run was of, compiled in the same way",
            )

    def events(self, *kinds: EventKind) -> Events:
        """All events, or those of some kinds.

        Raises OpenwaferError where the file is damaged.
        """
        parts = []
        try:
            for batch in self.table.to_batches():
                found = batch.column("kind").indices.to_numpy() + _FIRST_KIND
                which = np.isin(found, kinds) if kinds else np.ones(found.size, np.bool_)
                parts.append([_numbers(batch.column(name))[which] for name in _TYPES])
        except (pa.ArrowException, OSError) as cause:
            raise _damaged(self.path, cause) from cause
        empty = [np.zeros(0, np.int8)] * len(_TYPES)
        columns = dict(
            zip(_TYPES, map(np.concatenate, zip(*parts or [empty], strict=True)), strict=True)
        )
        columns["kind"] += _FIRST_KIND
        order = np.lexsort([columns[name] for name in ("kind", "y", "x", "cycle")])
        return Events(**{name: values[order] for name, values in columns.items()})


def _numbers(column: pa.Array) -> NDArray[Any]:
    indices = column.indices if isinstance(column, pa.DictionaryArray) else column
    values: NDArray[Any] = indices.to_numpy()
    return values


def read_record(path: PathLike) -> Record:
    """Map a record into memory.

    Raises OpenwaferError where there is none, and for one that is damaged, of another format or of
    another version.
    """
    path = path_of(path, "path")
    if not path.is_file():
        raise error(
            "record-missing",
            f"there is no record at {path}",
            help="keep one: program.run(record=...), or OPENWAFER_RECORD=FOLDER",
        )
    with path.open("rb") as begin:
        if begin.read(len(_MAGIC)) != _MAGIC:
            raise _foreign(path, "it is no Arrow IPC file")
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as cause:
        raise _damaged(path, cause) from cause
    return Record(path, _head(path, table.schema.metadata or {}), table)


def read_growing(path: Path) -> Record:
    """What the file of a record that is being written has by now: whole batches, and no end.

    Raises OpenwaferError where it has none yet, and for what is no record.
    """
    content = path.read_bytes()
    if content[: len(_MAGIC)] != _MAGIC:
        raise _foreign(path, "it is no Arrow IPC file, or has just begun")
    batches = []
    try:
        # A file is a stream behind its mark, which is filled up to eight bytes.
        with pa.ipc.open_stream(pa.py_buffer(content[8:])) as stream:
            schema = stream.schema
            while True:
                batches.append(stream.read_next_batch())
    except (pa.ArrowException, OSError, StopIteration) as cause:
        # What is behind the last whole batch is still to come.
        if not batches:
            raise _damaged(path, cause) from cause
    return Record(path, _head(path, schema.metadata or {}), pa.Table.from_batches(batches, schema))


def _head(path: Path, told: dict[bytes, bytes]) -> RecordHead:
    if told.get(b"format") != FORMAT.encode():
        raise _foreign(path, "its schema does not say that it is one")
    if told.get(b"version") != str(VERSION).encode():
        found = told.get(b"version", b"none").decode()
        raise error(
            "record-version",
            f"{path} is {FORMAT} of version {found}, and this program reads version {VERSION}",
            help="read it with the openwafer that wrote it, or record the run again",
        )
    try:
        return json_files.decode(RecordHead, told.get(b"head", b""))
    except JsonMistake as cause:
        raise _damaged(path, cause) from cause


def _foreign(path: Path, told: str) -> OpenwaferError:
    return error(
        "record-foreign",
        f"{path} is no {FORMAT}: {told}",
        help="give the file that program.run(record=...) has written",
    )


def _damaged(path: Path, cause: Exception) -> OpenwaferError:
    return error(
        "record-damaged",
        f"{path} is damaged: {cause}",
        help="record the run again; a record is written whole, so it was changed or cut since",
    )
