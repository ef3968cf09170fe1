"""Scaling laws as files keep them: the loss of a model, by its size, its tokens and its compute.

A form is a plain function of constants, so that whoever reads a fit can say what it expects.
Numbers and numpy arrays are taken alike. Losses are in nats a token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import JsonMistake, decode

FORMAT: Final = "openwafer-fit"
VERSION: Final = 2

FAR: Final = 10.0
"""A compute is far outside a law's points beyond this factor; so far a law is asked at all."""

NUM_PARTS: Final = 40
"""The outermost of so many equal parts are beyond a 95% interval."""

NUM_HALVINGS: Final = 60
"""Of the logarithm of a factor, until it is as exact as a number is."""

Constants = Mapping[str, float]


class LawKind(StrEnum):
    """What a loss follows from, and how a law of it is found."""

    COMPUTE = "compute"
    KAPLAN = "kaplan"
    ENVELOPE = "envelope"
    ISOFLOP = "isoflop"
    PARAMETRIC = "parametric"


def compute_loss(constants: Constants, flops: Any) -> Any:
    """``(flops / scale_flops) ** -exponent + floor_loss``."""
    power = (flops / constants["scale_flops"]) ** -constants["exponent"]
    return power + constants["floor_loss"]


def parametric_loss(constants: Constants, parameters: Any, tokens: Any) -> Any:
    """``E + A / N ** a + B / D ** b`` (Hoffmann et al. 2022, arXiv 2203.15556, eq. 2)."""
    size = constants["A"] * parameters ** -constants["a"]
    return constants["E"] + size + constants["B"] * tokens ** -constants["b"]


def kaplan_loss(constants: Constants, parameters: Any, tokens: Any) -> Any:
    """``((N_c / N) ** (a_N / a_D) + D_c / D) ** a_D`` (Kaplan et al. 2020, eq. 1.5)."""
    size = (constants["N_c"] / parameters) ** (constants["a_N"] / constants["a_D"])
    return (size + constants["D_c"] / tokens) ** constants["a_D"]


def loss_of(kind: LawKind, constants: Constants, parameters: Any, tokens: Any, flops: Any) -> Any:
    """The loss that a law of any form gives a model."""
    match kind:
        case LawKind.PARAMETRIC:
            return parametric_loss(constants, parameters, tokens)
        case LawKind.KAPLAN:
            return kaplan_loss(constants, parameters, tokens)
        case LawKind.COMPUTE | LawKind.ENVELOPE | LawKind.ISOFLOP:
            return compute_loss(constants, flops)


@dataclass(frozen=True)
class Interval:
    """From the least to the greatest loss, in nats a token."""

    low: float
    high: float


@dataclass(frozen=True)
class CoursePoint:
    """What runs of a law were on their way.

    Attributes:
        share: of their tokens behind them.
        low, high: least and greatest ratio of their loss to what the law gives tokens so far.
    """

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Constant:
    """A constant of a law, by its name."""

    name: str
    value: float


@dataclass(frozen=True)
class SavedLaw:
    """A fitted law, as far as a run is judged by it.

    Attributes:
        kind: its form.
        constants: of the law.
        replicas: constants of the laws that it could as well have been.
        conditions: under which its losses hold.
        flops_range: least and most compute of its points.
        course: what its runs were on their way, by rising share, the last at their end.
    """

    kind: LawKind
    constants: tuple[Constant, ...]
    replicas: tuple[dict[str, float], ...]
    conditions: dict[str, str]
    flops_range: tuple[float, float]
    course: tuple[CoursePoint, ...]

    def expected(
        self, parameters: float, tokens: float, flops: float, share: float
    ) -> Interval | None:
        """The loss of a run with a share of its tokens behind it; None before the first share.

        It is the law's own 95% interval for as many tokens, widened by what its runs were there.
        """
        ratios = self._ratios(share)
        if ratios is None:
            return None
        own = {constant.name: constant.value for constant in self.constants}
        laws = self.replicas if len(self.replicas) > 1 else (own, own)
        losses = [float(loss_of(self.kind, law, parameters, tokens, flops)) for law in laws]
        cuts = quantiles(losses, n=NUM_PARTS, method="inclusive")
        return Interval(cuts[0] * ratios.low, cuts[-1] * ratios.high)

    def loss(self, parameters: float, tokens: float, flops: float) -> float:
        """What the law itself gives a run that has ended, without an interval."""
        own = {constant.name: constant.value for constant in self.constants}
        return float(loss_of(self.kind, own, parameters, tokens, flops))

    def compute_factor(
        self, parameters: float, tokens: float, flops: float, loss_ratio: float
    ) -> float | None:
        """Times the tokens, and so the FLOPs, with which a run's loss is `loss_ratio` of itself.

        The model stays. None where that takes a compute more than `FAR` outside the law's points.
        """
        target = loss_ratio * self.loss(parameters, tokens, flops)
        low, high = self.flops_range[0] / FAR / flops, self.flops_range[1] * FAR / flops

        def at(factor: float) -> float:
            return self.loss(parameters, factor * tokens, factor * flops)

        if not (low <= 1 <= high and at(high) <= target <= at(low)):
            return None
        # Every form falls with tokens.
        for _ in range(NUM_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if at(middle) > target else (low, middle)
        return math.sqrt(low * high)

    def require_conditions(self, told: str, own: Mapping[str, object], option: str) -> None:
        """Raise ``law-conditions`` where a run's losses are not those that the law speaks of.

        Args:
            told: the law's file.
            own: conditions of the run, by the names of the law's.
            option: what names the law, as in ``--set law=``.
        """
        for key, expected in self.conditions.items():
            if str(own[key]) != expected:
                words = key.replace("_", " ")
                raise error(
                    "law-conditions",
                    f"the law of {told} was fitted to runs of the {words} {expected}, and this "
                    f"run has the {words} {own[key]}: their losses cannot be compared",
                    help=f"train with that {words}, or judge by a law of such runs: {option}FILE",
                )

    def _ratios(self, share: float) -> Interval | None:
        for left, right in pairwise((*self.course[:1], *self.course)):
            if left.share <= share <= right.share:
                whole = right.share - left.share
                part = (share - left.share) / whole if whole else 0.0
                low, high = right.low - left.low, right.high - left.high
                return Interval(left.low + part * low, left.high + part * high)
        return None


@dataclass(frozen=True)
class _Head:
    format: str
    version: int


@dataclass(frozen=True)
class _File:
    fit: SavedLaw


def read_law(path: Path) -> SavedLaw:
    """The law in a file that ``openwafer fit --json`` wrote. Raises ``law-file``."""
    try:
        text = path.read_bytes()
        head = decode(_Head, text)
        if (head.format, head.version) != (FORMAT, VERSION):
            raise _broken(
                path,
                f"is {head.format} version {head.version}; this program reads {FORMAT} {VERSION}",
            )
        law = decode(_File, text).fit
    except OSError as cause:
        raise _broken(path, f"cannot be read: {cause.strerror}") from cause
    except JsonMistake as cause:
        raise _broken(path, f"is no record of a fit: {cause}") from cause
    if not law.course:
        raise _broken(path, "was fitted to fewer than 3 points, and cannot judge a run")
    return law


def _broken(path: Path, reason: str) -> OpenwaferError:
    return error(
        "law-file",
        f"{path} {reason}",
        help="write one by openwafer fit RUNS... --json FILE, or train without: --set law=null",
    )
