"""Mistakes that learners make, each a small program with the first word that they hear of it.

Files are written as those of :mod:`tests.sdk.reports.report_file`. The last line says who tells
first, the compiler, a run, a checked run or nobody, and what its first line is. `//! host` is
`launch NAME`, or `copy NAME LENGTH`, which may end in `of 16 bits` or `to 2 PEs`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from openwafer.diagnostics import OpenwaferError, render
from openwafer.sdk.host import Check, DataType, Region, Runtime, RuntimeOptions
from openwafer.sdk.program.program import Program
from tests.sdk.reports.report_file import ReportFile

FOLDER = Path(__file__).parent / "programs"
_HEADING = "// told by "
_CYCLE = re.compile(r"\bcycle \d+")


class Teller(StrEnum):
    """Who tells of a mistake first."""

    COMPILER = "the compiler"
    RUN = "a run"
    CHECKED_RUN = "a checked run"
    NOBODY = "nobody"


@dataclass(frozen=True)
class MistakeFile:
    """One program, and the line that says who tells of its mistake, and what."""

    file: ReportFile

    @property
    def name(self) -> str:
        """What the mistake is."""
        return self.file.path.stem

    @property
    def teller(self) -> Teller:
        """Who tells of it, as the file says."""
        return Teller(self.file.expected.partition(": ")[0].strip())

    def told(self) -> str:
        """What the last line should be."""
        try:
            program = self.file.compiled()
        except OpenwaferError as error:
            return f"{Teller.COMPILER}: {_headline(str(error))}"
        if program.warnings:
            return f"{Teller.COMPILER}: {_headline(program.warnings[0])}"
        for teller, check in ((Teller.RUN, Check.OFF), (Teller.CHECKED_RUN, Check.WARNING)):
            found = self._found(program, check)
            if found:
                return f"{teller}: {_headline(found)}"
        return Teller.NOBODY

    def rewrite(self) -> None:
        """Replace the last line by what is told now."""
        text = f"{self.file.program}{_HEADING}{self.told()}\n"
        self.file.path.write_text(text, encoding="utf-8")

    def _found(self, program: Program, check: Check) -> str:
        try:
            runtime = Runtime(program, RuntimeOptions(log_folder=None, check=check))
            runtime.load()
            runtime.run()
            self._host(runtime)
            runtime.stop()
        except OpenwaferError as error:
            return str(error)
        return "\n".join(map(render, runtime.findings()))

    def _host(self, runtime: Runtime) -> None:
        match self.file.option("host", "launch main").split():
            case "launch", name:
                runtime.launch(name)
            case "copy", name, length, *rest:
                region = Region(0, 0, 2 if "PEs" in rest else 1, 1, int(length))
                kind = DataType.BITS_16 if "bits" in rest else DataType.BITS_32
                values = np.zeros(region.shape, np.uint32)
                runtime.copy_to_device(runtime.get_id(name), values, region, kind)
            case other:
                raise ValueError(f"{self.file.path.name}: the host cannot {other}")


def read(path: Path) -> MistakeFile:
    """Read one file; a ValueError where its last line is missing."""
    program, heading, expected = path.read_text(encoding="utf-8").partition(_HEADING)
    if not heading:
        raise ValueError(f"{path.name} has no line '{_HEADING}'")
    options = [line[3:].strip() for line in program.splitlines() if line.startswith("//!")]
    return MistakeFile(ReportFile(path, program, tuple(options), expected.rstrip("\n")))


def _headline(text: str) -> str:
    return _CYCLE.sub("cycle N", text.splitlines()[0])
