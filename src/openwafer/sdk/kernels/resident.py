"""A network's activations on the wafer, while the weights of one pass after the other stream in."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, Final, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import QUIET, Param
from openwafer.sdk.fabric import Edge, Port, Side
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.products import tile_length
from openwafer.sdk.kernels.running import (
    MEMORY_BYTES,
    check_finite,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.sparse_tiles import Dealing, Ints, canonical, in_turns
from openwafer.sdk.kernels.streamed import all_stored
from openwafer.sdk.kernels.weight_streams import WeightStreams, Words

_IN_COLOR: Final = 0
_OUT_COLORS: Final = range(7, 15)
"""On which gradients of weights leave, one for each row of a port."""
_DEPTH: Final = 4
_PLACE_WORDS: Final = 2
"""Of memory, of an element."""
_SIMD: Final = 4
"""Tokens of a PE are a multiple of it."""
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
    """

    name: str
    cycles: int
    entered: int = 0
    left: int = 0
    stream_cycles: int = 0


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
    """

    rows: int
    columns: int
    num_tokens: int
    num_ports: int
    most_features: int
    arch: Arch

    @property
    def tokens(self) -> int:
        """Of a PE, with what is padded."""
        return tile_length(self.num_tokens, self.columns, _SIMD)

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
        waiting = 2 * (_DEPTH * self.tokens + 1) + self.tokens
        return _CODE_BYTES + 4 * (waiting + 2 * self.own_features)

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
        return Edge(
            tuple(
                Port(
                    f"weights {y}", 0, y, Side.WEST, into=(_IN_COLOR,),
                    out=tuple(_OUT_COLORS[: min(self.band, self.rows - y)]),
                )
                for y in range(0, self.rows, self.band)
            )
        )  # fmt: skip

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "band": self.band,
            "tokens": self.tokens,
            "depth": _DEPTH,
            "most_features": self.own_features,
            "arena_elements": self.num_panels * self.tokens,
        }

    def panels_of(self, features: int) -> int:
        """Panels of a PE that an activation takes."""
        return ceil(features / self.rows)


def plan_resident(
    size: tuple[int, int],
    num_tokens: int,
    most_features: int,
    *,
    arch: str = Arch.WSE3,
    num_ports: int | None = None,
) -> ResidentPlan:
    """Plan a rectangle of PEs on which activations stay.

    Args:
        size: rows and columns of PEs.
        num_tokens: a multiple of the columns.
        most_features: of a layer's inputs and outputs.
        arch: ``"wse2"`` or ``"wse3"``.
        num_ports: None takes the fewest.

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
    least = ceil(rows / len(_OUT_COLORS))
    ports = least if num_ports is None else num_ports
    if not least <= ports <= rows:
        raise error(
            "kernel-ports",
            f"{ports} ports for {rows} rows of PEs; gradients of {len(_OUT_COLORS)} rows leave by "
            "one",
            help=f"give {least} to {rows} ports",
        )
    plan = ResidentPlan(rows, columns, num_tokens, ports, most_features, generation)
    if plan.num_panels <= plan.panels_of(most_features):
        raise error(
            "kernel-memory",
            f"{plan.tokens} tokens of {plan.panels_of(most_features)} features take "
            f"{4 * plan.tokens * plan.panels_of(most_features):,} bytes of a PE, whose "
            f"{MEMORY_BYTES:,} have {max(0, MEMORY_BYTES - plan.buffer_bytes):,} beside code and "
            "buffers",
            help="spread them over more PEs, or give fewer tokens at a time",
        )
    return plan


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
        matrix = canonical(all_stored(weight), Precision.F32)
        outputs, features = matrix.shape
        by_features, by_outputs = in_turns(features, plan.rows), in_turns(outputs, plan.rows)
        rest = plan.rows, plan.band, Precision.F32
        alone = WeightStreams(matrix, by_features, by_outputs, *rest)
        if not has_bias:
            return cls(alone, alone, has_bias)
        ones = np.ones((outputs, 1), np.float32)
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

    def values(self, data: NDArray[np.float32], bias: NDArray[np.float32] | None) -> Any:
        """Values of `streams`: of the weights that are stored, and of the bias."""
        if bias is None:
            return data
        values = np.empty(self.streams.matrix.nnz, np.float32)
        values[self.is_of_bias], values[~self.is_of_bias] = bias, data
        return values

    def places(self, first: int, panel_words: int) -> Ints:
        """Of features in a PE's arena, in words; the ones lie in its first panel."""
        places = (first + self.streams.by_features.place) * panel_words
        if self.has_bias:
            places[-1] = 0
        return places


