"""Embeddings of tokens that rest on the wafer, from those entries of a table that they need."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, drain_cycles, load_cycles, read_turns
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.ir.prices import constant_product_cycles
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.operations import Operation
from openwafer.sdk.kernels.precision import Precision, bound_of_sums
from openwafer.sdk.kernels.resting import (
    Resting,
    check_fit,
    memory_bytes,
    resting,
    shape_of,
)
from openwafer.sdk.kernels.running import (
    LOOK_CYCLES,
    Result,
    check_operand,
    compiled,
    cycles_of,
    loop_cycles,
)

_LAYER: Final = 7
"""Number in the program."""
_NONE: Final = -1
"""Entry of a token that is padded."""
_TOKEN_CYCLES: Final = 18
"""Of a token's instructions, either way, without the product that finds its entry."""
_PADDED_CYCLES: Final = (16, 10)
"""Of those of a padded token, forward and backward."""
_MOST_UNROLLED: Final = 4
"""Tokens whose loop is written out."""
_POINTERS: Final = (3, 1)
"""Loads of pointers before tokens, and backward before the row's sums."""
_FILL_CYCLES: Final = 2
"""Of the instructions that set gradients to zero, without the product of their number."""

_MOST_TOKENS: Final = 124
"""Of a PE, as strides of descriptors have 8 bits."""


