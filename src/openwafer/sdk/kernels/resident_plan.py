"""A rectangle of PEs that keeps a network's activations, and the weights that stream to it."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, Final, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import WORD_BYTES, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.fabric import Edge, Port, Side
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.products import tile_length
from openwafer.sdk.kernels.running import (
    MEMORY_BYTES,
    check_rectangle,
    known_arch,
)
from openwafer.sdk.kernels.sparse_tiles import Dealing, Ints, canonical, in_turns
from openwafer.sdk.kernels.streamed import all_stored, summed_in_f32
from openwafer.sdk.kernels.trees import best_tree, params_of
from openwafer.sdk.kernels.weight_streams import WeightStreams

_IN_COLOR: Final = 0
OUT_COLORS: Final = range(7, 15)
"""On which gradients of weights leave, one for each row of a port."""
DEPTH: Final = 4
"""Outputs that a PE may have parts of, or gradients."""
_ELEMENTARY_WORDS: Final = 135
"""Of ``<kernels/elementary>``."""
_CODE_BYTES: Final = 12 * 1024
"""Kept for the code of all passes, the stack and what the host's copies need."""


@dataclass(frozen=True)
class Activation:
    """Values of some features and all tokens, which lie on the wafer.

    Attributes:
        first: place in the arena of each PE, in panels: the tokens of a feature.
        features: how many; they are dealt to the rows of PEs in turns.
        panels: of a PE.
    """

    first: int
    features: int
    panels: int


@dataclass(frozen=True)
class Pass:
    """What a pass over a layer took.

    Attributes:
        name: ``"forward"``, ``"delta"``, ``"gradient"``, or the local function's.
        cycles: from the first PE's start to the last one's end.
        entered: wavelets that entered through the ports.
        left: wavelets that left by them.
        stream_cycles: in which they pass the port that has most of them.
        multiply_adds: of all PEs, without those of padded tokens.
        busy_cycles: in which a core works and does not wait, the mean of all; None where no account
            was kept.
        weights: that it goes over.
    """

    name: str
    cycles: int
    entered: int = 0
    left: int = 0
    stream_cycles: int = 0
    multiply_adds: int = 0
    busy_cycles: int | None = None
    weights: "Weights | None" = None


@dataclass(frozen=True)
class Norm:
    """Norms of a program, which are all of one shape.

    Attributes:
        num_features: of what they take.
        epsilon: added to the mean of the squares.
        has_mean: whether it is layer norm, which takes the mean off, and not RMS norm.
    """

    num_features: int
    epsilon: float
    has_mean: bool


@dataclass(frozen=True)
class Heads:
    """Causal attention of a program, which is all of one shape.

    Attributes:
        count: of heads.
        size: features of each, which rows of PEs divide.
        length: tokens of a sequence; sequences lie one behind the other.
    """

    count: int
    size: int
    length: int


