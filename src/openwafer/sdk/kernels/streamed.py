"""Products whose weights stream in over the edge, while activations stay on the wafer."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, WORD_BYTES, Arch
from openwafer.sdk.door.compiled import QUIET, Param
from openwafer.sdk.fabric import Edge, Port, Side
from openwafer.sdk.kernels.operands import check_fields, check_finite, takes_operands
from openwafer.sdk.kernels.operations import Operation, end_cycles
from openwafer.sdk.kernels.precision import (
    Precision,
    bound_of_products,
    precision_of,
)
from openwafer.sdk.kernels.products import tile_length, zeros_cycles
from openwafer.sdk.kernels.resting import Grid
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    MEMORY_BYTES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.sparse_tiles import Dealing, Ints, canonical, deal, in_turns
from openwafer.sdk.kernels.trees import start_delay, way_cycles
from openwafer.sdk.kernels.weight_streams import WeightStreams

_COLOR: Final = 0
"""On which weights enter."""
_MOST_FOLD: Final = 4
"""Rings of a column: each takes three colors."""
_DEPTHS: Final = (16, 8, 4, 2)
"""Sums of outputs that a PE may hold, powers of two."""
_WEIGHT_CYCLES: Final = 6
"""Of a task's instructions for a weight, before the register that it loads."""
_OTHER_CYCLES: Final = 3
"""Fewer, of each second weight that shares its wavelet, as its branch is not taken."""
_PLACE_CYCLES: Final = 12
"""Of the task for a place that comes in a wavelet of its own."""
_BEGIN_CYCLES: Final = 38
"""Of the launched function from its look at the clock on, beside the first reset."""
_RING_CYCLES: Final = 13
"""More of it where there is a ring, whose first PE finds what it does with the first sum."""
_END_CYCLES: Final = 62
"""Of the task that ends an output, beside its reset, where there is no ring."""
_ROLE_CYCLES: Final = (97, 93, 87)
"""The same in a ring: of a sum that ends, begins, or goes on."""
_OWNER_CYCLES: Final = 37
"""More of it behind the last sum of an owner, in which the first PE finds what it does next."""
_LAST_CYCLES: Final = 26
"""Less of it behind the last output, as no other begins."""
_BEHIND_CYCLES: Final = 66
"""Of it behind the last output, from the operation of the ring on."""
_ADDED_CYCLES: Final = 34
"""Of the task behind an output's sum."""
_LEFT_CYCLES: Final = 2
"""Less of it behind the last sum."""
_COPIED_CYCLES: Final = (12, 10)
"""Of widened sums: where the last weight's lie in the other buffer, and where they do not."""
_PUBLISHED_OVERHEAD: Final = 4
"""Of an output, in times of a weight: a copy, a reset, and a sum of twice the width."""


@dataclass(frozen=True)
class Streaming:
    """How weights come to rows of PEs.

    Attributes:
        fold: rows of PEs that hold the same features, of other tokens, 1 to 4; None takes what is
            predicted to take the fewest cycles.
        num_ports: by which weights enter, of the rows of PEs one below the other.
        is_sorted: features are dealt to rows of PEs by falling count of their weights; without it
            they are dealt as they come.
    """

    fold: int | None = None
    num_ports: int = 1
    is_sorted: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, eq=False)
