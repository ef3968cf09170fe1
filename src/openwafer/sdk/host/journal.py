"""The journal of a run: what the host asked of the fabric, in order.

With the program it is the run: :mod:`openwafer.sdk.host.replaying` does it again.

A file of it is a head of two lines of JSON, and behind them the words that the host gave, as
docs/formats/openwafer-journal.md says.
"""

import typing
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import xxhash

import openwafer
from openwafer.atomic_file import remove_abandoned, write_bytes
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, JsonMistake, SealedFormat, Unchecked, convert
from openwafer.sdk.host.beside import program_beside
from openwafer.sdk.host.operations import (
    OPERATIONS,
    CopyTo,
    Interpreter,
    Operation,
    Send,
    SendPort,
    Stop,
    Words,
)
from openwafer.sdk.host.rules import Rules
from openwafer.sdk.program import file
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.environment import next_path
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-journal"
VERSION: Final = 1
JOURNAL_VARIABLE: Final = "OPENWAFER_JOURNAL"
"""Environment variable with a folder that each run writes its journal to, under the next number,
and its program beside."""

_NAMES: Final = MappingProxyType({kind: name for name, kind in OPERATIONS.items()})


_GIVEN: Final = CopyTo | Send | SendPort
"""Operations with words of the host."""


@dataclass(frozen=True)
class Entry:
    """An operation that was carried out.

    Attributes:
        cycle: the one at which it began.
        result: checksum of the words that the host got; None where it gets none.
        failure: the error that it raised, as it is shown.
    """

    operation: Operation
    cycle: int
    result: str | None = None
    failure: str | None = None


@dataclass
class Journal:
    """What a run consists of beside its program.

    Attributes:
        program: digest of the program.
        rules: options of the run.
        entries: in the order in which they were carried out.
        interrupted_at: cycle at which the user interrupted the last entry's operation; what came
            after that depended on the moment, and is not kept.
    """

    program: str
    rules: Rules
    entries: list[Entry] = field(default_factory=list)
    interrupted_at: int | None = None

    @property
    def num_ended(self) -> int:
        """How many operations came to an end, also by an error."""
        return len(self.entries) - (self.interrupted_at is not None)

    def require_program(self, program: Program) -> None:
        """Raise OpenwaferError where it is of another program."""
        found = digest_of(program)
        if self.program != found:
            raise error(
                "journal-of-other-program",
                f"the journal is of the program {self.program}, and this is {found}",
                help="replay it with the program that the run was of, compiled in the same way",
            )

    @property
    def last_cycle(self) -> int:
        """When the user interrupted the run, else when the last operation began."""
        if self.interrupted_at is not None:
            return self.interrupted_at
        return self.entries[-1].cycle if self.entries else 0


@dataclass(frozen=True)
class _Line:
    """An entry as the head of a file has it; its words lie behind the head."""

    operation: str
    cycle: Count
    fields: Unchecked
    shape: tuple[Count, ...] = ()
    result: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class _Head:
    openwafer: str
    program: str
    rules: Rules
    interrupted_at: Count | None
    words_xxh3_64: str
    entries: tuple[_Line, ...]


_FILE: Final = SealedFormat(
    FORMAT,
    VERSION,
    _Head,
    "journal-damaged",
    "record the run again; a journal is written whole, so it was changed or cut since",
    "journal-version",
    "replay it with the openwafer that wrote it, or record the run again",
)


class Recorder:
    """Carries operations out by an interpreter, and keeps them in a file.

    The file is written when the run begins, at each failure, at the stop, and where the process
    ends without one. Raises OSError where it cannot be written.
    """

    def __init__(self, interpreter: Interpreter, journal: Journal, path: Path) -> None:
        self._interpreter = interpreter
        self._journal = journal
        remove_abandoned(path.absolute())
        self._file = _File(journal, path.absolute())
        self._file.write()
        weakref.finalize(self, self._file.write)

    def carry_out(self, operation: Operation) -> Words | None:
        """As :meth:`Interpreter.carry_out`."""
        journal = self._journal
        entry = Entry(_kept(operation), self._interpreter.simulator.cycle)
        is_kept = journal.interrupted_at is None
        try:
            result = self._interpreter.carry_out(operation)
        except OpenwaferError as failure:
            self._add(replace(entry, failure=str(failure)), is_kept=is_kept)
            self._file.write()
            raise
        except BaseException:
            self._add(entry, is_kept=is_kept)
            if is_kept:
                journal.interrupted_at = self._interpreter.simulator.cycle
            self._file.write()
            raise
        self._add(replace(entry, result=checksum(result)), is_kept=is_kept)
        if isinstance(operation, Stop):
            self._file.write()
        return result

    def _add(self, entry: Entry, *, is_kept: bool) -> None:
        if is_kept:
            self._journal.entries.append(entry)


