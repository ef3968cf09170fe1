"""Cross-entropy of logits that rest on the wafer, and its gradient, in one pass."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.ir.prices import (
    constant_product_cycles,
    constant_quotient_cycles,
    constant_remainder_cycles,
)
from openwafer.sdk.kernels.elementary import LEAST_POWER, exponential_cycles
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.operations import Operation, chain_cycles, in_place, of_one, of_two
from openwafer.sdk.kernels.precision import UNIT, gamma
from openwafer.sdk.kernels.resting import (
    Resting,
    check_fit,
    memory_bytes,
    resting,
    shape_of,
)
from openwafer.sdk.kernels.running import LOOK_CYCLES, compiled, cycles_of, loop_cycles

IGNORED: Final = -100
"""Label of a token that is left out."""
_LAYER: Final = 5
"""Number in the program."""
_POINTERS: Final = 5
"""Loads of pointers before the pass."""
_CYCLES: Final = 12
"""Of its instructions between operations, without those of exponentials."""
_TOKEN_CYCLES: Final = 31
"""Of a token's instructions, and of what they wait for, whatever its label is."""
_LABEL_CYCLES: Final = 43
"""Of those more where it has a label, without a logarithm, a division and two remainders."""
_IGNORED_CYCLES: Final = 38
"""Of those more where it has none."""
_OWN_CYCLES: Final = 20
"""Of those more on the PE that has the label's logit, without two places of it."""
_MOST_UNROLLED: Final = (12, 8, 12)
"""Tokens whose loops are written out: what is picked, losses, and what is taken off."""


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """Losses and their gradients.

    Attributes:
        losses: (tokens,), zeros where labels are ignored.
        gradients: of the mean of the others, (classes, tokens).
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    losses: NDArray[Any]
    gradients: NDArray[Any]
    cycles: int


@dataclass(frozen=True)
class CrossEntropyPlan:
    """How losses are computed, before anything is compiled.

    Classes lie in rows of PEs. A column takes its tokens' greatest logits, then adds up the
    exponentials of what is left without them and the labels' own ones, in one message.

    Attributes:
        at_rest: where logits lie.
    """

    at_rest: Resting

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        return memory_bytes(self.at_rest.size + 4 * self.at_rest.tokens + 130)

    @property
    def cycles(self) -> int:
        """Predicted cycles, if each row of PEs has as many of a column's labels as another.

        A label and what is picked by it are read behind the operation before, and sums behind what
        brings them.
        """
        at_rest, columns = self.at_rest, self.at_rest.grid.columns
        arch, tokens, size = at_rest.arch, at_rest.tokens, at_rest.size
        timing = GENERATIONS[arch].timing
        taken = LOOK_CYCLES + load_cycles(_POINTERS, timing.load_latency) + _CYCLES
        taken += chain_cycles((*of_one("fmovs"), Operation("fmovs", num_registers=1)), tokens, arch)
        each = (*in_place("fmaxs", "fsubs", "fadds", arch=arch), *of_two("fmuls"))
        taken += chain_cycles(each, size, arch) + exponential_cycles(size, arch)
        taken += at_rest.sums_cycles(tokens) + at_rest.sums_cycles(2 * tokens, follows=True)
        taken += 2 * timing.drain_cycles + at_rest.sums_drain_cycles
        late = timing.hop_cycles * np.arange(columns)
        return taken + int((self._of_tokens(timing) + late).max())

    def _of_tokens(self, timing: Timing) -> NDArray[np.int64]:
        """Of scalar code for the tokens of each column of PEs, of which the last may be padded.

        Whether a row of PEs has a label takes a remainder, and its place there a quotient and a
        product.
        """
        at_rest, tokens, rows = self.at_rest, self.at_rest.tokens, self.at_rest.grid.rows
        remainder = constant_remainder_cycles(1, rows)
        place = constant_quotient_cycles(1, rows) + constant_product_cycles(1, tokens) + 1
        of_own = _OWN_CYCLES + 2 * place
        of_label = _LABEL_CYCLES + 2 * remainder + timing.function_cycles + timing.divide_cycles
        counts = at_rest.tokens_of_columns
        taken = tokens * _TOKEN_CYCLES + counts * of_label + (tokens - counts) * _IGNORED_CYCLES
        taken += -(-counts // rows) * of_own
        for most in _MOST_UNROLLED:
            if tokens > most:
                taken += loop_cycles(tokens, at_rest.arch) + tokens
        return taken

    @takes_operands
    def run(
        self, logits: NDArray[Any], labels: NDArray[Any], *, check: bool = False
    ) -> CrossEntropy:
        """Losses and gradients on the simulated wafer.

        Args:
            logits: (classes, tokens), float32, finite.
            labels: (tokens,), integers from 0 to the classes, or -100 where a token is ignored.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes, types or labels are others.
        """
        at_rest, grid = self.at_rest, self.at_rest.grid
        given, weight = at_rest.spread("logits", logits), self._weight(labels)
        padded = np.full(grid.columns * grid.tokens, IGNORED, np.int32)
        padded[: at_rest.num_tokens] = labels
        with compiled("layers", at_rest.arch, self._params).run(check=check) as run:
            run["x"] = given
            run["labels"] = padded.reshape(1, grid.columns, -1).repeat(grid.rows, 0)
            run["weight"] = np.full((grid.rows, grid.columns, 1), weight)
            run.launch("main")
            return CrossEntropy(
                run["losses"][0].ravel()[: at_rest.num_tokens].copy(),
                at_rest.collected(run["y"]),
                cycles_of(run, at_rest.arch),
            )

    @property
    def _params(self) -> dict[str, Param]:
        return {**self.at_rest.params, "layer": _LAYER}

    def _weight(self, labels: NDArray[Any]) -> np.float32:
        """One over the tokens that count; looks at labels."""
        shape, classes = (self.at_rest.num_tokens,), self.at_rest.num_features
        if labels.shape != shape or labels.dtype.kind not in "iu":
            raise error(
                "kernel-shape",
                f"labels are {labels.dtype} of the shape {labels.shape}; the plan is for {shape}",
                help="give an integer for each token",
            )
        wrong = (labels != IGNORED) & ((labels < 0) | (labels >= classes))
        if wrong.any():
            place = int(np.argmax(wrong))
            raise error(
                "kernel-label",
                f"label {labels[place]} of token {place}; there are {classes} classes",
                help=f"give 0 to {classes - 1}, or {IGNORED} for a token that is ignored",
            )
        return np.float32(1 / max(1, int(np.count_nonzero(labels != IGNORED))))

    def error_bounds(self, logits: NDArray[Any], labels: NDArray[Any]) -> CrossEntropy:
        """Bounds of the errors of losses and gradients.

        A logit less the greatest one is off by a unit of 2**-24 of it, its exponential by 4 more,
        a sum of n of them by ``gamma(n)``; what is below -87 counts as -87.

        Args:
            logits: (classes, tokens), finite.
            labels: (tokens,).
        """
        weight, counts = float(self._weight(labels)), labels != IGNORED
        below = logits.astype(float) - logits.max(0)
        powers = np.exp(below)
        whole = powers.sum(0)
        of_power = np.expm1(UNIT * np.abs(below)) + 5 * UNIT
        shares = powers / whole
        of_whole = (shares * of_power).sum(0) + logits.shape[0] * LEAST_POWER
        of_whole += gamma(self.at_rest.num_additions + 1, np.dtype(np.float32))
        own = np.abs(below[np.clip(labels, 0, None), np.arange(len(labels))])
        of_loss = 1.01 * of_whole + 3 * UNIT * (np.log(whole) + own) + LEAST_POWER
        off = shares * (of_power + of_whole + 4 * UNIT) * 1.01 + LEAST_POWER
        off[np.clip(labels, 0, None), np.arange(len(labels))] += 2 * UNIT
        return CrossEntropy(of_loss * counts, weight * off * counts, 0)


@takes_operands
def plan_cross_entropy(
    shape: tuple[int, int], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> CrossEntropyPlan:
    """Plan the cross-entropy of logits at rest.

    Args:
        shape: classes and tokens.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE.
    """
    plan = CrossEntropyPlan(resting(shape, size, arch, message=2))
    check_fit(plan.at_rest, plan.memory_bytes)
    return plan


@takes_operands
def cross_entropy(
    logits: NDArray[Any], labels: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> CrossEntropy:
    """Losses of tokens, and gradients of their mean, in one pass.

    Errors are at most :meth:`CrossEntropyPlan.error_bounds`.

    Args:
        logits: (classes, tokens), float32, finite.
        labels: (tokens,), integers from 0 to the classes, or -100 where a token is ignored.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shapes, types or labels do not fit, or the rectangle or its memory is too
            small.
    """
    return plan_cross_entropy(shape_of(logits), size, arch=arch).run(logits, labels)
