"""A fit and what follows from it as one JSON file, as docs/formats/openwafer-fit.md describes."""

from dataclasses import dataclass
from pathlib import Path

from openwafer.atomic_file import write_bytes
from openwafer.json_files import encode
from openwafer.planning.figures import Figure
from openwafer.planning.laws.points import TrainedPoint

FORMAT = "openwafer-fit"
VERSION = 1


@dataclass(frozen=True)
class ComparedPoint:
    """A point, and the loss that the law gives it."""

    point: TrainedPoint
    expected: Figure


@dataclass(frozen=True)
class Answer:
    """What follows for `flops`: the loss there, or a proposal how to spend them."""

    flops: float
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class FitRecord:
    """A fitted law: its constants, its points, and what was asked of it."""

    law: str
    constants: tuple[Figure, ...]
    scatter: float
    points: tuple[ComparedPoint, ...]
    expectations: tuple[Answer, ...]
    proposals: tuple[Answer, ...]


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    fit: FitRecord


def write_fit(path: Path, fit: FitRecord) -> None:
    """Replace the file `path` by the fit. Raises OSError."""
    write_bytes(path, encode(_File(FORMAT, VERSION, fit)) + b"\n")
