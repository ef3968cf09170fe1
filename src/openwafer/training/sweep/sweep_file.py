"""A sweep's file: what it began with and which runs have ended.

docs/formats/openwafer-sweep.md describes it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import error
from openwafer.json_files import SealedFormat


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep that has ended.

    Attributes:
        name: of its folder.
        settings: values by key of the config, as texts.
        seed: of weights, dropout and order of data.
        validation_loss: on held-out documents after the last step; None where the run diverged.
        steps: that were done.
        seconds: that it took.
    """

    name: str
    settings: dict[str, str]
    seed: int
    validation_loss: float | None
    steps: int
    seconds: float

    @property
    def loss(self) -> float:
        """The loss, infinite where the run diverged."""
        return math.inf if self.validation_loss is None else self.validation_loss

    def is_of(self, settings: Mapping[str, str], seed: int) -> bool:
        """Whether it is the run with these settings and this seed."""
        return (self.settings, self.seed) == (settings, seed)


@dataclass(frozen=True)
class SweepRecord:
    """The content of the file.

    Attributes:
        config: of all runs but for `keys`, as YAML with every default.
        keys: that differ between runs.
        runs: that have ended, in that order.
    """

    config: str
    keys: tuple[str, ...]
    runs: tuple[SweptRun, ...]


FORMAT: Final = SealedFormat(
    "openwafer-sweep",
    1,
    SweepRecord,
    "sweep-corrupt",
    "restore the file, or begin again in another folder",
    "sweep-version",
    "go on with the program that wrote it, or begin again in another folder",
)


def read_sweep(path: Path) -> SweepRecord | None:
    """The sweep in a file; None where there is no such file.

    Raises:
        OpenwaferError: ``sweep-corrupt``, ``sweep-version``, ``sweep-folder``.
    """
    try:
        return FORMAT.decode(path, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise error(
            "sweep-folder",
            f"cannot read {path}: {cause.strerror}",
            help="give a folder that may be read and written",
        ) from cause


def write_sweep(path: Path, record: SweepRecord) -> None:
    """Replace the file. Raises OSError."""
    write_bytes(path, FORMAT.encode(record))
