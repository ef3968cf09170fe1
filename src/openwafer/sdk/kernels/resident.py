"""A network's activations on the wafer, while the weights of one pass after the other stream in."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.door.compiled import QUIET, Compiled
from openwafer.sdk.fabric import Transport
from openwafer.sdk.fabric.host_links import host_links
from openwafer.sdk.kernels.operands import check_finite
from openwafer.sdk.kernels.resident_plan import (
    Activation,
    Attended,
    Norm,
    Normalised,
    Pass,
    ResidentPlan,
    Weights,
)
from openwafer.sdk.kernels.running import compiled, cycles_of
from openwafer.sdk.kernels.sparse_tiles import Ints, in_turns
from openwafer.sdk.kernels.weight_streams import WeightStreams, Words

_ARGUMENT_CYCLES: Final = 10
"""In which a core takes a further argument of a command, as measured."""
_SUM_WORDS: Final = 2
"""Of memory, of an element of the arena."""


@dataclass(eq=False)
class Resident:
    """Activations on a simulated wafer, and the passes that its host launches.

    Attributes:
        plan: of the rectangle.
        has_account: whether it is booked what cores do, which takes the simulator longer.
        transport: of what the host copies.
        passes: what they took, in their order.
        copy_cycles: in which what the host copies passes the ports; where its transport is ideal,
            in which it would. They are no part of a pass.
    """

    plan: ResidentPlan
    has_account: bool = False
    transport: Transport = Transport.IDEAL
    passes: list[Pass] = field(default_factory=list)
    copy_cycles: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        self._free = [(1, plan.num_panels - 1)]
        self._released: deque[Activation] = deque()
        self.least_free = plan.num_panels - 1
        ones = np.ones((plan.rows, plan.columns, plan.tokens), np.float32)
        self._compile(plan)
        self._begin(ones)

    def _compile(self, plan: ResidentPlan) -> None:
        self._program: Compiled = compiled("resident", plan.arch, plan.params)

    def _begin(self, arena: NDArray[np.float32]) -> None:
        """Run the plan's program with what lies at the begin of its arena."""
        plan = self.plan
        self._links = host_links((plan.columns, plan.rows), plan.arch, plan.edge)
        self._pes = self._links.numbers(range(plan.columns), range(plan.rows))
        options = replace(QUIET, edge=plan.edge, transport=self.transport)
        self._run = self._program.run(options, account=self.has_account)
        self._write(0, arena)
        if self.has_account:
            self._of_command = self._command_cycles()

    def _command_cycles(self) -> Ints:
        """In which each core takes a command with one argument, which is no part of a pass."""
        before = self._run.account().main.busy
        self._run.launch("look", 0)
        self._run.read("window", 1)
        return self._run.account().main.busy - before

    def become(self, plan: ResidentPlan) -> None:
        """Load another program of the rectangle; what is held is copied off and on again.

        Raises:
            OpenwaferError: ``kernel-memory``, it leaves no room for what is held.
        """
        self._take_back()
        before, last = self.plan.num_panels, self._free[-1]
        used = last[0] if sum(last) == before else before
        if used > plan.num_panels:
            raise error(
                "kernel-memory",
                f"{4 * used * plan.tokens:,} bytes of activations are held on each PE, and a "
                f"program with all layers leaves {4 * plan.num_panels * plan.tokens:,}",
                help="spread the model over more PEs, or give fewer tokens at a time",
            )
        # Before the old run is closed: what does not compile leaves it as it is.
        self._compile(plan)
        arena = self._read(0, used * self.plan.tokens)
        self.close()
        kept = [span for span in self._free if sum(span) < before]
        self._free = [*kept, (used, plan.num_panels - used)]
        self.plan, self.least_free = plan, plan.num_panels - self.used_panels
        self._begin(arena)

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
        return self._reserve(self.plan.panels_of(features), features)

    def _reserve(self, panels: int, features: int) -> Activation:
        self._take_back()
        for number, (first, length) in enumerate(self._free):
            if length >= panels:
                self._free[number] = (first + panels, length - panels)
                self.least_free = min(self.least_free, sum(size for _, size in self._free))
                return Activation(first, features, panels)
        panel = 4 * self.plan.tokens
        free = panel * max((length for _, length in self._free), default=0)
        raise error(
            "kernel-memory",
            f"{features} features of {self.plan.num_tokens} tokens take {panels * panel:,} bytes "
            f"of a PE; what is kept leaves {free:,} in one piece, of "
            f"{self.plan.num_panels * panel:,}",
            help="spread the model over more PEs, or give fewer tokens at a time",
        )

    def release(self, activation: Activation) -> None:
        """Give room back; where objects are collected, which may be amid a reservation."""
        self._released.append(activation)

    def _take_back(self) -> None:
        returned = []
        while self._released:
            returned.append(self._released.popleft())
        spans = sorted([*self._free, *((one.first, one.panels) for one in returned)])
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
        panels = plan.panels_of(len(values))
        padding = plan.columns * plan.tokens - plan.num_tokens
        dealt = in_turns(len(values), plan.rows).spread(values, plan.rows, panels)
        by_column = dealt.reshape(plan.rows, panels, plan.columns, -1)
        padded = np.pad(by_column, [(0, 0)] * 3 + [(0, padding // plan.columns)])
        spread = padded.transpose(0, 2, 1, 3).reshape(plan.rows, plan.columns, -1)
        return replace(self._words(spread), features=len(values))

    def values(self, activation: Activation) -> NDArray[np.float32]:
        """Copy values off the wafer: (features, tokens)."""
        plan, panels = self.plan, activation.panels
        spread = self._read(self._at(activation), panels * plan.tokens)
        shape = plan.rows, plan.columns, panels, plan.tokens
        own = spread.reshape(shape)[..., : plan.num_tokens // plan.columns]
        dealt = own.transpose(0, 2, 1, 3).reshape(plan.rows, panels, plan.num_tokens)
        found: NDArray[np.float32] = in_turns(activation.features, plan.rows).collected(dealt)
        return found

    def forward(self, weights: Weights, values: NDArray[np.float32], x: Activation) -> Activation:
        """Y = W X and the bias, whose values stream in; see :meth:`Weights.values`."""
        streams = weights.streams
        y = self.reserve(streams.matrix.shape[0])
        words = streams.words(values, self._places(weights, x))
        self._launch("forward", self._at(y), y.panels)
        self._end("forward", self._send(streams, words), weights=weights)
        return y

    def delta(self, weights: Weights, data: NDArray[np.float32], dy: Activation) -> Activation:
        """DX = W^T DY.

        Args:
            weights: of the layer.
            data: values of the weights, without the bias.
            dy: gradient of its outputs.
        """
        streams = weights.without_bias
        dx, given = self.reserve(streams.matrix.shape[1]), self._given(dy, number=1)
        words = streams.words(data, streams.by_features.place * (_SUM_WORDS * self.plan.tokens))
        self._launch("delta", given, self._at(dx), dy.panels, dx.panels)
        self._end("delta", self._send(streams, words), weights=weights)
        return dx

    def gradient(self, weights: Weights, x: Activation, dy: Activation) -> NDArray[np.float32]:
        """Gradients of the values of :meth:`forward`: DY X^T at their places, and sums of DY."""
        streams = weights.streams
        words = streams.place_words(self._places(weights, x))
        self._launch("gradient", self._given(dy, number=1), dy.panels)
        entered, left = self._send(streams, words), [0] * len(self.plan.edge.ports)
        values = np.zeros(streams.matrix.nnz, np.float32)
        for row, own in enumerate(weights.rows):
            values[own] = self._receive(row, len(own), left)
        self._end("gradient", entered, left, weights=weights)
        return values

    def _given(self, x: Activation, number: int = 0) -> int:
        """Where products take an activation: in the arena, or rounded to f16 beside it.

        Args:
            x: the activation.
            number: of the operand, 0 or 1.
        """
        plan = self.plan
        if not plan.precision.is_widened:
            return self._at(x)
        first = (1 + number * plan.own_features) * plan.tokens
        self._launch("narrow", self._at(x), first, x.panels * plan.tokens)
        self._end("narrow")
        return first

    def _places(self, weights: Weights, x: Activation) -> Ints:
        """Of features that products take, in words of memory."""
        words = self.plan.element_words
        return weights.places(words * self._given(x), words * self.plan.tokens)

    def add(self, a: Activation, b: Activation) -> Activation:
        """The sum of two."""
        return self._local("add", a, b)

    def scale(self, x: Activation, factor: float) -> Activation:
        """Each value times a number."""
        place = self._words(np.full(self._shape(1), factor, np.float32))
        y = self.reserve(x.features)
        operands = x, place, y
        self._launch("scale", *map(self._at, operands), x.panels * self.plan.tokens)
        self._end("scale")
        self.release(place)
        return y

    def relu(self, x: Activation) -> Activation:
        """The greater of each value and 0."""
        return self._local("relu", x)

    def relu_delta(self, y: Activation, dy: Activation) -> Activation:
        """Gradient of what :meth:`relu` gave `y` for."""
        return self._local("relu_delta", y, dy)

    def multiply(self, a: Activation, b: Activation) -> Activation:
        """The product of two, element by element."""
        return self._local("multiply", a, b)

    def silu(self, x: Activation) -> Activation:
        """Each value times its logistic function."""
        return self._local("silu", x)

    def silu_delta(self, x: Activation, dy: Activation) -> Activation:
        """Gradient of what :meth:`silu` was given."""
        return self._local("silu_delta", x, dy)

    def gelu(self, x: Activation) -> Activation:
        """GELU by a tanh of each value."""
        return self._local("gelu", x)

    def gelu_delta(self, x: Activation, dy: Activation) -> Activation:
        """Gradient of what :meth:`gelu` was given."""
        return self._local("gelu_delta", x, dy)

    def normalise(self, x: Activation, scales: NDArray[np.float32]) -> Normalised:
        """The plan's norm of an activation.

        Args:
            x: of as many features.
            scales: of features; with a mean, also their shifts: (1 or 2, features).
        """
        kept = self.reserve(x.features), self._words(self._of_features(scales))
        roots, y = self._reserve(1, x.features), self.reserve(x.features)
        self._launch("norm", *map(self._at, (x, kept[1], kept[0], roots, y)))
        self._end("norm")
        return Normalised(y, *kept, roots)

    def normalise_delta(
        self, made: Normalised, dy: Activation
    ) -> tuple[Activation, NDArray[np.float32]]:
        """Gradients of what :meth:`normalise` was given: of x, and of scales and shifts."""
        dx, dscales = self.reserve(dy.features), self._reserve(self._number_panels, dy.features)
        operands = dy, made.scales, made.normal, made.roots, dx, dscales
        self._launch("norm_delta", *map(self._at, operands))
        self._end("norm_delta")
        gradients = np.zeros((2 if self._norm.has_mean else 1, dy.features), np.float32)
        for number, of_features in enumerate(gradients):
            self._take(of_features, self._at(dscales) + number * dy.panels, dy)
        self.release(dscales)
        return dx, gradients

    def attention(self, queries: Activation, keys: Activation, values: Activation) -> Attended:
        """The plan's causal attention: softmax(Q^T K / sqrt(d)) V of each head."""
        assert self.plan.heads is not None
        count = self.plan.heads.count
        made = Attended(self.reserve(queries.features), self._reserve(2 * count, count))
        operands = queries, keys, values, made.kept, made.out
        self._launch("attention", *map(self._at, operands))
        self._end("attention")
        return made

    def attention_delta(
        self, given: tuple[Activation, Activation, Activation], made: Attended, dout: Activation
    ) -> tuple[Activation, Activation, Activation]:
        """Gradients of queries, keys and values.

        Args:
            given: these.
            made: what :meth:`attention` gave.
            dout: gradient of its result.
        """
        found = [self.reserve(dout.features) for _ in given]
        operands = *given, made.out, made.kept, dout, *found
        self._launch("attention_delta", *map(self._at, operands))
        self._end("attention_delta")
        return found[0], found[1], found[2]

    def cross_entropy(
        self, logits: Activation, labels: NDArray[np.int32], weight: float
    ) -> tuple[NDArray[np.float32], Activation]:
        """Losses of tokens, and gradients of `weight` times their sum.

        Args:
            logits: of the plan's classes.
            labels: of tokens, of which negative ones are left out.
            weight: of the gradients.

        Raises:
            OpenwaferError: ``kernel-memory``; nothing is held for it then.
        """
        plan = self.plan
        words = np.full((plan.columns, 2, plan.tokens), -1, np.int32)
        words[:, 0, : plan.num_tokens // plan.columns] = labels.reshape(plan.columns, -1)
        words[:, 1] = np.float32(weight).view(np.int32)
        spread = words.reshape(1, plan.columns, -1).repeat(plan.rows, 0)
        room: list[Activation] = []
        try:
            room.append(self._words(spread.view(np.float32)))
            room.append(self._reserve(1, 1))
            room.append(self.reserve(logits.features))
        except OpenwaferError:
            # Whoever asked may go on without.
            for one in room:
                self.release(one)
            raise
        place, losses, dlogits = room
        operands = logits, place, losses, dlogits
        self._launch("cross_entropy", *map(self._at, operands))
        self._end("cross_entropy")
        found = self.values(losses)[0]
        for one in (place, losses):
            self.release(one)
        return found, dlogits

    def _shape(self, panels: int) -> tuple[int, int, int]:
        return self.plan.rows, self.plan.columns, panels * self.plan.tokens

    def _words(self, spread: NDArray[np.float32]) -> Activation:
        """Room with words of each PE: (rows, columns, words)."""
        panels = ceil(spread.shape[2] / self.plan.tokens)
        held = self._reserve(panels, panels * self.plan.rows)
        self._write(self._at(held), spread)
        return held

    def _write(self, first: int, words: NDArray[np.float32]) -> None:
        """Copy words onto all PEs, from an element of the arena on."""
        self._run.launch("look", first)
        self._run.write("window", words)
        self.copy_cycles += self._links.cycles(self._pes, words.shape[2], is_into=True)

    def _read(self, first: int, count: int) -> NDArray[np.float32]:
        """Copy words off all PEs: (rows, columns, words)."""
        self._run.launch("look", first)
        words: NDArray[np.float32] = self._run.read("window", count)
        self.copy_cycles += self._links.cycles(self._pes, count, is_into=False)
        return words

    def _take(self, found: NDArray[np.float32], first: int, dy: Activation) -> None:
        """Let sums of numbers of features leave by the ports."""
        rows = self.plan.rows
        self._launch("give", first, dy.panels)
        left = [0] * len(self.plan.edge.ports)
        for row in range(rows):
            taken = self._receive(row, dy.panels, left)
            found[row::rows] = taken[: len(found[row::rows])]
        self._end("give", left=left)

    def _receive(self, row: int, count: int, left: list[int]) -> NDArray[np.float32]:
        """Words of a row of PEs, counted among those that have left by its port."""
        number, in_band = divmod(row, self.plan.band)
        port = self.plan.edge.ports[number]
        left[number] += count
        words: NDArray[np.float32] = self._run.receive_port(
            port.name, count, np.float32, color=port.out[in_band]
        )
        return words

    @property
    def _norm(self) -> Norm:
        assert self.plan.norm is not None
        return self.plan.norm

    @property
    def _number_panels(self) -> int:
        """Panels that have two numbers of each feature."""
        return ceil(2 * self.plan.panels_of(self._norm.num_features) / self.plan.tokens)

    def _of_features(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Numbers of features on all PEs of their rows: (rows, columns, numbers)."""
        plan, num_features = self.plan, numbers.shape[1]
        dealing, length = in_turns(num_features, plan.rows), plan.panels_of(num_features)
        dealt = [dealing.spread(one, plan.rows, length) for one in numbers]
        return np.concatenate(dealt, axis=1)[:, None].repeat(plan.columns, 1)

    def _local(self, function: str, *operands: Activation) -> Activation:
        """What a PE computes of its own values: one of the operands' shape."""
        result = self.reserve(operands[0].features)
        places = [self._at(one) for one in (*operands, result)]
        self._launch(function, *places, result.panels * self.plan.tokens)
        self._end(function)
        return result

    def _send(self, streams: WeightStreams, words: Words) -> list[int]:
        """Let weights enter; returns how many wavelets by each port."""
        entering = streams.of_ports(words)
        for port, (values, flags) in zip(self.plan.edge.ports, entering, strict=True):
            self._run.send_port(port.name, values, is_control=flags)
        return [len(values) for values, _ in entering]

    def _end(
        self,
        name: str,
        entered: Sequence[int] = (),
        left: Sequence[int] = (),
        *,
        weights: Weights | None = None,
    ) -> None:
        """Note what a pass took."""
        plan, edge = self.plan, self.plan.edge
        most = [
            max(wavelets, default=0) / edge.rate(edge.ports[0], plan.arch, is_into=is_into)
            for wavelets, is_into in ((entered, True), (left, False))
        ]
        cycles = cycles_of(self._run, plan.arch)
        num_weights = 0 if weights is None else weights.of_pass(name).matrix.nnz
        streamed = sum(entered), sum(left), ceil(max(most)), num_weights * plan.num_tokens
        self.passes.append(Pass(name, cycles, *streamed, self._busy_cycles(cycles), weights))

    def _launch(self, function: str, *arguments: int) -> None:
        """Begin a pass."""
        if self.has_account:
            of_arguments = _ARGUMENT_CYCLES * (len(arguments) - 1)
            self._busy = self._run.account().main.busy + self._of_command + of_arguments
        self._run.launch(function, *arguments)

    def _busy_cycles(self, cycles: int) -> int | None:
        """Of a core in the last pass, the mean of all, without its command but for some cycles."""
        if not self.has_account:
            return None
        busy = self._run.account().main.busy - self._busy
        return min(cycles, round(float(busy.mean())))

    def _at(self, activation: Activation) -> int:
        return activation.first * self.plan.tokens
