"""Runs that the viewer's tests open."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import openwafer.sdk as wafer
from openwafer.sdk.host import Record, read_record
from openwafer.sdk.program.program import Program
from tests.sdk.door.small_program import small_program

WIDTH, HEIGHT = 3, 2


@dataclass(frozen=True)
class RecordedRun:
    """A run that streams through PE (2, 0): `out`, `run.record` and `run.journal` in a folder."""

    folder: Path

    @property
    def program(self) -> Program:
        return wafer.load(self.folder / "out").program

    @property
    def record(self) -> Record:
        return read_record(self.folder / "run.record")


def recorded_run(folder: Path) -> RecordedRun:
    """Make one in a folder."""
    program = small_program(folder)
    program.save(folder / "out")
    options = wafer.RuntimeOptions(log_folder=None, journal=folder / "run.journal")
    with program.run(options, record=folder / "run.record") as run:
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.launch("add", 1.0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
    return RecordedRun(folder)
