"""Shapes of sums along a line of PEs, and what the published model says that they cost.

The formulas are those of arXiv 2404.15888: contention or energy over links, and distance, and what
a PE on the way adds (its ramps both ways and a cycle). They are for WSE-2, whose hops take a cycle;
here a hop takes what it does on the generation. Of a star the published form has no distance, as
its messages follow one another without a gap where a hop takes as long as a word; where it takes
longer, the farthest PE's message may be what the sum waits for.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.kernels.operands import check_fields


class Shape(StrEnum):
    """Who adds up what: all at the first PE, one after another, by halves, or chains of chains."""

    STAR = "star"
    CHAIN = "chain"
    TREE = "tree"
    TWO_PHASE = "two-phase"

    @property
    def number(self) -> int:
        """What ``<kernels/reduce/layout>`` calls it."""
        return list(Shape).index(self)


MAX_ELEMENTS: Final = 65_535
"""Of one vector operation."""


@dataclass(frozen=True)
class Tree:
    """A shape of sums along a line.

    Attributes:
        shape: who sends to whom.
        group: PEs of a group of ``two-phase``; 1 with other shapes.
    """

    shape: Shape
    group: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.group < 1:
            raise error(
                "kernel-tree", f"a group of {self.group} PEs", help="give a group of 1 PE or more"
            )

    def num_additions(self, num_pes: int) -> int:
        """The most additions that a value goes through on its way to the first PE."""
        match self.shape:
            case Shape.STAR | Shape.CHAIN:
                return num_pes - 1
            case Shape.TREE:
                return (num_pes - 1).bit_length()
            case Shape.TWO_PHASE:
                return min(self.group, num_pes) - 1 + ceil(num_pes / self.group) - 1

    def cycles(
        self, num_pes: int, num_words: int, arch: Arch, *, is_staggered: bool = False
    ) -> float:
        """Cycles of the published model from the first PE's start, for `num_words` wavelets each.

        Args:
            num_pes: of the line.
            num_words: wavelets from each PE.
            arch: the generation.
            is_staggered: whether each PE begins a hop behind the one farther from the first, as
                columns do of which a row is added up. Then messages come as if there were no way.
        """
        if num_pes == 1:
            return 0
        timing = GENERATIONS[arch].timing
        hop = 0 if is_staggered else timing.hop_cycles
        step = 2 * timing.ramp_cycles + 1
        distance = hop * (num_pes - 1)
        match self.shape:
            case Shape.STAR:
                # Behind the message of a PE come those of all that are farther: the nearest one's
                # has least way and most words behind it, the farthest one's most way and none.
                return max(hop + num_words * (num_pes - 1), distance + num_words) + step
            case Shape.CHAIN:
                return num_words + distance + step * (num_pes - 1)
            case Shape.TREE:
                line = _line(num_words, hop, arch)
                return _last_message(num_pes, line, is_first=True).begin + num_words
            case Shape.TWO_PHASE:
                # Of one group, or of groups of one PE, there is only one phase.
                phases = (min(self.group, num_pes) > 1) + (self.group < num_pes)
                return phases * num_words + distance + step * self.num_additions(num_pes)

    def command_cycles(
        self, num_pes: int, num_words: int, arch: Arch, *, is_staggered: bool = False
    ) -> float:
        """How much later than the sum its last sender ends, by the instructions of the program.

        Behind its words it sends a command that turns back the switches which they have passed, by
        a task of its own, and a further task begins when that has ended. On short lines the sum is
        there before. Arguments are those of :meth:`cycles`.
        """
        distance = self._last_child(num_pes)
        if distance == 1:
            return 0
        timing = GENERATIONS[arch].timing
        hop = 0 if is_staggered else timing.hop_cycles
        there = self.cycles(num_pes, num_words, arch, is_staggered=is_staggered) - 1
        match self.shape:
            case Shape.STAR:
                own = _Message(0, 0)
            case Shape.TREE:
                line = _line(num_words, hop, arch)
                own = _last_message(num_pes - distance, line)
            case _:
                first = there - num_words + 1 - hop * distance - 2 * timing.ramp_cycles - 1
                own = _Message(first, -timing.switch_cycles)
        # A task begins no sooner than the one before lets it, whose last instruction issued words.
        issued = own.ready - timing.beat_cycles + 1
        sent = max(own.begin + num_words - 1 + timing.task_cycles, issued + timing.switch_cycles)
        done = sent + load_cycles(2, timing.load_latency) + 1 + timing.switch_cycles
        sooner = timing.hop_cycles * distance if is_staggered else 0
        return max(0, done - sooner - there - timing.task_cycles)

    def _last_child(self, num_pes: int) -> int:
        """Position of the PE whose message the first one takes last."""
        match self.shape:
            case Shape.STAR:
                return max(1, num_pes - 1)
            case Shape.TREE:
                return 1 << max(0, (num_pes - 1).bit_length() - 1)
            case Shape.TWO_PHASE if self.group < num_pes:
                return self.group
            case _:
                return 1

    def most_elements(self, num_pes: int, length: int) -> int:
        """Elements of the longest operation of a PE."""
        return length * (num_pes - 1 if self.shape is Shape.STAR else self.num_additions(num_pes))


class _Line(NamedTuple):
    """Of a line: wavelets of a message, and cycles of a hop, of a PE that adds on the way, and
    from a PE's last word of one operation to its first one of the next."""

    words: int
    hop: int
    step: int
    again: int


