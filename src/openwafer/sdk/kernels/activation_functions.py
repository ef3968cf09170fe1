"""GELU, SiLU and SwiGLU of activations that rest on the wafer, and their gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.elementary import (
    CHUNK,
    LEAST_POWER,
    chunks,
    exponential_cycles,
    inverse_cycles,
)
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.operations import (
    MEETS,
    Operation,
    chain_cycles,
    of_again,
    of_one,
    of_two,
    that_meet,
)
from openwafer.sdk.kernels.precision import UNIT
from openwafer.sdk.kernels.resting import Resting, check_fit, memory_bytes, resting, shape_of
from openwafer.sdk.kernels.running import Result, compiled, cycles_of, known, loop_cycles

_POINTER_CYCLES: Final = 4
"""Of the instructions from the operation before exponentials to their first load."""
_MOST: Final = 1e12
"""Magnitude whose cube is a number."""
_SLOPE: Final = 2 * np.sqrt(2 / np.pi)
_CUBE: Final = 0.044715
_LAYERS: Final = (2, 3, 4, 8)
"""Numbers in the program."""
_TAIL: Final = np.array([0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429])
"""Abramowitz and Stegun, 7.1.26: numbers of a polynomial without its constant."""
_TAIL_SLOPE: Final = 0.3275911
_TAIL_ERROR: Final = 1.5e-7


_SHARES: Final = of_one("fmaxs", "fnegs", "fadds")
"""Operations of x times its logistic function, beside those of exponentials and inverses."""
_TAILS: Final = (
    *(*that_meet("fmuls"), *of_one("fmuls", "fabss", "fmuls", "fadds"), *of_again("fmacs")),
    *3 * (*of_two("fmuls"), *of_one("fadds")),
    *of_two("fmuls", "fmuls"),
)
"""The same of the error function's tail."""


class ActivationFunction(StrEnum):
    """By a tanh, by the logistic function, by that of a gate, and by the error function."""

    GELU = "gelu"
    SILU = "silu"
    SWIGLU = "swiglu"
    GELU_ERF = "gelu-erf"


class _Pass(NamedTuple):
    """What a pass takes.

    Attributes:
        pointers: that are loaded before.
        instructions: between a chunk's operations.
        num_drains: of a chunk: pointers that are read behind an operation, whose results they
            wait for.
        operations: of a chunk, without those that the passes begin with.
    """

    pointers: int
    instructions: int
    num_drains: int
    operations: tuple[Operation, ...]


_SLOPES: Final = (*of_one("fadds"), *of_two("fmuls"))
_PASSES: Final[Mapping[ActivationFunction, tuple[_Pass, _Pass]]] = MappingProxyType(
    {
        ActivationFunction.GELU: (
            _Pass(3, 41, 0, of_two("fmuls")),
            _Pass(
                *(5, 66, 1),
                (
                    *(*of_two("fmuls"), *that_meet("fmuls"), *of_again("fmacs")),
                    *(*that_meet("fmuls", "fmuls"), *_SLOPES, *that_meet("fmuls")),
                ),
            ),
        ),
        ActivationFunction.SILU: (
            _Pass(3, 37, 0, of_two("fmuls")),
            _Pass(
                *(5, 56, 1),
                (*of_two("fmuls"), *that_meet("fmuls"), *_SLOPES, *that_meet("fmuls")),
            ),
        ),
        ActivationFunction.SWIGLU: (
            _Pass(3, 40, 1, of_two("fmuls", "fmuls")),
            _Pass(
                *(5, 70, 3),
                (
                    *(*of_two("fmuls"), *that_meet("fmuls"), *_SLOPES, *of_two("fmuls")),
                    *(*that_meet("fmuls"), *of_two("fmuls"), *that_meet("fmuls")),
                ),
            ),
        ),
        ActivationFunction.GELU_ERF: (
            _Pass(
                *(2, 71, 1),
                (*of_one("fabss"), *of_two("fmuls"), *of_one("fmaxs"), *of_two("fmacs")),
            ),
            _Pass(
                *(3, 93, 2),
                (
                    *of_one("fmuls", "fadds"),
                    Operation("and16", num_registers=2, strides=(2,)),
                    Operation("or16", turns=MEETS, strides=(2,)),
                    *(*of_one("fadds"), *that_meet("fmuls"), *of_two("fmacs", "fmuls")),
                ),
            ),
        ),
    }
)
"""Forward and backward, by the lines of ``<kernels/activation>`` and ``<kernels/gelu_erf>``."""


