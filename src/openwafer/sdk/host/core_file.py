"""What a machine was where a run ended or failed, as a file that a debugger opens.

docs/formats/openwafer-core.md says what lies in it.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer import json_files
from openwafer.atomic_file import replacing
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import JsonMistake
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.fabric.moments import Books, Moment
from openwafer.sdk.fabric.report import Lost
from openwafer.sdk.fabric.snapshots import Identity, Lines, Snapshot
from openwafer.sdk.host.beside import keep_program
from openwafer.sdk.host.checks import Check
from openwafer.sdk.host.operations import Operation, Stop, Words
from openwafer.sdk.host.pe_code import EngineKind, Form, PeCode, build_engine
from openwafer.sdk.host.record import CarryOut
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.environment import next_path
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-core"
VERSION: Final = 1
CORE_VARIABLE: Final = "OPENWAFER_CORE"
"""Environment variable with a folder that each run writes a core to where it ends or fails, under
the next number, and its program beside."""


@dataclass(frozen=True)
class CoreCode:
    """How the code of PEs was made.

    Attributes:
        engine: that ran it.
        check: what it looks for.
        form: of native code.
    """

    engine: EngineKind
    check: Check
    form: Form


@dataclass(frozen=True)
class CoreHead:
    """What a core is of.

    Attributes:
        machine: what a machine has to have in common with it.
        code: of the PEs.
        options: of the simulation.
        cycle: its present; after a trap that of the code.
        failure: the error that ended the run, as it is shown; empty for none.
        lost: wavelets that were lost, and how many of each kind.
    """

    machine: Identity
    code: CoreCode
    options: SimulatorOptions
    cycle: int
    failure: str = ""
    lost: tuple[tuple[Lost, int], ...] = ()


@dataclass(frozen=True)
class Core:
    """A machine as it was left.

    Attributes:
        own: lines that each band has of its own.
        shared: lines that all have in common.
    """

    path: Path
    head: CoreHead
    own: tuple[Lines, ...]
    shared: Lines

    def machine_of(self, program: Program) -> tuple[Simulator, PeCode]:
        """A machine that is what this one was; it calls its code by address.

        Raises OpenwaferError for another program than the run's, and for a core of another version
        of openwafer.
        """
        digest = digest_of(program)
        if self.head.machine.program != digest:
            raise error(
                "core-of-other-program",
                f"{self.path} is of the program {self.head.machine.program}, and this is {digest}",
                help="name the folder that the run was of, compiled in the same way",
            )
        code = build_engine(
            program,
            self.head.code.engine,
            depth=self.head.code.check.depth,
            form=self.head.code.form,
        )
        options = replace(self.head.options, scope=None, landing_log=False)
        simulator = Simulator(program, code.run_address, code.element_address, options)
        books = Books(lost=Counter(dict(self.head.lost)))
        snapshot = Snapshot(self.head.machine, self.own, self.shared)
        simulator.restore(Moment(snapshot, books, np.zeros(0, np.int64)))
        return simulator, code


class CoreKeeper:
    """Carries operations out, and writes a core where one fails or the run stops.

    Args:
        carry_out: carries them out.
        simulator: of the run.
        program: of the run; it is kept beside.
        code: of the PEs.
        path: the file.
    """

    def __init__(
        self,
        carry_out: CarryOut,
        simulator: Simulator,
        program: Program,
        code: CoreCode,
        path: Path,
    ) -> None:
        self._carry_out = carry_out
        self._simulator = simulator
        self._code = code
        self._path = path
        keep_program(program, digest_of(program), path.parent)

    def carry_out(self, operation: Operation) -> Words | None:
        """Do an operation. Raises OSError where the file cannot be written."""
        try:
            words = self._carry_out(operation)
        except (OpenwaferError, KeyboardInterrupt) as failure:
            write(self._simulator, self._code, self._path, str(failure) or "interrupted")
            raise
        if isinstance(operation, Stop):
            write(self._simulator, self._code, self._path)
        return words


def path_of_environment() -> Path | None:
    """Where the environment wants a run's core: the next number in its folder."""
    return next_path(CORE_VARIABLE, ".core")


def write(simulator: Simulator, code: CoreCode, path: Path, failure: str = "") -> None:
    """Write what a machine is now, atomically. Raises OSError where the disk refuses."""
    moment = simulator.snapshot()
    found = moment.machine
    head = CoreHead(
        found.machine,
        code,
        simulator.options,
        simulator.last_cycle,
        failure,
        tuple(moment.books.lost.items()),
    )
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "version": np.array(VERSION, np.int64),
        "head": np.array(json_files.encode(head).decode()),
    }
    parts = {f"own{number}": lines for number, lines in enumerate(found.own)}
    for name, lines in (parts | {"shared": found.shared}).items():
        arrays |= {f"{name}_numbers": lines.numbers, f"{name}_words": lines.words}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read(path: Path) -> Core:
    """Read a file of :func:`write`.

    Raises OpenwaferError where there is none, and for one that is damaged, of another format or of
    another version.
    """
    if not path.is_file():
        raise error(
            "core-missing",
            f"there is no core at {path}",
            help="keep one: OPENWAFER_CORE=FOLDER in the environment of the run",
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            _require_version(path, str(arrays["format"]), int(arrays["version"]))
            head = json_files.decode(CoreHead, str(arrays["head"]))
            own = [*_own_lines(arrays)]
            shared = _lines(arrays, "shared")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, JsonMistake) as cause:
        raise error(
            "core-damaged",
            f"{path} is no core, or damaged: {cause}",
            help="run again; a core is written whole, so it was changed or cut since",
        ) from cause
    return Core(path, head, tuple(own), shared)


def _require_version(path: Path, found: str, version: int) -> None:
    if (found, version) != (FORMAT, VERSION):
        raise error(
            "core-version",
            f"{path} is {found!r} version {version}; this program reads {FORMAT!r} version"
            f" {VERSION}",
            help="open it with the openwafer that wrote it, or run again",
        )


def _own_lines(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Lines]:
    number = 0
    while f"own{number}_numbers" in arrays:
        yield _lines(arrays, f"own{number}")
        number += 1


def _lines(arrays: Mapping[str, NDArray[Any]], name: str) -> Lines:
    return Lines(arrays[f"{name}_numbers"], arrays[f"{name}_words"])
