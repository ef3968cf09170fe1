"""Loss by parameters and tokens: the forms of Kaplan et al. and of Hoffmann et al."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from scipy.optimize import nnls

from openwafer.loss_laws import LawKind, loss_of
from openwafer.planning.laws.fitted import (
    USUAL_RESAMPLING,
    Allocation,
    Array,
    Fitted,
    Resampling,
)
from openwafer.planning.laws.noise import resampled_losses
from openwafer.planning.laws.points import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    TrainedPoint,
    check_points,
    require_both_ways,
    require_enough,
    sizes_and_tokens,
)
from openwafer.planning.laws.robust_fit import Form, fit_again, fit_logs

NUM_STARTS = 4
LEAST_SHARE = 1e-3
MAX_LOG: Final = 700.0
EXPONENTS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
KAPLAN_EXPONENTS: Final = (0.03, 0.06, 0.1, 0.2, 0.4, 0.8)
KAPLAN_RATIOS: Final = (0.4, 0.7, 1.0, 1.5, 2.5)
EXPONENT_BOUNDS: Final = (0.01, 5.0)
# Of a term among the points, relative to the losses: one that is less says nothing.
TERM_BOUNDS: Final = (math.log(1e-4), math.log(10))


@dataclass(frozen=True)
class SizeTokensLaw:
    """A loss by parameters and tokens, in nats a token.

    Attributes:
        kind: its form.
        values: its constants, as :mod:`openwafer.loss_laws` names them.
        source: the place where they stand, or the way in which they were found.
        flops_ratio: FLOPs of training for each parameter and token.
    """

    kind: LawKind
    values: Mapping[str, float]
    source: str
    flops_ratio: float = FLOPS_PER_PARAMETER_AND_TOKEN

    @property
    def allocation_source(self) -> str:
        """Whose rule `allocation` follows."""
        return f"least loss of the law at {self.flops_ratio:.3g} FLOPs a parameter and token"

    def constants(self) -> Mapping[str, float]:
        """Its constants by their names."""
        return self.values

    def loss_for(self, parameters: float, tokens: float) -> float:
        """The loss of a model of so many `parameters`, trained on so many `tokens`."""
        flops = self.flops_ratio * parameters * tokens
        return float(loss_of(self.kind, self.values, parameters, tokens, flops))

    def expected(self, point: TrainedPoint) -> float:
        """The loss of a trained model; raises ``points-sizes`` where its size is not known."""
        [[parameters], [tokens]] = sizes_and_tokens([point])
        return self.loss_for(float(parameters), float(tokens))

    def allocation(self, flops: float) -> Allocation:
        """The parameters and tokens of the least loss.

        Both forms fall with ``p N ** -q + r N ** s`` where D = C / (ratio N), whose least is where
        its derivative is zero.
        """
        values, spent = self.values, flops / self.flops_ratio
        if self.kind is LawKind.PARAMETRIC:
            rise, fall = values["b"], values["a"]
            log_gain = math.log(values["A"] * fall) - math.log(values["B"] * rise)
        else:
            rise, fall = 1.0, values["a_N"] / values["a_D"]
            log_gain = fall * math.log(values["N_c"]) + math.log(fall / values["D_c"])
        log_size = (log_gain + rise * math.log(spent)) / (rise + fall)
        # Constants that the points leave open may ask for less than a parameter or a token.
        parameters = math.exp(min(max(log_size, 0.0), max(math.log(spent), 0.0)))
        return Allocation(parameters, spent / parameters)

    def loss_at(self, flops: float) -> float:
        """The loss that is reached with `flops` well spent."""
        spent = self.allocation(flops)
        return self.loss_for(spent.parameters, spent.tokens)


def fit_size_law(
    points: Sequence[TrainedPoint], kind: LawKind, resampling: Resampling = USUAL_RESAMPLING
) -> Fitted[SizeTokensLaw]:
    """Fit by the Huber loss of log losses, from a grid of starts.

    `kind` is parametric, approach 3 of Hoffmann et al. 2022 (arXiv 2203.15556), or kaplan.

    Raises:
        OpenwaferError: ``points-values``, ``points-tokenizers``, ``points-conditions``,
            ``points-sizes``, ``points-few``, ``points-one-way``.
    """
    check_points(points)
    parameters, tokens = sizes_and_tokens(points)
    shape = _Parametric if kind is LawKind.PARAMETRIC else _Kaplan
    require_enough(points, shape.num_constants)
    require_both_ways(points)
    losses = np.array([point.loss for point in points])
    fit = shape(np.log(parameters), np.log(tokens), losses)
    found = fit_logs(fit.form, np.log(losses), fit.starts(losses), fit.bounds)
    flops = np.array([point.flops for point in points])
    ratio = float(np.exp(np.log(flops / (parameters * tokens)).mean()))
    source = f"{shape.formula}: Huber loss of {len(points)} log losses"

    def law(constants: Array) -> SizeTokensLaw:
        return SizeTokensLaw(kind, fit.named(constants), source, ratio)

    [expected], [slopes] = fit.form(found[None])
    lengths = np.log(tokens / parameters)
    # Runs much shorter or longer than the others of their size may both be noisier.
    beside = [lengths, np.square(lengths - lengths.mean())]
    dealt = resampled_losses(losses, np.exp(expected), slopes, resampling, beside)
    drawn = np.log(dealt).reshape(-1, len(losses))
    replicas = fit_again(fit.form, drawn, found, fit.bounds)
    return Fitted(law(found), tuple(map(law, replicas)), tuple(points))


class _Parametric:
    """``E + A / N ** a + B / D ** b``, by the logs of its terms in the middle of the points."""

    formula: Final = "E + A / N^a + B / D^b"
    num_constants: Final = 5

    def __init__(self, log_sizes: Array, log_tokens: Array, losses: Array) -> None:
        low, high = TERM_BOUNDS
        term = (low + math.log(losses.min()), high + math.log(losses.max()))
        self.bounds = (term, term, term, EXPONENT_BOUNDS, EXPONENT_BOUNDS)
        self._middles = float(log_sizes.mean()), float(log_tokens.mean())
        self._sizes = log_sizes - self._middles[0]
        self._tokens = log_tokens - self._middles[1]

    @property
    def form(self) -> Form:
        return self._logs

    def _logs(self, constants: Array) -> tuple[Array, Array]:
        floor, size, tokens, a, b = constants.T[..., None]
        terms = np.stack(
            [floor + 0 * self._sizes, size - a * self._sizes, tokens - b * self._tokens]
        )
        logs = np.logaddexp.reduce(terms, axis=0)
        shares = np.exp(terms - logs)
        slopes = [*shares, -shares[1] * self._sizes, -shares[2] * self._tokens]
        return logs, np.stack(slopes, axis=-1)

    def starts(self, losses: Array) -> list[Array]:
        """The best of a grid of exponents, of each of which the other constants follow."""
        found = []
        for a, b in product(EXPONENTS, EXPONENTS):
            terms = [np.ones_like(losses), np.exp(-a * self._sizes), np.exp(-b * self._tokens)]
            heights, rest = nnls(np.stack(terms, axis=1) / losses[:, None], np.ones_like(losses))
            logs = np.log(np.maximum(heights, LEAST_SHARE * losses.min()))
            found.append((rest, np.array([*logs, a, b])))
        return [start for _, start in sorted(found, key=lambda one: one[0])[:NUM_STARTS]]

    def named(self, constants: Array) -> dict[str, float]:
        floor, size, tokens, a, b = map(float, constants)
        return {
            "E": math.exp(floor),
            "A": math.exp(min(size + a * self._middles[0], MAX_LOG)),
            "a": a,
            "B": math.exp(min(tokens + b * self._middles[1], MAX_LOG)),
            "b": b,
        }


class _Kaplan:
    """``((N_c / N) ** p + D_c / D) ** a_D``, where a_N is p a_D."""

    formula: Final = "((N_c / N)^(a_N / a_D) + D_c / D)^a_D"
    num_constants: Final = 4

    def __init__(self, log_sizes: Array, log_tokens: Array, losses: Array) -> None:
        low, high = (end + math.log(losses.mean()) for end in TERM_BOUNDS)
        term = (low / EXPONENT_BOUNDS[0], high / EXPONENT_BOUNDS[0])
        self.bounds = (term, term, EXPONENT_BOUNDS, EXPONENT_BOUNDS)
        self._middles = float(log_sizes.mean()), float(log_tokens.mean())
        self._sizes = log_sizes - self._middles[0]
        self._tokens = log_tokens - self._middles[1]

    @property
    def form(self) -> Form:
        return self._logs

    def _logs(self, constants: Array) -> tuple[Array, Array]:
        size, tokens, ratio, exponent = constants.T[..., None]
        terms = np.stack([size - ratio * self._sizes, tokens - self._tokens])
        logs = np.logaddexp.reduce(terms, axis=0)
        shares = exponent * np.exp(terms - logs)
        slopes = [*shares, -shares[0] * self._sizes, logs]
        return exponent * logs, np.stack(slopes, axis=-1)

    def starts(self, losses: Array) -> list[Array]:
        found = []
        for ratio, exponent in product(KAPLAN_RATIOS, KAPLAN_EXPONENTS):
            # Relative to the highest loss: powers of 30 and more are common here.
            powers = (losses / losses.max()) ** (1 / exponent)
            terms = [np.exp(-ratio * self._sizes), np.exp(-self._tokens)]
            heights, rest = nnls(np.stack(terms, axis=1) / powers[:, None], np.ones_like(losses))
            logs = np.log(np.maximum(heights, LEAST_SHARE * powers.min()))
            shift = math.log(losses.max()) / exponent
            # A relative error of the power is that of the loss divided by the exponent.
            found.append((rest * exponent, np.array([*(logs + shift), ratio, exponent])))
        return [start for _, start in sorted(found, key=lambda one: one[0])[:NUM_STARTS]]

    def named(self, constants: Array) -> dict[str, float]:
        size, tokens, ratio, exponent = map(float, constants)
        return {
            "N_c": math.exp(min(size / ratio + self._middles[0], MAX_LOG)),
            "a_N": ratio * exponent,
            "D_c": math.exp(min(tokens + self._middles[1], MAX_LOG)),
            "a_D": exponent,
        }
