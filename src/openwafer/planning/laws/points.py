"""What scaling laws are fitted to: trained models, and what is refused in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from openwafer.diagnostics import error
from openwafer.planning.figures import Origin

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward and backward of a dense model without attention: Kaplan et al. 2020, section 2.1."""

SAME_COMPUTE = 1.01
"""Two runs are of the same compute within this factor."""


@dataclass(frozen=True)
class TrainedPoint:
    """A trained model.

    Attributes:
        loss: it reached, in nats a token.
        flops: of its training.
        parameters: it has.
        tokens: it was trained on.
        tokenizer: whose tokens the loss is counted in, by name or fingerprint.
        name: in messages and pictures.
        origin: of the loss.
    """

    loss: float
    flops: float
    parameters: float | None = None
    tokens: float | None = None
    tokenizer: str | None = None
    name: str = ""
    origin: Origin = Origin.MEASURED


def check_points(points: Sequence[TrainedPoint]) -> None:
    """Raise ``points-values`` for a value no law can take, ``points-tokenizers`` for two of them.

    A loss is counted in tokens, so those of two tokenizers cannot be compared.
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
    named = {point.tokenizer: point.name for point in points if point.tokenizer is not None}
    if len(named) > 1:
        (first, one), (second, other) = list(named.items())[:2]
        raise error(
            "points-tokenizers",
            f"{one} has the tokenizer {first}, {other} the tokenizer {second}: "
            "their losses are of different tokens",
            help="fit the runs of one tokenizer and vocabulary at a time",
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
