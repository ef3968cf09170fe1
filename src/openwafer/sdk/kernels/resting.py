"""Where activations lie that rest on the wafer, and what their layers have in common."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import drain_cycles
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_finite
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.products import tile_length
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    DESCRIPTOR_CYCLES,
    LOOK_CYCLES,
    check_memory,
    check_operand,
    check_rectangle,
    known_arch,
    registers_cycles,
)
from openwafer.sdk.kernels.sparse_tiles import Dealing, in_turns
from openwafer.sdk.kernels.trees import (
    Tree,
    best_tree,
    broadcast_cycles,
    params_of,
    start_delay,
    way_cycles,
)

_ROW_QUEUE: Final = 4
"""Input queue of sums along a row, in ``layers_frame.csl``."""
_SUM_CYCLES: Final = 6
"""Of the instructions of ``<kernels/ring/pe>`` that make a descriptor of all numbers."""


@dataclass(frozen=True)
class Grid:
    """Rows and columns of PEs, and tokens of each.

    Attributes:
        rows: of PEs.
        columns: of PEs.
        tokens: of a PE, with what is padded.
        fold: rows of PEs that hold the same features, of other tokens.
    """

    rows: int
    columns: int
    tokens: int
    fold: int = 1

    def spread(self, values: NDArray[Any], dealing: Dealing) -> NDArray[Any]:
        """Rows of a matrix on PEs: (rows of PEs, columns of PEs, elements).

        Args:
            values: (rows, tokens of all).
            dealing: of the matrix's rows to those of PEs.
        """
        parts = self.columns * self.fold
        padded = np.pad(values, [(0, 0), (0, parts * self.tokens - values.shape[1])])
        by_part = dealing.spread(padded, self.rows // self.fold, dealing.length)
        shape = (self.rows // self.fold, dealing.length, self.fold, self.columns, self.tokens)
        return by_part.reshape(shape).transpose(0, 2, 3, 1, 4).reshape(self.rows, self.columns, -1)

    def collected(self, spread: NDArray[Any], dealing: Dealing, num_tokens: int) -> NDArray[Any]:
        """The matrix whose rows lie so, with `num_tokens` columns."""
        shape = (self.rows // self.fold, self.fold, self.columns, dealing.length, self.tokens)
        by_part = spread.reshape(shape).transpose(0, 3, 1, 2, 4)
        whole = by_part.reshape(*by_part.shape[:2], -1)
        return dealing.collected(whole)[:, :num_tokens].copy()


@dataclass(frozen=True)
class Resting:
    """Activations on a rectangle of PEs: features dealt to rows in turns, tokens in columns.

    Attributes:
        num_features: of all.
        num_tokens: of all.
        grid: of PEs.
        arch: the generation.
        tree: of the sums along a column; None where there is one row.
    """

    num_features: int
    num_tokens: int
    grid: Grid
    arch: Arch
    tree: Tree | None

    @property
    def dealing(self) -> Dealing:
        """Of features to rows of PEs."""
        return in_turns(self.num_features, self.grid.rows)

    @property
    def features(self) -> int:
        """Of the PE that has most."""
        return -(-self.num_features // self.grid.rows)

    @property
    def tokens(self) -> int:
        """Of a PE, with what is padded."""
        return self.grid.tokens

    @property
    def size(self) -> int:
        """Elements of a PE."""
        return self.features * self.tokens

    @property
    def num_additions(self) -> int:
        """The most that an element goes through in a sum of a token's features."""
        return self.features + (self.tree.num_additions(self.grid.rows) if self.tree else 0)

    def spread(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Activations on PEs: (rows of PEs, columns of PEs, elements).

        Raises:
            OpenwaferError: they have another shape or type, or are not finite.
        """
        shape = (self.num_features, self.num_tokens)
        check_operand(name, values, shape, Precision.F32)
        check_finite(name, values)
        return self.grid.spread(values, self.dealing)

    def collected(self, spread: NDArray[Any]) -> NDArray[Any]:
        """Activations that lie so: (features, tokens)."""
        return self.grid.collected(spread, self.dealing, self.num_tokens)

    def of_features(self, name: str, numbers: NDArray[Any]) -> NDArray[Any]:
        """A number of each feature on all PEs of its row: (rows, columns, features).

        Raises:
            OpenwaferError: they have another shape or type, or are not finite.
        """
        check_operand(name, numbers, (self.num_features,), Precision.F32)
        check_finite(name, numbers)
        spread = self.dealing.spread(numbers, self.grid.rows, self.features)
        return spread[:, None].repeat(self.grid.columns, 1)

    @property
    def params(self) -> dict[str, Param]:
        """Of programs."""
        trees = params_of(None, self.tree)
        return {
            "rows": self.grid.rows,
            "columns": self.grid.columns,
            "num_features": self.num_features,
            "tokens": self.tokens,
            "column_shape": trees["column_shape"],
            "column_group": trees["column_group"],
        }

    def sums_cycles(self, num_words: int, *, follows: bool = False) -> int:
        """Of sums of so many numbers along a column, which all of its PEs get.

        The last row's PE makes a descriptor and loads two registers until it sends, and then the
        first row's, which has them all.

        Args:
            num_words: of each PE.
            follows: whether there are sums before, which the last row's PE has got last.
        """
        if not self.tree:
            return 0
        rows, arch = self.grid.rows, self.arch
        sent = DESCRIPTOR_CYCLES + registers_cycles(arch)
        there = sent + self.tree.cycles(rows, num_words, arch, follows=follows)
        back = sent + broadcast_cycles(rows, 1, num_words, arch)
        return round(there + back)

    @property
    def tokens_of_columns(self) -> NDArray[np.int64]:
        """Of a PE of each column, of which the last ones may be padded."""
        before = self.tokens * np.arange(self.grid.columns)
        return np.clip(self.num_tokens - before, 0, self.tokens)

    @property
    def sums_drain_cycles(self) -> int:
        """What code that reads such sums waits for: what comes from other PEs waits less."""
        timing = GENERATIONS[self.arch].timing
        is_alone = self.tree is None
        return drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=is_alone)

    @property
    def begin_cycles(self) -> int:
        """Until the last column of PEs has begun and looked at the clock, of what no row sends."""
        return LOOK_CYCLES + start_delay(self.grid.columns, self.arch)

    def row_end(self, ready: NDArray[np.int64], num_words: int) -> int:
        """When sums of so many numbers along a row have ended, at its first PE.

        They begin at the second one, come back by all of the row, and a PE adds its own when it is
        ready. A queue of few words has room for the next one when the first has arrived.

        Args:
            ready: cycles of each column of PEs from its own begin.
            num_words: of each PE.
        """
        columns, generation = self.grid.columns, GENERATIONS[self.arch]
        ready = ready + _SUM_CYCLES
        if columns == 1:
            return int(ready[0])
        timing = generation.timing
        pace = max(1, timing.arrival_cycles / generation.input_queue_words[_ROW_QUEUE])
        loaded = ready + DESCRIPTOR_CYCLES + registers_cycles(self.arch)
        senders = np.arange(1, columns)
        begins = loaded[1:] + timing.beat_cycles + timing.hop_cycles * senders
        way = way_cycles(1, self.arch) * (columns - 1 - senders) + way_cycles(
            columns - 1, self.arch
        )
        first = max(int((begins + way).max()), int(loaded[0]))
        return round(first + pace * (num_words - 1) + timing.drain_cycles)


def resting(
    shape: tuple[int, int], size: tuple[int, int], arch: str, *, message: int = 1
) -> Resting:
    """Activations of a shape on a rectangle of PEs.

    Args:
        shape: features and tokens.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        message: numbers of a token that are added up along a column at once.

    Raises:
        OpenwaferError: there are none, or more rows of PEs than features, or no room.
    """
    generation = known_arch(arch)
    check_rectangle(*size, generation)
    num_features, num_tokens = shape
    if num_features < size[0] or num_tokens < 1:
        raise error(
            "kernel-shape",
            f"{num_features} features of {num_tokens} tokens on {size[0]} rows of PEs",
            help="give a feature for each row of PEs or more, and 1 token or more",
        )
    grid = Grid(*size, tile_length(num_tokens, size[1], 4))
    words = message * grid.tokens
    tree = best_tree(size[0], words, words, generation) if size[0] > 1 else None
    return Resting(num_features, num_tokens, grid, generation, tree)


def check_fit(at_rest: Resting, taken_bytes: int) -> None:
    """Refuse a layer that takes so many bytes of a PE, if it has not as many.

    Raises:
        OpenwaferError: it does not fit.
    """
    check_memory(taken_bytes, f"{at_rest.features} features of {at_rest.tokens} tokens")


def memory_bytes(num_words: int) -> int:
    """Bytes of a PE with so many 32-bit words, and with what is kept for code."""
    return 4 * num_words + CODE_BYTES


def shape_of(x: NDArray[Any]) -> tuple[int, int]:
    """Features and tokens of activations.

    Raises:
        OpenwaferError: they have other dims.
    """
    if x.ndim != 2:
        raise error("kernel-shape", f"X has the shape {x.shape}", help="give a matrix")
    return x.shape[0], x.shape[1]