@dataclass(frozen=True, eq=False)
class ActivationGradients:
    """Gradients of an activation function.

    Attributes:
        values: of its input, that of the gate for SwiGLU; (features, tokens).
        others: of what the gate is multiplied with; None for others.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    others: NDArray[Any] | None
    cycles: int


@dataclass(frozen=True)
class ActivationPlan:
    """How an activation function is computed, before anything is compiled.

    Each PE computes its own numbers by vector operations: ``x / (1 + exp(-v(x)))``, with x for
    v(x), or ``2 sqrt(2 / pi) (x + 0.044715 x^3)``, which is GELU's form by a tanh. That by the
    error function takes its tail from a polynomial times an exponential.

    Attributes:
        function: which.
        at_rest: where activations lie.
    """

    function: ActivationFunction
    at_rest: Resting

    @property
    def is_gated(self) -> bool:
        """Whether there are others that the function is multiplied with."""
        return self.function is ActivationFunction.SWIGLU

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code; of the backward pass."""
        return memory_bytes((5 if self.is_gated else 3) * self.at_rest.size + 5 * CHUNK)

    @property
    def has_erf(self) -> bool:
        """Whether it is GELU by the error function."""
        return self.function is ActivationFunction.GELU_ERF

    @property
    def cycles(self) -> int:
        """Predicted cycles of the forward pass."""
        return self._taken(is_backward=False)

    @property
    def backward_cycles(self) -> int:
        """Predicted cycles of the backward pass."""
        return self._taken(is_backward=True)

    def _taken(self, *, is_backward: bool) -> int:
        """Of loads of pointers, and of chunks one behind the other.

        Exponentials begin with a pointer that is read behind an operation and some instructions.
        The last operation's results are there when the loop has ended.
        """
        at_rest, arch = self.at_rest, self.at_rest.arch
        timing = GENERATIONS[arch].timing
        own = _PASSES[self.function][is_backward]
        operations = (*self._shares, *own.operations)
        lengths = chunks(at_rest.size)
        taken = at_rest.begin_cycles + load_cycles(own.pointers, timing.load_latency)
        for length in lengths:
            taken += own.instructions + own.num_drains * timing.drain_cycles
            taken += max(0, timing.drain_cycles - _POINTER_CYCLES)
            taken += chain_cycles(operations, length, arch)
            taken += exponential_cycles(length, arch) + inverse_cycles(length, arch)
        return taken + loop_cycles(len(lengths), arch)

    @property
    def _shares(self) -> tuple[Operation, ...]:
        """What both passes begin with, without exponentials and inverses."""
        match self.function:
            case ActivationFunction.GELU_ERF:
                return _TAILS
            case ActivationFunction.GELU:
                return (*that_meet("fmuls"), *of_again("fmacs"), *that_meet("fmuls"), *_SHARES)
            case _:
                return _SHARES

    def forward(
        self, x: NDArray[Any], others: NDArray[Any] | None = None, *, check: bool = False
    ) -> Result:
        """The function on the simulated wafer.

        Args:
            x: (features, tokens), float32, magnitudes up to 1e12; the gate of SwiGLU.
            others: the same; what SwiGLU multiplies.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes, types or magnitudes are others, or others are missing.
        """
        spread = self._spread(x, others)
        with compiled("layers", self.at_rest.arch, self._params(is_backward=False)).run(
            check=check
        ) as run:
            for name, values in spread.items():
                run[name] = values
            run.launch("main")
            return Result(self.at_rest.collected(run["y"]), cycles_of(run, self.at_rest.arch))

    def backward(
        self,
        dy: NDArray[Any],
        x: NDArray[Any],
        others: NDArray[Any] | None = None,
        *,
        check: bool = False,
    ) -> ActivationGradients:
        """Gradients on the simulated wafer.

        Args:
            dy: gradients of the result, (features, tokens), float32, finite.
            x: as forward.
            others: as forward.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes, types or magnitudes are others, or others are missing.
        """
        at_rest = self.at_rest
        spread = {"dy": at_rest.spread("DY", dy), **self._spread(x, others)}
        with compiled("layers", at_rest.arch, self._params(is_backward=True)).run(
            check=check
        ) as run:
            for name, values in spread.items():
                run[name] = values
            run.launch("main")
            dx = at_rest.collected(run["y"])
            dothers = at_rest.collected(run["dothers"]) if self.is_gated else None
            return ActivationGradients(dx, dothers, cycles_of(run, at_rest.arch))

    def _spread(self, x: NDArray[Any], others: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
        if (others is None) == self.is_gated:
            what = "a gate and others" if self.is_gated else "one matrix"
            raise error("kernel-operands", f"{self.function} takes {what}", help=f"give {what}")
        spread = {"x": self.at_rest.spread("X", x)}
        largest = float(np.abs(x).max())
        if largest > _MOST:
            raise error(
                "kernel-range",
                f"X has a value of magnitude {largest:g}; {self.function} takes up to {_MOST:g}",
                help="scale it",
            )
        if others is not None:
            spread["others"] = self.at_rest.spread("others", others)
        return spread

    def _params(self, *, is_backward: bool) -> dict[str, Param]:
        layer = _LAYERS[list(ActivationFunction).index(self.function)]
        return {**self.at_rest.params, "layer": layer, "is_backward": is_backward}

    def error_bound(
        self, x: NDArray[Any], others: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Bound of the error of each value of the forward pass.

        v(x) is off by 6 units of 2**-24 of it, exponentials by 4, inverses by 5; where v is below
        -87, exponentials are that of -87. The tail of the error function is off by 1.5e-7.

        Args:
            x: (features, tokens).
            others: the same, of SwiGLU.
        """
        if self.has_erf:
            return _erf_bounds(x.astype(float))[0]
        wide, factor = x.astype(float), 1.0 if others is None else others.astype(float)
        share, of_share = self._share(wide)
        off = np.abs(wide * factor) * (share * (of_share + 3 * UNIT) + LEAST_POWER)
        found: NDArray[np.float64] = off + LEAST_POWER
        return found

    def _share(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What x is multiplied with, and the bound of its error as a share of it."""
        share, rest, of_power = self._powers(x)
        off = rest * of_power + 7 * UNIT
        return share, off / (1 - np.minimum(off, 0.5))

    def _powers(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """The share, what is left to 1, and the bound of the error of exp(-v) as a share of it."""
        is_gelu = self.function is ActivationFunction.GELU
        v = _SLOPE * (x + _CUBE * x**3) if is_gelu else x
        least = np.clip(v, -700, 700)
        share, rest = 1 / (1 + np.exp(-least)), 1 / (1 + np.exp(least))
        of_v = 6 * UNIT * np.abs(least) if is_gelu else np.zeros_like(x)
        return share, rest, np.expm1(of_v) + 5 * UNIT

    def gradient_bounds(
        self, dy: NDArray[Any], x: NDArray[Any], others: NDArray[Any] | None = None
    ) -> ActivationGradients:
        """Bounds of the errors of the gradients.

        Args:
            dy: gradients of the result.
            x: (features, tokens).
            others: the same, of SwiGLU.
        """
        wide, given = x.astype(float), np.abs(dy.astype(float))
        if self.has_erf:
            return ActivationGradients(given * _erf_bounds(wide)[1] + LEAST_POWER, None, 0)
        factor = 1.0 if others is None else np.abs(others.astype(float))
        share, rest, of_power = self._powers(wide)
        _, of_share = self._share(wide)
        is_gelu = self.function is ActivationFunction.GELU
        slope = _SLOPE * (1 + 3 * _CUBE * wide**2) if is_gelu else np.ones_like(wide)
        term = np.abs(wide) * slope * rest
        off = term * (of_power + of_share + 12 * UNIT) + (1 + term) * (of_share + 6 * UNIT)
        lost = (1 + np.abs(wide) * slope) * LEAST_POWER
        of_values = given * factor * (1.01 * share * off + lost) + LEAST_POWER
        of_others = given * np.abs(wide) * (share * (of_share + 4 * UNIT) + LEAST_POWER)
        return ActivationGradients(of_values, of_others + LEAST_POWER if self.is_gated else None, 0)


def _erf_bounds(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the errors of GELU by the error function, and of its slope."""
    size = np.abs(x)
    t, power = 1 / (1 + _TAIL_SLOPE * size / np.sqrt(2)), np.exp(-np.minimum(x**2 / 2, 700))
    orders = np.arange(1, 6)
    powers_of_t = t[..., None] ** orders
    tail = (powers_of_t @ _TAIL) * power
    by_t, sizes = np.abs(powers_of_t @ (orders * _TAIL)), powers_of_t @ np.abs(_TAIL)
    of_power = UNIT * (x**2 + 6) * power + LEAST_POWER
    off = _TAIL_ERROR + 1.01 * UNIT * power * (8 * by_t + 12 * sizes)
    off += 1.01 * (tail / power) * of_power
    density = 1 / np.sqrt(2 * np.pi)
    of_values = size * (0.5 * off + UNIT * (2 * tail + 1)) + LEAST_POWER
    of_slope = 0.5 * off + density * size * (of_power + 4 * UNIT * power) + 5 * UNIT
    return of_values, of_slope


@takes_operands
def plan_activation(
    function: str, shape: tuple[int, int], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> ActivationPlan:
    """Plan an activation function of activations at rest.

    Args:
        function: ``"gelu"``, which has the form of a tanh, ``"gelu-erf"``, ``"silu"`` or
            ``"swiglu"``.
        shape: features and tokens.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE.
    """
    kind = known("function is", function, ActivationFunction)
    plan = ActivationPlan(kind, resting(shape, size, arch))
    check_fit(plan.at_rest, plan.memory_bytes)
    return plan


@takes_operands
def gelu(x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """GELU in the form of a tanh; errors are at most :meth:`ActivationPlan.error_bound`.

    Args:
        x: (features, tokens), float32, magnitudes up to 1e12.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    return plan_activation(ActivationFunction.GELU, shape_of(x), size, arch=arch).forward(x)


@takes_operands
def gelu_erf(x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """GELU by the error function; see :func:`gelu`."""
    return plan_activation(ActivationFunction.GELU_ERF, shape_of(x), size, arch=arch).forward(x)


@takes_operands
def silu(x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """x times its logistic function; see :func:`gelu`."""
    return plan_activation(ActivationFunction.SILU, shape_of(x), size, arch=arch).forward(x)


@takes_operands
def swiglu(
    gate: NDArray[Any], x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> Result:
    """:func:`silu` of a gate times x, element by element; see :func:`gelu`."""
    plan = plan_activation(ActivationFunction.SWIGLU, shape_of(gate), size, arch=arch)
    return plan.forward(gate, x)
