"""Predicted cycles of attention of activations at rest, by the lines of ``<kernels/attention>``."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import drain_cycles, load_cycles
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.ir.prices import (
    constant_product_cycles,
    constant_quotient_cycles,
    constant_remainder_cycles,
)
from openwafer.sdk.kernels.elementary import exponential_cycles, inverse_cycles
from openwafer.sdk.kernels.operations import (
    MEETS,
    Operation,
    chain_cycles,
    in_place,
    of_again,
    of_one,
    that_meet,
)
from openwafer.sdk.kernels.resting import Resting
from openwafer.sdk.kernels.running import loop_cycles, registers_cycles
from openwafer.sdk.kernels.trees import way_cycles

_ZEROS: Final = Operation("fmovs", num_registers=1)
_ONE_NUMBER: Final = Operation("fadds", turns=MEETS)
"""Of sums that one number after another takes, whose write takes a turn as well. In some layouts it
meets a read in a bank of eight, which is not counted."""
_GREATEST: Final = Operation("fmaxs", turns=MEETS)
"""The same of greatest numbers."""
_STEP_CYCLES: Final = 9
"""Of the instructions by which a PE knows its block and whether it is seen, without a remainder."""
_SEEN_CYCLES: Final = (5, 4)
"""Of those that call what looks at it, forward and backward, before which a pointer is loaded."""
_UNSEEN_CYCLES: Final = 6
"""Of the branch past that."""
_LOOK_CYCLES: Final = (37, 7)
"""Of those between the operations of a block, forward and backward."""
_SHARE_CYCLES: Final = (5, 14)
"""The same for each feature of a head."""
_MULTIPLY_CYCLES: Final = 5
"""Of those of products of queries and keys, for each feature of a head."""
_CALL_CYCLES: Final = 15
"""Of a call of these where they are too long to be put in its place."""
_PASS_CYCLES: Final = 15
"""Of those that send a block on and receive one."""
_TURN_CYCLES: Final = 3
"""Between sending and receiving."""
_NEXT_CYCLES: Final = 3
"""Of those that exchange the blocks' pointers."""
_AROUND_CYCLES: Final = (13, 16)
"""Of those before and behind all blocks."""
_MASK_CYCLES: Final = (8, 15)
"""Of those that look whether a block is masked: where it is the PE's own, and elsewhere."""
_QUERY_CYCLES: Final = 9
"""Of those for a query of it, without the quotient and product of its sequence's begin."""
_BEFORE_CYCLES: Final = 2
"""More where keys before its sequence are masked."""
_BEHIND_CYCLES: Final = (8, 12)
"""More where no key is behind it, and where those behind it are masked."""
_COUNTED_CYCLES: Final = 5
"""More where the loop over queries is not written out."""
_MOST_UNROLLED: Final = 4
"""Queries of all heads whose loop is written out."""


