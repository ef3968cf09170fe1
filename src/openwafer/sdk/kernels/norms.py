"""Layer norm and RMS norm of activations that rest on the wafer, and their gradients."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, load_cycles
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.operations import AGAIN, MEETS, Operation, chain_cycles, of_one
from openwafer.sdk.kernels.precision import UNIT, gamma
from openwafer.sdk.kernels.resting import Resting, check_fit, memory_bytes, resting, shape_of
from openwafer.sdk.kernels.running import (
    LOOK_CYCLES,
    Result,
    compiled,
    cycles_of,
    known,
    loop_cycles,
)

_F32: Final = np.dtype(np.float32)
_ROOT_ROUNDINGS: Final = 5
"""Units that ``<kernels/inverse_root>`` and the addition of epsilon are off by, at most."""
_LEAST: Final = 2.0**-126
"""More than products below the normal numbers lose."""
_POINTERS: Final = (5, 6)
"""Loads of pointers before a pass, forward and backward."""
_PASS_CYCLES: Final = ((17, 8), (20, 1))
"""Of the instructions between operations of each pass, and of those more where there is a mean."""
_SUM_CYCLES: Final = 3
"""Of the instructions of ``add_features`` or ``add_tokens`` of ``<kernels/tile>``."""
_MOST_UNROLLED: Final = 4
"""Tokens whose loop of roots is written out."""


class Norm(StrEnum):
    """Of features with their mean taken off, or as they are."""

    LAYER = "layer"
    RMS = "rms"


@dataclass(frozen=True, eq=False)
class NormResult:
    """What a norm gives back.

    Attributes:
        values: (features, tokens).
        normal: (features, tokens), before scales and shifts.
        roots: (tokens,): one over the roots of the mean squares.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    normal: NDArray[Any]
    roots: NDArray[Any]
    cycles: int