class StreamedPlan:
    """How Y = W X is done with X at rest, before anything is compiled.

    Features are dealt to rows of PEs, tokens lie in columns of PEs, and, with `fold` rows of PEs
    for each part of the features, in these. Weights enter in the west with the places of their
    features, and scale the tokens of a feature on all PEs of a row; a control wavelet ends an
    output. Its parts are added along a ring in each column, which begins behind the output's owner.

    Attributes:
        shape: outputs, features and tokens.
        rows: of PEs.
        columns: of PEs.
        fold: rows of PEs that hold the same features, of other tokens.
        num_ports: by which weights enter.
        tokens: of a PE, with what is padded.
        depth: sums of outputs that a PE holds while they wait for the ring.
        arch: the generation.
        precision: types of elements and sums.
        streams: the weights in their order.
    """

    shape: tuple[int, int, int]
    rows: int
    columns: int
    fold: int
    num_ports: int
    tokens: int
    depth: int
    arch: Arch
    precision: Precision
    streams: WeightStreams = field(repr=False)

    @property
    def features(self) -> int:
        """Of the PE that has most."""
        return self.streams.by_features.length

    @property
    def own_outputs(self) -> int:
        """Of a PE, with what is padded."""
        return self.streams.by_outputs.length

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        spare = 1 if self.precision.is_widened else 0
        sums = self.own_outputs + self.depth + spare
        elements = self.features * self.precision.given.itemsize
        return self.tokens * (elements + 4 * sums) + CODE_BYTES

    @property
    def weight_cycles(self) -> float:
        """Of a weight: the task that it starts, and a multiply-add for each token."""
        return self.task_cycles(Operation(self._scaling, num_registers=1))

    @property
    def _scaling(self) -> str:
        return "fmachs" if self.precision.is_widened else "fmacs"

    def task_cycles(self, scaling: Operation) -> float:
        """Of a weight: the tasks that it starts, and what the next one waits for.

        Args:
            scaling: the operation on its feature's tokens.
        """
        timing = GENERATIONS[self.arch].timing
        taken = _WEIGHT_CYCLES + scaling.cycles(self.tokens, self.arch) + end_cycles(self.arch)
        if self.precision.is_widened:
            return taken - _OTHER_CYCLES / 2 + timing.switch_cycles
        return taken + _PLACE_CYCLES + timing.wavelet_switch_cycles + timing.switch_cycles

    @property
    def parts(self) -> int:
        """Rows of PEs that hold different features: PEs of a ring."""
        return self.rows // self.fold

    @property
    def _reset_cycles(self) -> int:
        return zeros_cycles(self.tokens, self.precision, self.arch)

    @property
    def output_cycles(self) -> int:
        """Of an output: the reset of a sum, and what two tasks do in any case."""
        timing = GENERATIONS[self.arch].timing
        around = timing.switch_cycles + timing.wavelet_switch_cycles
        return self._reset_cycles + _ADDED_CYCLES + around

    @property
    def _ring_cycles(self) -> float:
        """Of the tasks that end outputs, on the first PE of a ring, which has most to do."""
        if self.parts == 1:
            copied = Operation("fmovs", num_registers=0).cycles(self.tokens, self.arch)
            return self.streams.num_outputs * (_END_CYCLES + copied)
        ends, begins, goes_on = _ROLE_CYCLES
        of_turn = ends + begins + (self.parts - 2) * goes_on
        return self.own_outputs * of_turn + self.parts * _OWNER_CYCLES

    @property
    def _copied_cycles(self) -> int:
        """Of widened sums, each second one of which lies in the other buffer and is copied back."""
        if not self.precision.is_widened:
            return 0
        num_copied, num_left = self.streams.num_odd, self.streams.num_outputs
        copy = Operation("fmovs", num_registers=0).cycles(self.tokens, self.arch)
        of_copy = _COPIED_CYCLES[0] + copy + GENERATIONS[self.arch].timing.drain_cycles
        return num_copied * of_copy + (num_left - num_copied) * _COPIED_CYCLES[1]

    @property
    def _end_cycles(self) -> int:
        """Behind the last output: its sum goes round, and the clock is looked at."""
        timing = GENERATIONS[self.arch].timing
        step = way_cycles(self.fold, self.arch)
        summed = timing.load_latency + self.tokens + step * (self.parts - 1) + timing.task_cycles
        late = max(0, summed - _BEHIND_CYCLES - timing.switch_cycles) if self.parts > 1 else 0
        less = _LAST_CYCLES + self._reset_cycles + _LEFT_CYCLES
        return late - less + timing.switch_cycles + LOOK_CYCLES

    @property
    def compute_cycles(self) -> int:
        """Predicted cycles of PEs in the forward pass: tasks of the first PE of a ring."""
        timing = GENERATIONS[self.arch].timing
        begin = _BEGIN_CYCLES + (_RING_CYCLES if self.parts > 1 else 0) + self._reset_cycles
        begin += timing.switch_cycles - timing.wavelet_switch_cycles
        begin += start_delay(self.columns, self.arch)
        of_ring = self._ring_cycles / self.streams.num_outputs
        taken = self.pass_cycles(self.weight_cycles, self.output_cycles + of_ring)
        return round(begin + taken + self._copied_cycles + self._end_cycles)

    def pass_cycles(self, of_weight: float, of_output: float) -> float:
        """Cycles of a pass: rows of PEs wait for each other.

        Args:
            of_weight: cycles of a weight.
            of_output: cycles of an output.
        """
        wavelets = self.streams.wavelets_of_weight
        return self.streams.row_cycles(of_weight, of_output, self.depth, wavelets)

    @property
    def stream_cycles(self) -> int:
        """Cycles in which the weights enter by the port that has most of them."""
        wavelets = self.streams.num_wavelets(self.streams.wavelets_of_weight)
        rate = self.edge.rate(self.edge.ports[0], self.arch, is_into=True)
        return ceil(wavelets / rate)

    @property
    def cycles(self) -> int:
        """Predicted cycles: those of the PEs, or of the ports where these take longer."""
        return max(self.compute_cycles, self.stream_cycles)

    @property
    def published_speedup(self) -> float:
        """Over all weights, by the published model: an output takes the time of four weights."""
        outputs, features, _ = self.shape
        of_row = features * self.fold / self.rows
        share: float = self.streams.matrix.nnz / (outputs * features)
        return (of_row + _PUBLISHED_OVERHEAD) / (of_row * share + _PUBLISHED_OVERHEAD)

    @property
    def edge(self) -> Edge:
        """Its ports, the first rows of PEs of all bands."""
        return _edge(self.rows, self.streams.band * self.fold)

    @property
    def num_roundings(self) -> int:
        """The most that a product goes through."""
        return int(self.streams.counts.max()) + self.rows // self.fold

    def error_bound(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each element of Y; the order of the sums is that of the plan.

        It is ``gamma(n) * |W| @ |X|`` with n = :attr:`num_roundings`, and half of the least number
        of f32 for each product.

        Args:
            x: (features, tokens), finite.
        """
        matrix = self.streams.matrix
        most = int(np.diff(matrix.indptr).max(initial=0))
        return bound_of_products(matrix, x, self.num_roundings, most, self.precision.sums)

    def forward(self, x: NDArray[Any], *, check: bool = False) -> Result:
        """Y = W X on the simulated wafer: (outputs, tokens).

        Args:
            x: (features, tokens) of the plan's shape and precision, finite.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: it has another shape or type, or is not finite.
        """
        check_operand("X", x, self.shape[1:], self.precision)
        check_finite("X", x)
        options = replace(QUIET, edge=self.edge)
        with compiled("streamed", self.arch, self.params).run(options, check=check) as run:
            run["X"] = self.spread(x, self.streams.by_features)
            run.launch("main")
            for port, (words, flags) in zip(self.edge.ports, self._streams(), strict=True):
                run.send_port(port.name, words, is_control=flags)
            y = self.collected(run["Y"], self.streams.by_outputs)
            return Result(y, cycles_of(run, self.arch))

    def _streams(self) -> list[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
        streams = self.streams
        return streams.of_ports(streams.words(streams.matrix.data, self.places(self.element_words)))

    @property
    def element_words(self) -> int:
        """Words of memory of an element."""
        return self.precision.given.itemsize // WORD_BYTES

    def places(self, element_words: int) -> Ints:
        """Of features in a PE's memory, in words of it.

        Args:
            element_words: of what lies there for each token.
        """
        places: Ints = self.streams.by_features.place * (self.tokens * element_words)
        return places

    @property
    def grid(self) -> Grid:
        """Of PEs."""
        return Grid(self.rows, self.columns, self.tokens, self.fold)

    def spread(self, values: NDArray[Any], dealing: Dealing) -> NDArray[Any]:
        """Rows of a matrix on PEs: (rows of PEs, columns of PEs, elements)."""
        return self.grid.spread(values, dealing)

    def collected(self, spread: NDArray[Any], dealing: Dealing) -> NDArray[Any]:
        """The matrix whose rows lie so."""
        return self.grid.collected(spread, dealing, self.shape[2])

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows // self.fold,
            "columns": self.columns,
            "fold": self.fold,
            "band": self.streams.band,
            "tokens": self.tokens,
            "features": self.features,
            "own_outputs": self.own_outputs,
            "depth": self.depth,
            "is_widened": self.precision.is_widened,
            "has_forward": True,
            "has_gradient": False,
        }


@takes_operands
def plan_streamed(
    w: Any,
    num_tokens: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    streaming: Streaming = Streaming(),
) -> StreamedPlan:
    """Plan Y = W X whose weights stream in, on a rectangle of PEs.

    Args:
        w: (outputs, features), float32: a sparse matrix of scipy, of which what is stored streams
            in, or an array, of which all elements do.
        num_tokens: columns of X.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, or ``"f16-f32"``, which rounds the weights to float16.
        streaming: ports, and how features and tokens lie.

    Raises:
        OpenwaferError: W is not finite or of another type, or does not fit the fabric or a PE.
    """
    generation, numbers = known_arch(arch), summed_in_f32(precision)
    check_rectangle(*size, generation)
    _check(num_tokens, size, streaming)
    matrix = canonical(all_stored(w), numbers)
    folds = range(1, _MOST_FOLD + 1) if streaming.fold is None else (streaming.fold,)
    plans = [
        _planned(matrix, num_tokens, size, generation, numbers, replace(streaming, fold=fold))
        for fold in folds
        if size[0] % fold == 0 and streaming.num_ports <= size[0] // fold
    ]
    fitting = [plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES]
    if not fitting:
        least = min(plans, key=lambda plan: plan.memory_bytes)
        what = (
            f"{least.features} features and {least.own_outputs} outputs of {least.tokens} tokens "
            f"in {numbers}"
        )
        check_memory(least.memory_bytes, what)
    return min(fitting, key=lambda plan: plan.cycles)


@lru_cache
def _edge(rows: int, step: int) -> Edge:
    firsts = range(0, rows, step)
    return Edge(tuple(Port(f"weights {y}", 0, y, Side.WEST, into=(_COLOR,)) for y in firsts))


def summed_in_f32(name: str) -> Precision:
    """A precision of streamed products by its name.

    Raises:
        OpenwaferError: there is none, or it has other sums.
    """
    if name not in (Precision.F32, Precision.F16_F32):
        raise error(
            "kernel-precision",
            f"precision is {name!r}; streamed weights are summed in f32",
            help="give 'f16-f32' or 'f32'",
        )
    return Precision(name)


def _check(num_tokens: int, size: tuple[int, int], streaming: Streaming) -> None:
    if num_tokens < 1:
        raise error("kernel-shape", f"{num_tokens} tokens", help="give 1 or more")
    fold = 1 if streaming.fold is None else streaming.fold
    if not 1 <= fold <= _MOST_FOLD or size[0] % fold:
        raise error(
            "kernel-rectangle",
            f"a fold of {fold} on {size[0]} rows of PEs",
            help=f"give 1 to {_MOST_FOLD}, a divisor of the rows",
        )
    if not 1 <= streaming.num_ports <= size[0] // fold:
        raise error(
            "kernel-ports",
            f"{streaming.num_ports} ports for {size[0]} rows of PEs in folds of {fold}",
            help=f"give 1 to {size[0] // fold}: a port is that of whole folds",
        )


def all_stored(w: Any) -> Any:
    """An array as a sparse matrix that stores its zeros, too."""
    if not isinstance(w, np.ndarray) or w.ndim != 2:
        return w
    outputs, features = w.shape
    places = np.tile(np.arange(features), outputs), np.arange(outputs + 1) * features
    return scipy.sparse.csr_array((w.ravel(), *places), w.shape)


def _planned(
    matrix: scipy.sparse.csr_array,
    num_tokens: int,
    size: tuple[int, int],
    arch: Arch,
    precision: Precision,
    streaming: Streaming,
) -> StreamedPlan:
    """With the largest depth that fits a PE, or the least one."""
    fold = streaming.fold or 1
    rows = size[0] // fold
    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    by_features = deal(counts, rows) if streaming.is_sorted else in_turns(matrix.shape[1], rows)
    by_outputs = in_turns(matrix.shape[0], rows)
    band = ceil(rows / streaming.num_ports)
    streams = WeightStreams(matrix, by_features, by_outputs, rows, band, precision)
    tokens = tile_length(num_tokens, size[1] * fold, 8 if precision.is_widened else 4)
    plans = [
        StreamedPlan(
            *((*matrix.shape, num_tokens), *size, fold, ceil(rows / band), tokens, depth),
            *(arch, precision, streams),
        )
        for depth in _DEPTHS
    ]
    return next((plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES), plans[-1])


@takes_operands
def streamed_gemm(
    w: Any,
    x: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
    streaming: Streaming = Streaming(),
) -> Result:
    """Product of weights that stream in and a matrix at rest: (outputs, tokens) in float32.

    The error of each element is at most ``gamma(n) * |W| @ |X|`` with n = ``num_roundings`` of the
    plan, and half of the least number of f32 for each product; u is 2**-24. The order is that of
    the plan, so the bits repeat.

    Args:
        w: (outputs, features), float32: a sparse matrix of scipy, of which what is stored streams
            in, or an array, of which all elements do.
        x: (features, tokens), float32 for ``"f32"``, else float16; finite.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, or ``"f16-f32"``, which rounds the weights to float16; None takes the
            one of `x`.
        streaming: ports, and how features and tokens lie.

    Raises:
        OpenwaferError: shape or type do not fit, values are not finite, or the rectangle or its
            memory is too small.
    """
    if x.ndim != 2:
        raise error("kernel-shape", f"X has the shape {x.shape}", help="give a matrix")
    numbers = precision_of(precision, x.dtype)
    plan = plan_streamed(w, x.shape[1], size, arch=arch, precision=numbers, streaming=streaming)
    return plan.forward(x)