@dataclass(frozen=True)
class ResidentPlan:
    """A rectangle of PEs that holds activations of so many tokens, before anything is compiled.

    Features are dealt to rows of PEs in turns, tokens lie in columns. What a PE's memory has beside
    code and buffers is an arena of panels, the tokens of one feature.

    Attributes:
        rows: of PEs.
        columns: of PEs.
        num_tokens: of all columns.
        num_ports: by which weights enter, and gradients of weights leave.
        most_features: of a layer.
        arch: the generation.
        norm: of layers, where they have one.
        heads: of attention, where there is one.
        num_classes: of a loss; 0 where there is none.
        precision: of products with weights; all else is f32.
    """

    rows: int
    columns: int
    num_tokens: int
    num_ports: int
    most_features: int
    arch: Arch
    norm: Norm | None = None
    heads: Heads | None = None
    num_classes: int = 0
    precision: Precision = Precision.F32

    @property
    def simd(self) -> int:
        """What tokens of a PE are a multiple of."""
        return 8 if self.precision.is_widened else 4

    @property
    def element_words(self) -> int:
        """Words of memory of an element that products take."""
        return self.precision.given.itemsize // WORD_BYTES

    @property
    def tokens(self) -> int:
        """Of a PE, with what is padded."""
        return tile_length(self.num_tokens, self.columns, self.simd)

    @property
    def is_padded(self) -> bool:
        """Whether a PE has tokens that fill up its own."""
        return self.tokens * self.columns != self.num_tokens

    @property
    def band(self) -> int:
        """Rows whose weights enter by one port."""
        return ceil(self.rows / self.num_ports)

    @property
    def own_features(self) -> int:
        """Weights of an output that a PE may meet, that of the bias among them."""
        return ceil(self.most_features / self.rows) + 1

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a PE for code, parts of sums and gradients on their way."""
        parts = DEPTH * self.tokens + 1
        waiting = 2 * parts + self.tokens
        if self.precision.is_widened:
            # Panels and operands of products are half as long; sums on their way are not.
            halves = parts + 1 + (1 + 2 * self.own_features) * self.tokens
            waiting = parts + self.tokens + 2 * (self.tokens + 1) + ceil(halves / 2)
        if self.norm is not None:
            waiting += (self.panels_of(self.norm.num_features) + 2) * self.tokens
        if self.num_classes:
            waiting += 2 * self.tokens + _ELEMENTARY_WORDS
        return _CODE_BYTES + 4 * (waiting + 2 * self.own_features) + self.attention_bytes

    @property
    def attention_bytes(self) -> int:
        """Two blocks of keys, values and their gradients, scores, and numbers of queries."""
        heads = self.heads
        if heads is None:
            return 0
        queries = heads.count * self.tokens
        size = heads.size // self.rows * queries
        return 4 * (9 * size + 3 * queries * self.tokens + 2 * queries + _ELEMENTARY_WORDS)

    @property
    def num_panels(self) -> int:
        """Of a PE's arena."""
        return max(0, (MEMORY_BYTES - self.buffer_bytes) // (4 * self.tokens))

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB that are taken, with those that are kept for code."""
        return self.buffer_bytes + 4 * self.tokens * self.num_panels

    @property
    def edge(self) -> Edge:
        """Its ports, the first rows of PEs of all bands."""
        return _edge(self.rows, self.band)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        heads = self.heads or Heads(0, 0, 0)
        return {
            "rows": self.rows,
            "columns": self.columns,
            "band": self.band,
            "tokens": self.tokens,
            "depth": DEPTH,
            "most_features": self.own_features,
            "arena_elements": self.num_panels * self.tokens,
            "is_widened": self.precision.is_widened,
            **self._norm_params,
            "heads": heads.count,
            "head_size": heads.size,
            "length": heads.length,
            "num_classes": self.num_classes,
        }

    @property
    def _norm_params(self) -> dict[str, Param]:
        scores = 2 * self.heads.count * self.tokens**2 if self.heads else 0
        words = max(2 * self.tokens, scores)
        tree = best_tree(self.rows, words, words, self.arch) if self.rows > 1 else None
        trees, norm = params_of(None, tree), self.norm or Norm(0, 0.0, has_mean=False)
        return {
            "norm_features": norm.num_features,
            "epsilon": norm.epsilon,
            "has_mean": norm.has_mean,
            "column_shape": trees["column_shape"],
            "column_group": trees["column_group"],
        }

    def panels_of(self, features: int) -> int:
        """Panels of a PE that an activation takes."""
        return ceil(features / self.rows)


@lru_cache
def _edge(rows: int, band: int) -> Edge:
    return Edge(
        tuple(
            Port(
                f"weights {y}", 0, y, Side.WEST, into=(_IN_COLOR,),
                out=tuple(OUT_COLORS[: min(band, rows - y)]),
            )
            for y in range(0, rows, band)
        )
    )  # fmt: skip


def least_ports(rows: int) -> int:
    """Of as many rows of PEs: gradients of some leave by one port."""
    return ceil(rows / len(OUT_COLORS))


@takes_operands
def plan_resident(
    size: tuple[int, int],
    num_tokens: int,
    most_features: int,
    *,
    arch: str = Arch.WSE3,
    num_ports: int | None = None,
    norm: Norm | None = None,
) -> ResidentPlan:
    """Plan a rectangle of PEs on which activations stay.

    Args:
        size: rows and columns of PEs.
        num_tokens: a multiple of the columns.
        most_features: of a layer's inputs and outputs.
        arch: ``"wse2"`` or ``"wse3"``.
        num_ports: None takes the fewest.
        norm: of layers, where they have one.

    Raises:
        OpenwaferError: the fabric has no room for it, tokens do not divide, or ports are too few
            or too many.
    """
    generation = known_arch(arch)
    rows, columns = size
    check_rectangle(rows, columns, generation)
    if num_tokens < 1 or num_tokens % columns:
        raise error(
            "kernel-tokens",
            f"{num_tokens} tokens on {columns} columns of PEs",
            help=f"give a multiple of {columns} tokens, or another rectangle",
        )
    least = least_ports(rows)
    ports = least if num_ports is None else num_ports
    if not least <= ports <= rows:
        raise error(
            "kernel-ports",
            f"{ports} ports for {rows} rows of PEs; gradients of {len(OUT_COLORS)} rows leave by "
            "one",
            help=f"give {least} to {rows} ports",
        )
    if norm is not None and norm.num_features < rows:
        raise error(
            "kernel-shape",
            f"norms of {norm.num_features} features on {rows} rows of PEs",
            help="give a feature for each row of PEs or more",
        )
    plan = ResidentPlan(rows, columns, num_tokens, ports, most_features, generation, norm)
    check_room(plan)
    return plan


def with_precision(plan: ResidentPlan, precision: str) -> ResidentPlan:
    """The same rectangle, with products of another precision.

    Args:
        plan: of the rectangle.
        precision: ``"f32"``, or ``"f16-f32"``, which rounds what products take to float16 and has
            sums of float32.

    Raises:
        OpenwaferError: there is no such precision, or no room.
    """
    wider = replace(plan, precision=summed_in_f32(precision))
    check_room(wider)
    return wider


def with_heads(plan: ResidentPlan, heads: Heads) -> ResidentPlan:
    """The same rectangle, whose program has attention.

    Raises:
        OpenwaferError: heads or sequences do not divide, or there is no room.
    """
    if heads.size % plan.rows:
        raise error(
            "kernel-shape",
            f"heads of {heads.size} features on {plan.rows} rows of PEs",
            help="choose rows that divide the features of a head",
        )
    if plan.is_padded:
        raise error(
            "kernel-tokens",
            f"attention of {plan.num_tokens // plan.columns} tokens of a PE",
            help=f"give each PE a multiple of {plan.simd} tokens",
        )
    wider = replace(plan, heads=heads)
    check_room(wider)
    return wider


def check_room(plan: ResidentPlan) -> None:
    """Refuse a rectangle on which the widest activation has no room.

    Raises:
        OpenwaferError: ``kernel-memory``.
    """
    panels = plan.panels_of(plan.most_features)
    if plan.num_panels <= panels:
        buffers = f"code and buffers of {plan.buffer_bytes:,}"
        if plan.heads is not None:
            buffers += f", {plan.attention_bytes:,} of them for attention"
        raise error(
            "kernel-memory",
            f"{plan.tokens} tokens of {panels} features take {4 * plan.tokens * panels:,} bytes "
            f"of a PE, whose {MEMORY_BYTES:,} have "
            f"{max(0, MEMORY_BYTES - plan.buffer_bytes):,} beside {buffers}",
            help="spread them over more PEs, or give fewer tokens at a time",
        )


@dataclass(frozen=True)
class Attended:
    """What attention has made, and what its backward wants.

    Attributes:
        out: the result.
        kept: of each query and head, its greatest score, and one over its sum of exponentials.
    """

    out: Activation
    kept: Activation


@dataclass(frozen=True)
class Normalised:
    """What a norm has made, and what its backward wants.

    Attributes:
        y: the result.
        normal: the same before scales and shifts.
        scales: of features, then their shifts.
        roots: of each token, one over the root of its squares' mean.
    """

    y: Activation
    normal: Activation
    scales: Activation
    roots: Activation


@dataclass(frozen=True, eq=False)
class Weights:
    """The pattern of a layer's weights, as they stream in to a rectangle.

    A bias is the weight of a feature whose tokens are all 1, which each PE has.

    Attributes:
        streams: of the weights, with the bias as their last column where there is one.
        without_bias: of the weights alone.
        has_bias: whether there is one.
    """

    streams: WeightStreams
    without_bias: WeightStreams
    has_bias: bool

    @classmethod
    def of(cls, weight: Any, plan: ResidentPlan, *, has_bias: bool) -> Self:
        """Those of a pattern.

        Args:
            weight: (outputs, features), float32: an array, of which all elements stream in, or a
                sparse matrix of scipy, of which what is stored does.
            plan: of the rectangle.
            has_bias: whether a bias is added.
        """
        matrix = canonical(all_stored(weight), plan.precision)
        outputs, features = matrix.shape
        by_features, by_outputs = in_turns(features, plan.rows), in_turns(outputs, plan.rows)
        rest = plan.rows, plan.band, plan.precision
        alone = WeightStreams(matrix, by_features, by_outputs, *rest)
        if not has_bias:
            return cls(alone, alone, has_bias)
        ones = np.ones((outputs, 1), matrix.dtype)
        both = scipy.sparse.csr_array(scipy.sparse.hstack([matrix, ones], format="csr"))
        place = np.append(by_features.place, by_features.length)
        # On the row of PEs that has the fewest weights.
        counts = np.bincount(by_features.part[matrix.indices], minlength=plan.rows)
        part = np.append(by_features.part, np.argmin(counts))
        dealt = Dealing(part, place, by_features.length + 1)
        return cls(WeightStreams(both, dealt, by_outputs, *rest), alone, has_bias)

    @cached_property
    def rows(self) -> tuple[Ints, ...]:
        """Of each row of PEs its weights, in the order in which they enter."""
        return tuple(self.streams.of_row(row) for row in range(self.streams.rows))

    @cached_property
    def is_of_bias(self) -> NDArray[np.bool_]:
        """Which of the values of `streams` are the bias."""
        matrix = self.streams.matrix
        of_bias: NDArray[np.bool_] = matrix.indices == matrix.shape[1] - 1
        return of_bias if self.has_bias else np.zeros_like(of_bias)

    def of_pass(self, name: str) -> WeightStreams:
        """Those of a pass, by its name."""
        return self.without_bias if name == "delta" else self.streams

    def values(self, data: NDArray[np.float32], bias: NDArray[np.float32] | None) -> Any:
        """Values of `streams`: of the weights that are stored, and of the bias."""
        if bias is None:
            return data
        values = np.empty(self.streams.matrix.nnz, np.float32)
        values[self.is_of_bias], values[~self.is_of_bias] = bias, data
        return values

    def places(self, first: int, panel_words: int) -> Ints:
        """Of features in a PE's arena, in words; the ones lie at its begin.

        Args:
            first: of the first feature.
            panel_words: of a feature's tokens.
        """
        places: Ints = first + self.streams.by_features.place * panel_words
        if self.has_bias:
            places[-1] = 0
        return places
