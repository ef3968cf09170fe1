"""Writes a fit and its answers as one JSON file, see docs/formats/openwafer-fit.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from openwafer.atomic_file import write_bytes
from openwafer.config import PathLike, path_of
from openwafer.figures import Figure
from openwafer.json_files import encode
from openwafer.loss_laws import FORMAT, VERSION, CoursePoint, LawKind
from openwafer.planning.laws.points import TrainedPoint


@dataclass(frozen=True)
class ComparedPoint:
    """A point, the loss that the law gives it, and whether it was kept from the fit."""

    point: TrainedPoint
    expected: Figure
    is_held_out: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer for `flops`: the loss there, or a proposal how to spend them."""

    flops: float
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class FitRecord:
    """A fitted law: its constants, its points, and its answers.

    Attributes:
        law: the law in words.
        kind: the law's kind.
        constants: its constants with their intervals.
        replicas: constants of the laws that it could as well have been.
        conditions: conditions of its losses, as far as known: tokenizer, data and the like.
        course: its runs on their way, as `course_of` tells.
        flops_range: least and most compute of its points.
        scatter: root mean square of the points' relative distance from it.
        points: points that it was fitted to, and those held out.
        runs: runs in which the points were found, where these are minima among runs.
        expectations, proposals: its answers.
    """

    law: str
    kind: LawKind
    constants: tuple[Figure, ...]
    replicas: tuple[Mapping[str, float], ...]
    conditions: Mapping[str, str]
    course: tuple[CoursePoint, ...]
    flops_range: tuple[float, float]
    scatter: float
    points: tuple[ComparedPoint, ...]
    runs: tuple[TrainedPoint, ...] = ()
    expectations: tuple[Answer, ...] = field(default=())
    proposals: tuple[Answer, ...] = field(default=())


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    fit: FitRecord


def write_fit(path: PathLike, fit: FitRecord) -> None:
    """Replace the file `path` by the fit. Raises OSError."""
    path = path_of(path, "path")
    write_bytes(path, encode(_File(FORMAT, VERSION, fit)) + b"\n")