class _Message(NamedTuple):
    """When a PE takes the first word of its last message, and when it is ready for it."""

    begin: float
    ready: float


def _line(num_words: int, hop: int, arch: Arch) -> _Line:
    timing = GENERATIONS[arch].timing
    again = load_cycles(3, timing.load_latency) + timing.beat_cycles - 1
    return _Line(num_words, hop, 2 * timing.ramp_cycles + 1, again)


@lru_cache(maxsize=4096)
def _last_message(num_pes: int, line: _Line, *, is_first: bool = False) -> _Message:
    """The last message that the first of some PEs takes which add up by halves.

    It takes messages one after another, of 1, 2, 4 and so on PEs, each when it comes. The first PE
    of the line has one operation for all of them; another one has a second one for the last
    message, which it sends on as it comes.
    """
    last, free = _Message(0, 0), 0.0
    for distance in (1 << bit for bit in range((num_pes - 1).bit_length())):
        others = min(distance, num_pes - distance)
        comes = _last_message(others, line).begin + line.hop * distance + line.step
        is_another = not is_first and distance > 1 and 2 * distance >= num_pes
        ready = free + line.again * is_another
        last = _Message(max(comes, ready), ready)
        free = last.begin + line.words
    return last


def best_tree(
    num_pes: int, length: int, num_words: int, arch: Arch, *, is_staggered: bool = False
) -> Tree:
    """The tree of the fewest cycles by the model.

    Args:
        num_pes: of the line.
        length: elements of each PE.
        num_words: wavelets that they take.
        arch: the generation.
        is_staggered: as of :meth:`Tree.cycles`.
    """
    groups = range(2, max(3, num_pes // 2 + 1))
    trees = [Tree(shape) for shape in Shape if shape is not Shape.TWO_PHASE]
    trees += [Tree(Shape.TWO_PHASE, group) for group in groups]
    # Of equal ones the first, and a chain is never too long for an operation.
    allowed = [
        tree
        for tree in trees
        if tree.shape is Shape.CHAIN or tree.most_elements(num_pes, length) <= MAX_ELEMENTS
    ]

    def taken(tree: Tree) -> float:
        return tree.cycles(num_pes, num_words, arch, is_staggered=is_staggered)

    return min(allowed, key=taken)


def params_of(row: Tree | None, column: Tree | None) -> dict[str, int]:
    """Params of ``<kernels/all_reduce/layout>``: any tree does where nothing is added up."""
    row, column = row or Tree(Shape.CHAIN), column or Tree(Shape.CHAIN)
    return {
        "row_shape": row.shape.number,
        "row_group": row.group,
        "column_shape": column.shape.number,
        "column_group": column.group,
    }


def broadcast_cycles(rows: int, columns: int, num_words: int, arch: Arch) -> float:
    """Cycles of the published model for a broadcast from a corner to all PEs."""
    if rows * columns == 1:
        return 0
    timing = GENERATIONS[arch].timing
    distance = timing.hop_cycles * (rows + columns - 2)
    return num_words + distance + 2 * timing.ramp_cycles + 1


def start_delay(columns: int, arch: Arch) -> int:
    """Cycles until the last column begins: a command reaches each a hop behind the one before."""
    return GENERATIONS[arch].timing.hop_cycles * (columns - 1)