@dataclass(frozen=True)
class EmbeddingPlan:
    """How an embedding is done, before anything is compiled.

    Of the table only entries that tokens have are copied to the PEs, each its own features of all
    of them. Backward, each PE adds up gradients of its tokens, and rows of PEs those of all.

    Attributes:
        num_entries: of the table.
        at_rest: where activations lie.
    """

    num_entries: int
    at_rest: Resting

    @property
    def most_entries(self) -> int:
        """That tokens may have."""
        return min(self.num_entries, self.at_rest.num_tokens)

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        entries = self.most_entries * self.at_rest.features
        return memory_bytes(entries + self.at_rest.size + 2 * self.at_rest.tokens)

    @property
    def cycles(self) -> int:
        """Predicted cycles of the forward pass."""
        timing, columns = GENERATIONS[self.at_rest.arch].timing, self.at_rest.grid.columns
        moved, filled = (self._operation("fmovs", num_registers) for num_registers in (2, 1))
        begins = LOOK_CYCLES + load_cycles(_POINTERS[0], timing.load_latency)
        late = timing.hop_cycles * np.arange(columns)
        return begins + int((self._of_tokens(moved, filled, _PADDED_CYCLES[0]) + late).max())

    @property
    def backward_cycles(self) -> int:
        """Predicted cycles of the backward pass."""
        at_rest, words = self.at_rest, self.most_entries * self.at_rest.features
        timing = GENERATIONS[at_rest.arch].timing
        taken = LOOK_CYCLES + sum(load_cycles(n, timing.load_latency) for n in _POINTERS)
        taken += _FILL_CYCLES + constant_product_cycles(1, at_rest.features)
        taken += Operation("fmovs", num_registers=1).cycles(words, at_rest.arch)
        taken += drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=False)
        turns = read_turns(0, 2, 0, 2 * at_rest.tokens, timing.row_words, 0)
        added = self._operation("fadds", 3, turns)
        return at_rest.row_end(taken + self._of_tokens(added, 0, _PADDED_CYCLES[1]), words)

    def _operation(self, name: str, num_registers: int, turns: int = ONE_TURN) -> int:
        """Cycles of an operation on a token's features, which lie apart."""
        operation = Operation(name, num_registers, turns, (self.at_rest.tokens,))
        return operation.cycles(self.at_rest.features, self.at_rest.arch)

    def _of_tokens(self, own: int, padded: int, of_padded: int) -> NDArray[np.int64]:
        """Cycles of the tokens of each column of PEs, of which the last ones may be padded.

        Args:
            own: cycles of a token's operation.
            padded: of a padded one's.
            of_padded: of a padded one's instructions.
        """
        timing, tokens = GENERATIONS[self.at_rest.arch].timing, self.at_rest.tokens
        # A label's load waits for the operation before, which a loop's turn is longer than.
        around, turn, drain = 0, timing.load_latency - 1, timing.drain_cycles
        if tokens > _MOST_UNROLLED:
            around = loop_cycles(tokens, self.at_rest.arch) + tokens
            drain = max(0, drain - timing.loop_cycles)
        own += _TOKEN_CYCLES + constant_product_cycles(1, self.at_rest.features) + turn + drain
        counts = self.at_rest.tokens_of_columns
        return around + counts * own + (tokens - counts) * (padded + of_padded + turn)

    def forward(self, table: NDArray[Any], labels: NDArray[Any], *, check: bool = False) -> Result:
        """Features of tokens on the simulated wafer: (features, tokens), bit for bit.

        Args:
            table: (entries, features), float32, finite.
            labels: (tokens,), integers from 0 to the entries.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes, types or labels are others.
        """
        at_rest = self.at_rest
        check_operand("table", table, (self.num_entries, at_rest.num_features), Precision.F32)
        check_finite("table", table)
        needed, places = self._entries(labels)
        with compiled("layers", at_rest.arch, self._params(is_backward=False)).run(
            check=check
        ) as run:
            run["table"], run["labels"] = self._spread(table[needed]), places
            run.launch("main")
            return Result(at_rest.collected(run["x"]), cycles_of(run, at_rest.arch))

    def backward(self, dx: NDArray[Any], labels: NDArray[Any], *, check: bool = False) -> Result:
        """Gradients of the table on the simulated wafer: (entries, features).

        Args:
            dx: gradients of the features, (features, tokens), float32, finite.
            labels: as forward.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes, types or labels are others.
        """
        at_rest = self.at_rest
        given = at_rest.spread("DX", dx)
        needed, places = self._entries(labels)
        with compiled("layers", at_rest.arch, self._params(is_backward=True)).run(
            check=check
        ) as run:
            run["x"], run["labels"] = given, places
            run.launch("main")
            sums = run["table"][:, 0].reshape(at_rest.grid.rows, -1, at_rest.features)
            by_feature = at_rest.dealing.collected(sums.transpose(0, 2, 1))
            found = np.zeros((self.num_entries, at_rest.num_features), np.float32)
            found[needed] = by_feature.T[: len(needed)]
            return Result(found, cycles_of(run, at_rest.arch))

    def error_bound(self, dx: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each gradient: ``gamma(n)`` times the sum of magnitudes.

        Args:
            dx: gradients of the features.
            labels: of the tokens.
        """
        sizes = np.zeros((self.num_entries, self.at_rest.num_features))
        np.add.at(sizes, labels, np.abs(dx.astype(float)).T)
        additions = self.at_rest.tokens + self.at_rest.grid.columns
        return bound_of_sums(sizes, additions, np.dtype(np.float32))

    def _entries(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Entries that are needed, and on each PE the places of its tokens' among them."""
        shape, grid = (self.at_rest.num_tokens,), self.at_rest.grid
        if labels.shape != shape or labels.dtype.kind not in "iu":
            raise error(
                "kernel-shape",
                f"labels are {labels.dtype} of the shape {labels.shape}; the plan is for {shape}",
                help="give an integer for each token",
            )
        wrong = (labels < 0) | (labels >= self.num_entries)
        if wrong.any():
            place = int(np.argmax(wrong))
            raise error(
                "kernel-label",
                f"label {labels[place]} of token {place}; the table has {self.num_entries} entries",
                help=f"give 0 to {self.num_entries - 1}",
            )
        needed, places = np.unique(labels, return_inverse=True)
        padded = np.full(grid.columns * grid.tokens, _NONE, np.int32)
        padded[: len(labels)] = places
        return needed, padded.reshape(1, grid.columns, -1).repeat(grid.rows, 0)

    def _spread(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Each PE's features of entries, entry by entry."""
        at_rest = self.at_rest
        padded = np.zeros((self.most_entries, at_rest.num_features), np.float32)
        padded[: len(entries)] = entries
        spread = at_rest.dealing.spread(padded.T, at_rest.grid.rows, at_rest.features)
        by_entry = spread.transpose(0, 2, 1).reshape(at_rest.grid.rows, 1, -1)
        return by_entry.repeat(at_rest.grid.columns, 1)

    def _params(self, *, is_backward: bool) -> dict[str, Param]:
        return {
            **self.at_rest.params,
            "layer": _LAYER,
            "length": self.most_entries,
            "is_backward": is_backward,
        }


@takes_operands
def plan_embedding(
    num_entries: int, shape: tuple[int, int], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> EmbeddingPlan:
    """Plan an embedding of tokens at rest.

    Args:
        num_entries: of the table.
        shape: features and tokens.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE.
    """
    if num_entries < 1:
        raise error("kernel-shape", f"a table of {num_entries} entries", help="give 1 or more")
    plan = EmbeddingPlan(num_entries, resting(shape, size, arch))
    if plan.at_rest.tokens > _MOST_TOKENS:
        columns = ceil(shape[1] / _MOST_TOKENS)
        raise error(
            "kernel-tokens",
            f"{plan.at_rest.tokens} tokens of a PE; it takes up to {_MOST_TOKENS}",
            help=f"take {columns} columns of PEs or more",
        )
    check_fit(plan.at_rest, plan.memory_bytes)
    return plan


@takes_operands
def embedding(
    table: NDArray[Any], labels: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> Result:
    """Entries of a table by the labels of tokens: (features, tokens), bit for bit.

    Args:
        table: (entries, features), float32, finite.
        labels: (tokens,), integers from 0 to the entries.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shapes, types or labels do not fit, or the rectangle or its memory is too
            small.
    """
    entries, features = shape_of(table)
    plan = plan_embedding(entries, (features, labels.size), size, arch=arch)
    return plan.forward(table, labels)