@dataclass(frozen=True)
class AttentionCycles:
    """Cycles of both passes, from the first PE's start to the last one's end.

    They are those of the column of PEs that sees most blocks. It passes on all of them.

    Attributes:
        heads: that features belong to.
        length: tokens of a sequence.
        at_rest: where activations lie.
    """

    heads: int
    length: int
    at_rest: Resting

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Of keys that the queries of each column of PEs see."""
        columns, tokens = np.arange(self.at_rest.grid.columns), self.at_rest.tokens
        first = columns * tokens // self.length * self.length
        seen: NDArray[np.int64] = columns - first // tokens + 1
        return seen

    @property
    def forward(self) -> int:
        """Predicted cycles of the forward pass."""
        at_rest, size, queries = self.at_rest, self.at_rest.size, self._queries
        timing, arch = self._timing, at_rest.arch
        copies = of_one("fmuls", "fmovs", "fmovs")
        taken = chain_cycles((*copies, _ZEROS, *that_meet("fmuls")), size, arch)
        taken += chain_cycles(2 * (_ZEROS,), queries, arch) + inverse_cycles(queries, arch)
        taken += self._around(3, 3, is_backward=False) + self._steps(self._look, is_backward=False)
        taken += (at_rest.grid.columns - 1) * self._passed(2 * size)
        # The first block's sums are behind no others.
        first, others = (at_rest.sums_cycles(self._scores, follows=one) for one in (False, True))
        taken += first - others
        return at_rest.begin_cycles + taken + timing.drain_cycles

    @property
    def backward(self) -> int:
        """Predicted cycles of the backward pass."""
        at_rest, size, queries = self.at_rest, self.at_rest.size, self._queries
        arch, timing = at_rest.arch, self._timing
        copies = (*of_one("fmuls", "fmovs", "fmovs"), *that_meet("fmuls"))
        sums = in_place("fadds", arch=arch)
        rest = (_ZEROS, *of_one("fmuls", "fmovs", "fmovs"))
        taken = chain_cycles((*copies, *sums, *rest), size, arch)
        taken += _ZEROS.cycles(2 * size, arch) + _ZEROS.cycles(queries, arch)
        taken += self._around(4, 5, is_backward=True) + 2 * (timing.load_latency - 1)
        taken += at_rest.sums_cycles(queries)
        taken += self._steps(self._look_back, is_backward=True)
        taken += at_rest.grid.columns * self._passed(4 * size)
        return at_rest.begin_cycles + taken + timing.drain_cycles

    def _around(self, pointers: int, num_drains: int, *, is_backward: bool) -> int:
        """Of what is before and behind all blocks: pointers of them wait for copies."""
        timing = self._timing
        taken = load_cycles(pointers, timing.load_latency) + timing.load_latency - 1
        return taken + _AROUND_CYCLES[is_backward] + num_drains * timing.drain_cycles

    def _steps(self, look: int, *, is_backward: bool) -> int:
        """Of all blocks, those that are seen and others, without their passes."""
        at_rest, timing = self.at_rest, self._timing
        columns, blocks = at_rest.grid.columns, int(self.blocks.max())
        known = _STEP_CYCLES + constant_remainder_cycles(1, columns)
        seen = _SEEN_CYCLES[is_backward] + timing.load_latency - 1 + look
        return columns * known + blocks * seen + (columns - blocks) * _UNSEEN_CYCLES + self._masks

    def _passed(self, num_words: int) -> int:
        """Of a block of so many words that goes one PE on, behind the last operation.

        Every other PE sends first, and then receives from one that has received first.
        """
        timing, columns = self._timing, self.at_rest.grid.columns
        taken = _NEXT_CYCLES + timing.load_latency - 1 + timing.drain_cycles
        taken += drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=columns == 1)
        if columns == 1:
            return (
                taken
                + _PASS_CYCLES
                - _TURN_CYCLES
                + chain_cycles(of_one("fmovs"), num_words, self.at_rest.arch)
            )
        arch = self.at_rest.arch
        once = registers_cycles(arch) + way_cycles(1, arch) + num_words
        return taken + _PASS_CYCLES + 1 + 2 * once

    @property
    def _look(self) -> int:
        """Of a block, forward."""
        at_rest, arch, share, queries = self.at_rest, self._arch, self._share, self._queries
        scores, timing = self._scores, self._timing
        taken = _LOOK_CYCLES[0] + share * (_SHARE_CYCLES[0] + 2 * timing.drain_cycles)
        taken += self._multiply + at_rest.sums_cycles(scores, follows=True)
        taken += exponential_cycles(queries, arch) + exponential_cycles(scores, arch)
        of_queries = (*of_one("fmovs", "fmovs"), *that_meet("fsubs", "fmuls"))
        taken += chain_cycles(of_queries, queries, arch)
        of_share = share * (*that_meet("fmuls"), _ONE_NUMBER)
        of_scores = (_GREATEST, *of_again("fsubs"), _ONE_NUMBER, *of_share)
        taken += chain_cycles(of_scores, scores, arch)
        return taken + chain_cycles(that_meet("fmuls"), at_rest.size, arch)

    @property
    def _look_back(self) -> int:
        """Of a block, backward."""
        at_rest, arch, share, scores = self.at_rest, self._arch, self._share, self._scores
        timing, added = self._timing, in_place("fadds", arch=self._arch)
        read = 4 * timing.drain_cycles + timing.drain_cycles + timing.load_latency - 1
        taken = _LOOK_CYCLES[1] + share * (_SHARE_CYCLES[1] + read)
        taken += timing.drain_cycles + 3 * (timing.load_latency - 1)
        taken += 2 * (self._multiply + (_CALL_CYCLES if share > 1 else 0))
        taken += at_rest.sums_cycles(2 * scores, follows=True) + exponential_cycles(scores, arch)
        once = (*of_again("fsubs", "fmuls", "fsubs"), *that_meet("fmuls"))
        of_share = (
            *(*of_again("fmuls"), *added, *that_meet("fmuls"), _ONE_NUMBER),
            *(*of_again("fmuls"), *added),
        )
        return taken + chain_cycles((*once, *share * of_share), scores, arch)

    @property
    def _multiply(self) -> int:
        """Of products of queries and keys, of the PE's features of all heads."""
        share, added = self._share, in_place("fadds", arch=self._arch)
        operations = (*share * of_again("fmuls"), *(share - 1) * added)
        taken = share * _MULTIPLY_CYCLES + (share - 1) * self._timing.drain_cycles
        return taken + chain_cycles(operations, self._scores, self._arch)

    @property
    def _masks(self) -> int:
        """Of scores that are not to be seen, in all blocks of the column that sees most."""
        column, tokens = int(self.blocks.argmax()), self.at_rest.tokens
        begin = (column * tokens) // self.length * self.length
        last = ((column + 1) * tokens - 1) // self.length * self.length
        blocks = range(begin // tokens, column + 1)
        masked = [block for block in blocks if block == column or block * tokens < last]
        taken = sum(_MASK_CYCLES[block != column] for block in blocks)
        return taken + sum(self._mask(column, block) for block in masked)

    def _mask(self, column: int, block: int) -> int:
        """The same of a block of which some queries do not see all."""
        tokens, first = self.at_rest.tokens, block * self.at_rest.tokens
        taken = self._queries * (
            _QUERY_CYCLES
            + constant_quotient_cycles(1, self.length)
            + constant_product_cycles(1, self.length)
        )
        if self._queries > _MOST_UNROLLED:
            taken += loop_cycles(self._queries, self._arch) + self._queries * _COUNTED_CYCLES
        for query in range(column * tokens, (column + 1) * tokens):
            before = min(tokens, max(0, query // self.length * self.length - first))
            behind = max(0, first + tokens - (query + 1))
            masks = _ZEROS.cycles(before, self._arch) + _BEFORE_CYCLES if before else 0
            masks += _BEHIND_CYCLES[behind > 0]
            masks += _ZEROS.cycles(behind, self._arch) if behind else 0
            taken += self.heads * masks
        return taken

    @property
    def _arch(self) -> Arch:
        return self.at_rest.arch

    @property
    def _timing(self) -> Timing:
        return GENERATIONS[self.at_rest.arch].timing

    @property
    def _queries(self) -> int:
        """Of a PE, of all heads."""
        return self.heads * self.at_rest.tokens

    @property
    def _share(self) -> int:
        """Features of a head on a PE."""
        return self.at_rest.size // self._queries

    @property
    def _scores(self) -> int:
        """Of a block of keys with a PE's queries, of all heads."""
        return self._queries * self.at_rest.tokens
