"""The points of scaling laws are trained models; some are refused."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from openwafer.diagnostics import error
from openwafer.figures import Origin

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward and backward of a dense model without attention: Kaplan et al. 2020, section 2.1."""

SAME_COMPUTE = 1.01
"""Two runs are of the same compute within this factor."""

LEAST_FREEDOM: Final = 1.5
"""Factor by which tokens must differ among models of a size that the others foretell."""

CONDITIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tokenizer": "their losses are of different tokens",
        "data": "they learned, or were examined in, different texts",
        "precision": "numbers of fewer bits cost some loss",
        "sequence_length": "longer sequences lower the loss of a token",
        "sparsity": "parameters and FLOPs are counted as if weights were dense",
        "schedule": "the learning rate must have fallen alike",
        "held_out_tokens": "their losses are means over different texts",
    }
)
"""What must be the same for all runs of a fit, each with the reason."""


@dataclass(frozen=True)
class CurvePoint:
    """The held-out loss, in nats a token, after so many `tokens` of a training."""

    tokens: float
    loss: float


@dataclass(frozen=True)
class TrainedPoint:
    """A trained model. None stands for what is not known.

    Attributes:
        loss: loss that it reached, in nats a token.
        flops: FLOPs of its training.
        parameters: number of its parameters.
        tokens: tokens that it was trained on.
        tokenizer: tokenizer whose tokens the loss counts, by name or fingerprint.
        name: its name in messages and pictures.
        origin: origin of the loss.
        data: data of its training and evaluation, by name or fingerprint.
        precision: number formats of its training.
        sequence_length: length of a sample, in tokens.
        sparsity: mean share of zeros in its weights.
        schedule: schedule of its learning rate.
        held_out_tokens: tokens that the loss is the mean over.
        batch_tokens: tokens of a step, the mean where steps differ.
        learning_rate: the highest one; under muP, that of the base model.
        parametrization: standard, or mup.
        noise_scale_tokens: gradient noise scale at the end.
        curve: held-out losses along the training, in the order of tokens.
    """

    loss: float
    flops: float
    parameters: float | None = None
    tokens: float | None = None
    tokenizer: str | None = None
    name: str = ""
    origin: Origin = Origin.MEASURED
    data: str | None = None
    precision: str | None = None
    sequence_length: int | None = None
    sparsity: float | None = None
    schedule: str | None = None
    held_out_tokens: int | None = None
    batch_tokens: float | None = None
    learning_rate: float | None = None
    parametrization: str | None = None
    noise_scale_tokens: float | None = None
    curve: tuple[CurvePoint, ...] = ()


def check_points(points: Sequence[TrainedPoint]) -> None:
    """Raise ``points-values`` for a value no law can take, and where losses cannot be compared.

    The latter is ``points-tokenizers`` for two tokenizers, else ``points-conditions``.
    """
    for point in points:
        for key in ("loss", "flops", "parameters", "tokens"):
            value = getattr(point, key)
            if value is not None and not 0 < value < math.inf:
                raise error(
                    "points-values",
                    f"the {key} of {point.name} is {value:g}, not a finite number above 0",
                    help="leave the point out, or correct it",
                )
    for key, reason in CONDITIONS.items():
        _require_one(points, key, reason)


def conditions_of(points: Iterable[TrainedPoint]) -> dict[str, str]:
    """What `CONDITIONS` are for these points, of those that are known."""
    found = {key: getattr(point, key) for point in points for key in CONDITIONS}
    return {key: str(value) for key, value in found.items() if value is not None}


def _require_one(points: Sequence[TrainedPoint], key: str, reason: str) -> None:
    named: dict[object, str] = {}
    for point in points:
        named.setdefault(getattr(point, key), point.name)
    named.pop(None, None)
    if len(named) < 2:
        return
    (first, one), (second, other) = list(named.items())[:2]
    words = key.replace("_", " ")
    is_tokenizer = key == "tokenizer"
    raise error(
        "points-tokenizers" if is_tokenizer else "points-conditions",
        f"{one} has the {words} {first}, {other} the {words} {second}: {reason}",
        help=f"fit the runs of one {words}{' and vocabulary' if is_tokenizer else ''} at a time",
    )


def require_enough(points: Sequence[TrainedPoint], num_constants: int) -> None:
    """Raise ``points-few`` unless there is a point more than a law has constants."""
    if len(points) <= num_constants:
        raise error(
            "points-few",
            f"{len(points)} points for a law of {num_constants} constants: it would go through "
            "them all, and say nothing of its error",
            help=f"train at least {num_constants + 1} models, better {2 * num_constants}",
        )


def require_spread(points: Sequence[TrainedPoint], num_constants: int) -> None:
    """Raise ``points-same-compute`` unless there are as many computes as a law has constants."""
    flops = sorted(point.flops for point in points)
    num_distinct = 1 + sum(b > SAME_COMPUTE * a for a, b in pairwise(flops))
    if num_distinct < num_constants:
        raise error(
            "points-same-compute",
            f"{len(points)} points of {num_distinct} different computes, from {flops[0]:.3g} to "
            f"{flops[-1]:.3g} FLOPs, for a law of {num_constants} constants",
            help=f"train with at least {num_constants} computes, each at least twice the last",
        )


def sizes_and_tokens(
    points: Sequence[TrainedPoint],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    """Parameters and tokens of the points; raises ``points-sizes`` where one has none."""
    pairs = []
    for point in points:
        if point.parameters is None or point.tokens is None:
            raise error(
                "points-sizes",
                f"{point.name} has no {'parameters' if point.parameters is None else 'tokens'}, "
                "and the law is one of sizes and tokens",
                help="write both into the file of points, or fit --law compute",
            )
        pairs.append((point.parameters, point.tokens))
    parameters, tokens = np.array(pairs, dtype=float).T
    return parameters, tokens


def require_both_ways(points: Sequence[TrainedPoint]) -> None:
    """Raise ``points-one-way`` where the tokens of the points follow from their sizes.

    Then a lower loss may come from either, and no fit tells from which.
    """
    parameters, tokens = sizes_and_tokens(points)
    num_sizes = len(np.unique(np.round(np.log(parameters) / math.log(SAME_COMPUTE))))
    line = np.polyfit(np.log(parameters), np.log(tokens), 1) if num_sizes > 1 else (0.0, 0.0)
    rest = np.log(tokens) - np.polyval(line, np.log(parameters))
    freedom = math.exp(float(rest.max() - rest.min()))
    if num_sizes > 2 and freedom >= LEAST_FREEDOM:
        return
    raise error(
        "points-one-way",
        f"{len(points)} points of {num_sizes} sizes, whose tokens differ by a factor of "
        f"{freedom:.2f} where they do not follow from the size: nothing tells the gain of tokens "
        "from that of size",
        help="train at least 3 sizes, each with two numbers of tokens that differ by a factor of "
        f"{LEAST_FREEDOM:g} or more",
    )
