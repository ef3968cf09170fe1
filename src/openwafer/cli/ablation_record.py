"""Writes the results of an ablation as one JSON file, see docs/formats/openwafer-ablation.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.atomic_file import write_bytes
from openwafer.json_files import encode
from openwafer.training.sweep import Difference

FORMAT: Final = "openwafer-ablation"
VERSION: Final = 1


@dataclass(frozen=True)
class Cost:
    """The cost of a training.

    Attributes:
        flops: FLOPs, as ``openwafer fit`` counts them.
        flops_ratio: their ratio to the baseline's; None where that diverged.
        parameters: the model's.
        step_seconds: median time of a step.
    """

    flops: float
    flops_ratio: float | None
    parameters: float
    step_seconds: float


@dataclass(frozen=True)
class Worth:
    """Times the baseline's FLOPs with which a law gives the baseline a variant's loss.

    Attributes:
        factor: by the mean loss; None where that takes a compute far outside the law's points.
        low, high: by the ends of the interval of the loss's difference; None too where that is not
            known.
    """

    factor: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LawReading:
    """A variant beside a law. Losses are in nats a token.

    Attributes:
        loss: loss that the law gives its size, tokens and FLOPs.
        above: mean loss of its runs minus that; None where one diverged.
        difference: `loss` minus the loss that the law gives the baseline: the part of a gain that
            is compute and size alone.
        worth: None for the baseline, and where there is no difference.
    """

    loss: float
    above: float | None
    difference: float
    worth: Worth | None


@dataclass(frozen=True)
class Result:
    """A variant, or the baseline.

    Attributes:
        name: the variant's.
        settings: values that it changes, by key.
        losses: held-out losses, one a seed; infinite where the run diverged.
        loss: their mean.
        difference: its losses minus the baseline's; None for the baseline, and where a run of
            either diverged.
        cost: the cost of one of its runs; None where all diverged.
        law: a law's reading; None without a law, or where it holds under other conditions.
    """

    name: str
    settings: Mapping[str, str]
    losses: tuple[float, ...]
    loss: float
    difference: Difference | None
    cost: Cost | None
    law: LawReading | None


@dataclass(frozen=True)
class AblationRecord:
    """All results: the baseline's first, then the variants in the order asked for.

    Attributes:
        config: file of the baseline.
        seeds: seeds of each variant's runs.
        law: file of the law; None without one.
        results: with a loss for each seed.
    """

    config: str
    seeds: tuple[int, ...]
    law: str | None
    results: tuple[Result, ...]


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    ablation: AblationRecord


def write_ablation(path: Path, ablation: AblationRecord) -> None:
    """Replace the file `path`; what is not finite becomes null. Raises OSError."""
    write_bytes(path, encode(_File(FORMAT, VERSION, ablation)) + b"\n")