@dataclass(frozen=True, eq=False)
class NormGradients:
    """Gradients of a norm.

    Attributes:
        values: of its input, (features, tokens).
        scales: (features,), sums over all tokens.
        shifts: the same; None for RMS norm.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    scales: NDArray[Any]
    shifts: NDArray[Any] | None
    cycles: int


@dataclass(frozen=True)
class NormPlan:
    """How a norm is done, before anything is compiled.

    A token's features are added up along its column of PEs: for the mean, and for the squares of
    what is left without it. Backward, all sums of a token go as one message; gradients of scales
    and shifts are added up along rows of PEs.

    Attributes:
        norm: which.
        epsilon: added to the mean square.
        at_rest: where activations lie.
    """

    norm: Norm
    epsilon: float
    at_rest: Resting

    @property
    def has_mean(self) -> bool:
        """Whether the mean is taken off, and there are shifts."""
        return self.norm is Norm.LAYER

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        at_rest = self.at_rest
        return memory_bytes(4 * at_rest.size + 3 * at_rest.tokens + 4 * at_rest.features)

    @property
    def cycles(self) -> int:
        """Predicted cycles of the forward pass.

        They are those of its operations, one behind the other, of the instructions between them,
        and of :attr:`_roots`. The last operation's results are waited for.
        """
        at_rest, mean = self.at_rest, self.has_mean
        taken = self._around(is_backward=False) + self._roots + at_rest.sums_drain_cycles
        taken += (1 + mean) * self._of_features + at_rest.sums_cycles(at_rest.tokens)
        taken += 2 * self._of_all("fmuls", MEETS) + self._of_all("fmuls", AGAIN)
        if mean:
            taken += at_rest.sums_cycles(at_rest.tokens, follows=True)
            taken += chain_cycles(of_one("fmuls"), at_rest.tokens, at_rest.arch)
            taken += self._of_all("fsubs") + self._of_all("fadds", AGAIN)
        return at_rest.begin_cycles + taken + self._timing.drain_cycles

    @property
    def backward_cycles(self) -> int:
        """Predicted cycles of the backward pass, in the same way.

        A row's sums begin with the load of a pointer, which waits for the last operation.
        """
        at_rest, mean, timing = self.at_rest, self.has_mean, self._timing
        numbers = 1 + mean
        taken = self._around(is_backward=True) + at_rest.sums_cycles(numbers * at_rest.tokens)
        taken += numbers * (self._of_features + self._of_tokens)
        taken += chain_cycles(of_one("fmuls"), numbers * at_rest.tokens, at_rest.arch)
        taken += 3 * self._of_all("fmuls", MEETS) + self._of_all("fmuls", AGAIN)
        taken += self._of_all("fmuls") + numbers * self._of_all("fsubs", MEETS)
        taken += timing.drain_cycles + load_cycles(1, timing.load_latency)
        ready = np.full(at_rest.grid.columns, LOOK_CYCLES + taken)
        return at_rest.row_end(ready, 2 * at_rest.features)

    @property
    def _timing(self) -> Timing:
        return GENERATIONS[self.at_rest.arch].timing

    @property
    def _roots(self) -> int:
        """Of one over each token's root, in the order of ``<kernels/inverse_root>``.

        Its sum is loaded, scaled, and epsilon is added; half of that, and the guess, a shift and a
        difference of two words each, are issued meanwhile. Three steps of Newton are four
        operations each, and all wait for one another. Two addresses and a store remain.
        """
        timing = self._timing
        guess, steps, stored = 1 + 2 + 2, 3 * 4, 2 + 1
        waits = timing.load_latency + (2 + steps) * timing.float_latency
        tokens, arch = self.at_rest.tokens, self.at_rest.arch
        loop = loop_cycles(tokens, arch) if tokens > _MOST_UNROLLED else 0
        return tokens * (waits + guess + stored) + loop

    def _around(self, *, is_backward: bool) -> int:
        """Of loads of pointers and of instructions between operations."""
        own, of_mean = _PASS_CYCLES[is_backward]
        pointers = load_cycles(_POINTERS[is_backward], self._timing.load_latency)
        return pointers + own + self.has_mean * of_mean

    def _of_all(self, name: str, turns: int = ONE_TURN) -> int:
        return Operation(name, turns=turns).cycles(self.at_rest.size, self.at_rest.arch)

    @property
    def _of_features(self) -> int:
        """Of a sum over the PE's features of each token."""
        return _SUM_CYCLES + self._zeros(self.at_rest.tokens) + self._of_all("fadds", MEETS)

    @property
    def _of_tokens(self) -> int:
        """Of a sum over the PE's tokens of each feature."""
        return _SUM_CYCLES + self._zeros(self.at_rest.features) + self._of_all("fadds", MEETS)

    def _zeros(self, num_sums: int) -> int:
        return Operation("fmovs", num_registers=1).cycles(num_sums, self.at_rest.arch)

    def forward(
        self,
        x: NDArray[Any],
        scales: NDArray[Any],
        shifts: NDArray[Any] | None = None,
        *,
        check: bool = False,
    ) -> NormResult:
        """The norm on the simulated wafer.

        Args:
            x: (features, tokens), float32, finite.
            scales: (features,), float32, finite.
            shifts: the same, of layer norm.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes or types are others, shifts are missing or too many.
        """
        if (shifts is None) == self.has_mean:
            what = "scales and shifts" if self.has_mean else "scales alone"
            raise error("kernel-operands", f"{self.norm} norm takes {what}", help=f"give {what}")
        at_rest = self.at_rest
        given = at_rest.spread("X", x), self._numbers(scales, shifts)
        with compiled("layers", at_rest.arch, self._params(is_backward=False)).run(
            check=check
        ) as run:
            run["x"], run["scales"] = given
            run.launch("main")
            return NormResult(
                at_rest.collected(run["y"]),
                at_rest.collected(run["normal"]),
                run["roots"][0].ravel()[: at_rest.num_tokens],
                cycles_of(run, at_rest.arch),
            )

    def backward(
        self, dy: NDArray[Any], scales: NDArray[Any], kept: NormResult, *, check: bool = False
    ) -> NormGradients:
        """Gradients on the simulated wafer.

        Args:
            dy: gradients of the result, (features, tokens), float32, finite.
            scales: (features,), float32, finite.
            kept: what :meth:`forward` gave.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes or types are others, or values are not finite.
        """
        at_rest = self.at_rest
        given = at_rest.spread("DY", dy), self._numbers(scales, None)
        normal = at_rest.spread("normal", kept.normal)
        roots = np.ones(at_rest.grid.columns * at_rest.tokens, np.float32)
        roots[: at_rest.num_tokens] = kept.roots
        by_column = roots.reshape(1, at_rest.grid.columns, -1)
        with compiled("layers", at_rest.arch, self._params(is_backward=True)).run(
            check=check
        ) as run:
            run["x"], run["scales"] = given
            run["normal"], run["roots"] = normal, by_column.repeat(at_rest.grid.rows, 0)
            run.launch("main")
            sums = run["dscales"][:, 0].reshape(at_rest.grid.rows, 2, -1)
            return NormGradients(
                at_rest.collected(run["y"]),
                at_rest.dealing.collected(sums[:, 0]),
                at_rest.dealing.collected(sums[:, 1]) if self.has_mean else None,
                cycles_of(run, at_rest.arch),
            )

    def _numbers(self, scales: NDArray[Any], shifts: NDArray[Any] | None) -> NDArray[Any]:
        spread = self.at_rest.of_features("scales", scales)
        others = np.zeros_like(spread)
        if shifts is not None:
            others = self.at_rest.of_features("shifts", shifts)
        return np.concatenate([spread, others], axis=2)

    def _params(self, *, is_backward: bool) -> dict[str, Param]:
        return {
            **self.at_rest.params,
            "layer": list(Norm).index(self.norm),
            "epsilon": self.epsilon,
            "is_backward": is_backward,
        }

    def error_bound(
        self, x: NDArray[Any], scales: NDArray[Any], shifts: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Bound of the error of each value of the forward pass.

        Each rounding is at most u = 2**-24 of its result, a sum of n numbers ``gamma(n)`` of its
        terms' magnitudes; errors of what goes in are taken along. It is infinite where the mean
        square may vanish in its error.

        Args:
            x: (features, tokens), finite.
            scales: (features,).
            shifts: the same, of layer norm.
        """
        normal, error_of_normal, _, _ = self._normal(x)
        scale = np.abs(scales.astype(float))[:, None]
        shift = 0.0 if shifts is None else np.abs(shifts.astype(float))[:, None]
        product = scale * (np.abs(normal) + error_of_normal)
        off: NDArray[np.float64] = scale * error_of_normal + UNIT * product + _LEAST
        return off if shifts is None else off + UNIT * (product * (1 + UNIT) + shift)

    def _normal(
        self, x: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Normalized features and the bound of their error; roots and that of theirs, a share."""
        exact = x.astype(np.float64)
        roundings = self.at_rest.num_additions
        mean, of_mean = np.zeros(exact.shape[1]), np.zeros(exact.shape[1])
        if self.has_mean:
            mean = exact.mean(0)
            of_mean = gamma(roundings + 2, _F32) * np.abs(exact).mean(0) + _LEAST
        centred = exact - mean
        size = np.abs(centred)
        of_centred = (of_mean + UNIT * (size + of_mean)) if self.has_mean else np.zeros_like(size)
        square = (size**2).mean(0) + float(np.float32(self.epsilon))
        squares = ((size + of_centred) ** 2).mean(0)
        off = (2 * size * of_centred + of_centred**2).mean(0)
        off += gamma(roundings + 3, _F32) * squares + _LEAST
        share = off / square
        with np.errstate(divide="ignore", invalid="ignore"):
            of_root = np.where(share < 1, (1 - share) ** -0.5 - 1, np.inf)
        of_root = (1 + of_root) * (1 + gamma(_ROOT_ROUNDINGS, _F32)) - 1
        root = square**-0.5
        most = (size + of_centred) * root * (1 + of_root) * (1 + UNIT) + _LEAST
        return centred * root, most - size * root, root, of_root

    def gradient_bounds(
        self, dy: NDArray[Any], x: NDArray[Any], scales: NDArray[Any]
    ) -> NormGradients:
        """Bounds of the errors of the gradients, with those of the forward pass.

        Args:
            dy: gradients of the result, (features, tokens).
            x: (features, tokens), finite.
            scales: (features,).
        """
        normal, of_normal, root, of_root = self._normal(x)
        size, given = np.abs(normal), np.abs(dy.astype(float))
        exact = dy.astype(float) * scales.astype(float)[:, None]
        scaled, roundings = np.abs(exact), self.at_rest.num_additions
        along = np.abs((exact * normal).mean(0))
        of_along = (scaled * of_normal).mean(0) + _LEAST
        of_along += gamma(roundings + 5, _F32) * (scaled * (size + of_normal)).mean(0)
        mean = np.abs(exact.mean(0)) if self.has_mean else np.zeros_like(along)
        of_mean = gamma(roundings + 4, _F32) * scaled.mean(0) + _LEAST if self.has_mean else mean
        parts = scaled + (size + of_normal) * (along + of_along) + mean + of_mean
        off = of_normal * along + (size + of_normal) * of_along + of_mean
        off += gamma(4, _F32) * parts + _LEAST
        whole = np.abs(exact - normal * (exact * normal).mean(0))
        whole += mean
        of_values = root * ((whole + off) * (1 + of_root) * (1 + UNIT) - whole) + _LEAST
        tokens = self.at_rest.tokens + self.at_rest.grid.columns + 1
        of_scales = (given * of_normal).sum(1) + _LEAST * given.shape[1]
        of_scales += gamma(tokens, _F32) * (given * (size + of_normal)).sum(1)
        of_shifts = gamma(tokens, _F32) * given.sum(1) if self.has_mean else None
        return NormGradients(of_values, of_scales, of_shifts, 0)


@takes_operands
def plan_norm(
    norm: str,
    shape: tuple[int, int],
    size: tuple[int, int],
    *,
    epsilon: float = 1e-5,
    arch: str = Arch.WSE3,
) -> NormPlan:
    """Plan a norm of activations at rest.

    Args:
        norm: ``"layer"`` or ``"rms"``.
        shape: features and tokens.
        size: rows and columns of PEs.
        epsilon: added to the mean square, 1e-30 to 1e30.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE, or epsilon is another number.
    """
    kind = known("norm is", norm, Norm)
    if not 1e-30 <= epsilon <= 1e30:
        raise error(
            "option-value", f"epsilon is {epsilon}", help="give a number from 1e-30 to 1e30"
        )
    plan = NormPlan(kind, epsilon, resting(shape, size, arch))
    check_fit(plan.at_rest, plan.memory_bytes)
    return plan


@takes_operands
def layer_norm(
    x: NDArray[Any],
    scales: NDArray[Any],
    shifts: NDArray[Any],
    size: tuple[int, int],
    *,
    epsilon: float = 1e-5,
    arch: str = Arch.WSE3,
) -> Result:
    """Features less their mean, over their root mean square, scaled and shifted.

    Errors are at most :meth:`NormPlan.error_bound`. The order of sums is that of the plan, so the
    bits repeat.

    Args:
        x: (features, tokens), float32, finite.
        scales: (features,), float32, finite.
        shifts: the same.
        size: rows and columns of PEs.
        epsilon: added to the mean square.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    plan = plan_norm(Norm.LAYER, shape_of(x), size, epsilon=epsilon, arch=arch)
    result = plan.forward(x, scales, shifts)
    return Result(result.values, result.cycles)


@takes_operands
def rms_norm(
    x: NDArray[Any],
    scales: NDArray[Any],
    size: tuple[int, int],
    *,
    epsilon: float = 1e-5,
    arch: str = Arch.WSE3,
) -> Result:
    """Features over their root mean square, scaled; see :func:`layer_norm`."""
    plan = plan_norm(Norm.RMS, shape_of(x), size, epsilon=epsilon, arch=arch)
    result = plan.forward(x, scales)
    return Result(result.values, result.cycles)
