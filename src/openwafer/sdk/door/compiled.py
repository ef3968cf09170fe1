"""Programs in Python's hands: compiled here, read from a folder, written to one, run."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from openwafer.config import PathLike, convert_fields, path_of
from openwafer.diagnostics import counted, error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.compiler.pipeline import compile_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.door.run import Run
from openwafer.sdk.host import (
    Check,
    RecordOptions,
    Replayed,
    RuntimeOptions,
    read_program,
    record_options,
    replay,
)
from openwafer.sdk.program.program import HostName, Program

Param: TypeAlias = bool | int | float | np.generic

WITH_HOST: Final = CompileOptions(is_memcpy=True)
"""The host copies and launches."""
QUIET: Final = RuntimeOptions(log_folder=None)
"""No log is written."""


class CompileWarning(UserWarning):
    """What the compiler warns of."""


@dataclass(frozen=True, repr=False)
class Compiled:
    """A compiled program.

    Attributes:
        program: images, routes and names, as in the compiler's output folder.
        name: of its layout file or folder.
    """

    program: Program
    name: str

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of PEs: the first two dims of every array of the host."""
        return self.program.height, self.program.width

    @property
    def names(self) -> dict[str, str]:
        """What the program exports to the host: CSL types by name."""
        return {name.name: _type_of(name) for name in self.program.host_names}

    @property
    def printed(self) -> tuple[str, ...]:
        """Lines of ``@comptime_print``."""
        return self.program.printed

    def run(
        self,
        options: RuntimeOptions = QUIET,
        *,
        check: bool = False,
        account: bool = False,
        line_cycles: bool = False,
        profile: bool = False,
        record: RecordOptions | PathLike | None = None,
    ) -> Run:
        """Put the program on a simulated fabric and start it.

        Args:
            options: how it is simulated; no ``sim.log`` is written unless a folder is given.
            check: look for mistakes of the program, which the end of the run raises.
            account: book where the cycles of each PE go, for :meth:`Run.account`.
            line_cycles: count the cycles of every line, for :meth:`Run.line_cycles`.
            profile: both of them, for :meth:`Run.profile`.
            record: file that gets what happens on the fabric, for :func:`read_record`; with options
                also what of it.
        """
        options = replace(options, check=Check.ERROR) if check else options
        options = replace(options, has_account=True) if account or profile else options
        options = replace(options, has_line_cycles=True) if line_cycles or profile else options
        options = replace(options, record=record_options(record) or options.record)
        return Run(self.program, options)

    def replay(
        self,
        journal: PathLike,
        *,
        until: int | None = None,
        account: bool = False,
        record: RecordOptions | PathLike | None = None,
    ) -> Replayed:
        """Do a run again that kept a journal: ``RuntimeOptions(log_folder=None, journal=...)``.

        Args:
            journal: its file.
            until: end with this cycle, also in the middle of an operation; None does all of them.
            account: book where the cycles of each PE go, for ``simulator.account()``.
            record: file that gets what happens, as in :meth:`run`.

        Raises:
            OpenwaferError: the journal is damaged or of another program, or something came out
                otherwise than in the run.
        """
        journal = path_of(journal, "journal")
        options = record_options(record)
        return replay(self.program, journal, until=until, has_account=account, record=options)

    def save(self, folder: PathLike) -> None:
        """Write what ``cslc -o folder`` writes, for host scripts and :func:`load`."""
        folder = path_of(folder, "folder")
        compilation_of(self.program).write(folder)

    def __repr__(self) -> str:
        rows, columns = self.size
        kinds = counted(len(self.program.images), "kind")
        names = ", ".join(f"{name}: {kind}" for name, kind in self.names.items())
        return (
            f"<{self.name} for {self.program.arch}: {rows} rows and {columns} columns of PEs, "
            f"{kinds} of code; {names or 'no names for the host'}>"
        )


def compile_layout(
    layout: PathLike,
    *,
    arch: str = Arch.WSE3,
    params: Mapping[str, Param] | None = None,
    options: CompileOptions = WITH_HOST,
) -> Compiled:
    """Compile a layout file and all that it imports.

    Args:
        layout: the CSL file with the layout block.
        arch: ``"wse2"`` or ``"wse3"``.
        params: values of the layout file's params.
        options: all else that ``cslc`` has options for.

    Raises:
        OpenwaferError: the program is wrong, or a file is missing.

    Warns:
        CompileWarning: for each warning of the compiler.
    """
    layout = path_of(layout, "layout")
    given = tuple((name, text_of(name, value)) for name, value in (params or {}).items())
    chosen = replace(options, arch=_arch(arch), params=(*options.params, *given))
    # Not by the options themselves: cslc starts sooner without this module.
    convert_fields(chosen)
    program = compile_program(layout, chosen)
    for warning in program.warnings:
        warnings.warn(warning, CompileWarning, stacklevel=2)
    return Compiled(program, layout.name)


def load(folder: PathLike) -> Compiled:
    """A program from the output folder of ``cslc`` or :meth:`Compiled.save`.

    Raises:
        OpenwaferError: there is none, or it is damaged.
    """
    folder = path_of(folder, "folder")
    return Compiled(read_program(folder), folder.name)


def _type_of(name: HostName) -> str:
    if name.inputs is None:
        return name.type
    return f"fn({', '.join(f'{label}: {kind}' for label, kind in name.inputs)}) {name.type}"


def _arch(name: str) -> Arch:
    if name not in list(Arch):
        known = " or ".join(Arch)
        raise error("option-value", f"arch is {name!r}", help=f"give {known}")
    return Arch(name)


def text_of(name: str, value: Param) -> str:
    """A value as ``--params`` takes it."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return repr(float(value))
    raise error(
        "csl-params",
        f"params[{name!r}] is a {type(value).__name__}; a layout's params are numbers and bools",
        help="give an int, a float or a bool",
    )