class _File:
    """A journal's file, written again where the journal has grown."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self._journal = journal
        self._path = path
        self._written: tuple[int, int | None] | None = None

    def write(self) -> None:
        state = len(self._journal.entries), self._journal.interrupted_at
        if state != self._written:
            write(self._journal, self._path)
            self._written = state


def path_of_environment() -> Path | None:
    """Where the environment wants a run's journal: the next number in its folder."""
    return next_path(JOURNAL_VARIABLE, ".journal")


def kept_in(folder: Path) -> list[Journal]:
    """Journals of a folder, in their order. Raises OpenwaferError as :func:`read`."""
    return [read(path) for path in sorted(folder.glob("*.journal"))]


def runs_in(folder: Path, program: Program | None = None) -> list[tuple[Program, Journal]]:
    """Runs whose journals lie in a folder, in their order, each with its program.

    Args:
        folder: of journals, with the programs beside them.
        program: only its runs; None for those of all programs.

    Raises:
        OpenwaferError: there is no run, or none of the program.
    """
    kept = kept_in(folder)
    if not kept:
        raise error(
            "profile-no-run",
            "the script has run no program on the simulated fabric",
            help="run a script that loads a program and runs it: SdkRuntime(...).load(), run()",
        )
    if program is None:
        return [(file.read(program_beside(folder, one.program)), one) for one in kept]
    wanted = digest_of(program)
    runs = [(program, one) for one in kept if one.program == wanted]
    if not runs:
        others = ", ".join(sorted({one.program[:12] for one in kept}))
        raise error(
            "profile-foreign-run",
            f"the script has run other programs, {others}, and none is {wanted[:12]}, the one that"
            " was asked for",
            help="name the folder that the script runs, as it is compiled now",
        )
    return runs


def checksum(words: Words | None) -> str | None:
    """XXH3, 64 bits, of words that the host gets; None for none."""
    return None if words is None else _hash(np.ascontiguousarray(words, "<u4").tobytes())


def _hash(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _kept(operation: Operation) -> Operation:
    """The same with words of its own, as the script may write to its arrays later."""
    if not isinstance(operation, _GIVEN):
        return operation
    words = operation.words.copy()
    words.flags.writeable = False
    return replace(operation, words=words)


def write(journal: Journal, path: Path) -> None:
    """Write a journal atomically. Raises OSError where the disk refuses."""
    words = b"".join(_words_of(entry.operation).tobytes() for entry in journal.entries)
    head = _Head(
        openwafer.__version__,
        journal.program,
        journal.rules,
        journal.interrupted_at,
        _hash(words),
        tuple(map(_line, journal.entries)),
    )
    write_bytes(path, _FILE.encode(head) + words)


def _line(entry: Entry) -> _Line:
    operation = entry.operation
    names = [one.name for one in fields(operation) if one.name != "words"]
    return _Line(
        _NAMES[type(operation)],
        entry.cycle,
        {name: getattr(operation, name) for name in names},
        operation.words.shape if isinstance(operation, _GIVEN) else (),
        entry.result,
        entry.failure,
    )


def _words_of(operation: Operation) -> Words:
    if isinstance(operation, _GIVEN):
        return np.ascontiguousarray(operation.words, "<u4")
    return np.zeros(0, "<u4")


def read(path: Path) -> Journal:
    """Read a file of `write`.

    Raises OpenwaferError when there is none, when it is damaged, or of another version.
    """
    if not path.is_file():
        raise error(
            "journal-missing",
            f"there is no journal at {path}",
            help="keep one: RuntimeOptions(journal=...), or OPENWAFER_JOURNAL=FOLDER",
        )
    first, second, words = (*path.read_bytes().split(b"\n", 2), b"", b"")[:3]
    head = _FILE.decode(path, first + b"\n" + second)
    num_words = sum(int(np.prod(line.shape)) for line in head.entries if line.shape)
    if len(words) != 4 * num_words:
        told = f"{len(words)} bytes of words lie behind its head, which tells of {4 * num_words}"
        raise _FILE.broken(path, told)
    if _hash(words) != head.words_xxh3_64:
        told = f"its words have the checksum {_hash(words)}, not {head.words_xxh3_64}"
        raise _FILE.broken(path, told)
    try:
        entries = _entries(head.entries, np.frombuffer(words, "<u4").astype(np.uint32))
    except JsonMistake as cause:
        raise _FILE.broken(path, str(cause)) from cause
    return Journal(head.program, head.rules, entries, head.interrupted_at)


def _entries(lines: Sequence[_Line], words: Words) -> list[Entry]:
    entries, start = [], 0
    for line in lines:
        end = start + (int(np.prod(line.shape)) if line.shape else 0)
        operation = _operation(line, words[start:end].reshape(line.shape or (0,)))
        entries.append(Entry(operation, line.cycle, line.result, line.failure))
        start = end
    return entries


def _operation(line: _Line, words: Words) -> Operation:
    kind = OPERATIONS.get(line.operation)
    if kind is None:
        raise JsonMistake(f"{line.operation!r} is no operation")
    given: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if name == "words":
            given[name] = words
        elif name in line.fields:
            given[name] = convert(hint, line.fields[name])
        else:
            raise JsonMistake(f"{line.operation!r} has no {name}")
    return kind(**given)