@dataclass(eq=False)
class Resident:
    """Activations on a simulated wafer, and the passes that its host launches.

    Attributes:
        plan: of the rectangle.
        passes: what they took, in their order.
    """

    plan: ResidentPlan
    passes: list[Pass] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        program = compiled("resident", plan.arch, plan.params)
        self._run = program.run(replace(QUIET, edge=plan.edge))
        self._free = [(1, plan.num_panels - 1)]
        self.least_free = plan.num_panels - 1
        shape = plan.rows, plan.columns, plan.tokens
        self._run.launch("look", 0)
        self._run.write("window", np.ones(shape, np.float32))

    def close(self) -> None:
        """End the run."""
        self._run.close()

    @property
    def used_panels(self) -> int:
        """The most that were held at a time."""
        return self.plan.num_panels - self.least_free

    def reserve(self, features: int) -> Activation:
        """Room for an activation.

        Raises:
            OpenwaferError: ``kernel-memory``, there is none.
        """
        panels = self.plan.panels_of(features)
        for number, (first, length) in enumerate(self._free):
            if length >= panels:
                self._free[number] = (first + panels, length - panels)
                self.least_free = min(self.least_free, sum(size for _, size in self._free))
                return Activation(first, features, panels)
        panel = 4 * self.plan.tokens
        free = panel * sum(length for _, length in self._free)
        raise error(
            "kernel-memory",
            f"{features} features of {self.plan.num_tokens} tokens take {panels * panel:,} bytes "
            f"of a PE; what is kept leaves {free:,} of {self.plan.num_panels * panel:,}",
            help="spread the model over more PEs, or give fewer tokens at a time",
        )

    def release(self, activation: Activation) -> None:
        """Give room back."""
        spans = sorted([*self._free, (activation.first, activation.panels)])
        self._free = spans[:1]
        for first, length in spans[1:]:
            before, size = self._free[-1]
            if before + size == first:
                self._free[-1] = (before, size + length)
            else:
                self._free.append((first, length))

    def hold(self, values: NDArray[np.float32]) -> Activation:
        """Copy values onto the wafer: (features, tokens), finite.

        Raises:
            OpenwaferError: they are not, or there is no room.
        """
        check_finite("an activation", values)
        plan = self.plan
        held = self.reserve(len(values))
        padding = plan.columns * plan.tokens - plan.num_tokens
        dealt = in_turns(len(values), plan.rows).spread(values, plan.rows, held.panels)
        by_column = dealt.reshape(plan.rows, held.panels, plan.columns, -1)
        padded = np.pad(by_column, [(0, 0)] * 3 + [(0, padding // plan.columns)])
        spread = padded.transpose(0, 2, 1, 3).reshape(plan.rows, plan.columns, -1)
        self._run.launch("look", self._at(held))
        self._run.write("window", spread)
        return held

    def values(self, activation: Activation) -> NDArray[np.float32]:
        """Copy values off the wafer: (features, tokens)."""
        plan, panels = self.plan, activation.panels
        self._run.launch("look", self._at(activation))
        spread = self._run.read("window", panels * plan.tokens)
        shape = plan.rows, plan.columns, panels, plan.tokens
        own = spread.reshape(shape)[..., : plan.num_tokens // plan.columns]
        dealt = own.transpose(0, 2, 1, 3).reshape(plan.rows, panels, plan.num_tokens)
        found: NDArray[np.float32] = in_turns(activation.features, plan.rows).collected(dealt)
        return found

    def forward(self, weights: Weights, values: NDArray[np.float32], x: Activation) -> Activation:
        """Y = W X and the bias, whose values stream in; see :meth:`Weights.values`."""
        streams = weights.streams
        y = self.reserve(streams.matrix.shape[0])
        words = streams.words(values, weights.places(x.first, self._panel_words))
        self._launch("forward", self._at(y), y.panels)
        self._end("forward", self._send(streams, words))
        return y

    def delta(self, weights: Weights, data: NDArray[np.float32], dy: Activation) -> Activation:
        """DX = W^T DY.

        Args:
            weights: of the layer.
            data: values of the weights, without the bias.
            dy: gradient of its outputs.
        """
        streams = weights.without_bias
        dx = self.reserve(streams.matrix.shape[1])
        words = streams.words(data, streams.by_features.place * self._panel_words)
        self._launch("delta", self._at(dy), self._at(dx), dy.panels, dx.panels)
        self._end("delta", self._send(streams, words))
        return dx

    def gradient(self, weights: Weights, x: Activation, dy: Activation) -> NDArray[np.float32]:
        """Gradients of the values of :meth:`forward`: DY X^T at their places, and sums of DY."""
        streams, ports = weights.streams, self.plan.edge.ports
        words = streams.place_words(weights.places(x.first, self._panel_words))
        self._launch("gradient", self._at(dy), dy.panels)
        entered, left = self._send(streams, words), [0] * len(ports)
        values = np.zeros(streams.matrix.nnz, np.float32)
        for row, own in enumerate(weights.rows):
            number, in_band = divmod(row, self.plan.band)
            port = ports[number]
            values[own] = self._run.receive_port(
                port.name, len(own), np.float32, color=port.out[in_band]
            )
            left[number] += len(own)
        self._end("gradient", entered, left)
        return values

    def add(self, a: Activation, b: Activation) -> Activation:
        """The sum of two."""
        return self._local("add", a, b)

    def relu(self, x: Activation) -> Activation:
        """The greater of each value and 0."""
        return self._local("relu", x)

    def relu_delta(self, y: Activation, dy: Activation) -> Activation:
        """Gradient of what :meth:`relu` gave `y` for."""
        return self._local("relu_delta", y, dy)

    def _local(self, function: str, *operands: Activation) -> Activation:
        """What a PE computes of its own values: one of the operands' shape."""
        result = self.reserve(operands[0].features)
        places = [self._at(one) for one in (*operands, result)]
        self._launch(function, *places, result.panels * self.plan.tokens)
        self._end(function)
        return result

    def _launch(self, function: str, *arguments: int) -> None:
        self._run.launch(function, *arguments)

    def _send(self, streams: WeightStreams, words: Words) -> list[int]:
        """Let weights enter; returns how many wavelets by each port."""
        entering = streams.of_ports(words)
        for port, (values, flags) in zip(self.plan.edge.ports, entering, strict=True):
            self._run.send_port(port.name, values, is_control=flags)
        return [len(values) for values, _ in entering]

    def _end(self, name: str, entered: Sequence[int] = (), left: Sequence[int] = ()) -> None:
        """Note what a pass took."""
        plan, edge = self.plan, self.plan.edge
        most = [
            max(wavelets, default=0) / edge.rate(edge.ports[0], plan.arch, is_into=is_into)
            for wavelets, is_into in ((entered, True), (left, False))
        ]
        cycles = cycles_of(self._run, plan.arch)
        self.passes.append(Pass(name, cycles, sum(entered), sum(left), ceil(max(most))))

    @property
    def _panel_words(self) -> int:
        return _PLACE_WORDS * self.plan.tokens

    def _at(self, activation: Activation) -> int:
        return activation.first * self.plan.tokens
