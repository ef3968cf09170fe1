"""Shapes of sums along a line of PEs, and what the published model says that they cost.

The formulas are those of arXiv 2404.15888: contention or energy over links, and distance, and what
a PE on the way adds (its ramps both ways and a cycle). They are for WSE-2, whose hops take a cycle;
here a hop takes what it does on the generation. Of a star the published form has no distance, as
its messages follow one another without a gap where a hop takes as long as a word; where it takes
longer, the farthest PE's message may be what the sum waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil, inf
from typing import Final, NamedTuple

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.fabric.words import CHANNEL_DEPTH
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


_READY: Final = 1
"""Cycles that a PE which adds begins later than one that only sends: of a register more."""
_TURN: Final = 1
"""Cycles between two messages, of the wavelet that turns the switch for the second one."""
_COMMANDED: Final = 3
"""Additions, at least, between the first PE and one on whose command messages have to wait."""
_QUEUE: Final = 3
"""The output queue that sums are sent by."""


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
        self,
        num_pes: int,
        num_words: int,
        arch: Arch,
        *,
        is_staggered: bool = False,
        follows: bool = False,
    ) -> float:
        """Cycles of the published model from the first PE's start, for `num_words` wavelets each.

        Args:
            num_pes: of the line.
            num_words: wavelets from each PE.
            arch: the generation.
            is_staggered: whether each PE begins a hop behind the one farther from the first, as
                columns do of which a row is added up. Then messages come as if there were no way.
            follows: whether each PE begins a hop behind the one nearer to the first, as behind
                what the first one has sent to all. Then cycles are those from the last one's start.
        """
        if num_pes == 1:
            return 0
        line, timing = _line(num_words, arch, is_staggered), GENERATIONS[arch].timing
        if follows:
            # By each PE's own clock a message's way is twice as long.
            last = _last_message(self, num_pes, line._replace(hop=2 * line.hop), is_first=True)
            return last.begin + num_words - line.hop * (num_pes - 1)
        last = _last_message(self, num_pes, line, is_first=True)
        # The task behind the sum begins no sooner than the one before lets it, which ends as it
        # has issued the first PE's operation.
        least = timing.switch_cycles - timing.beat_cycles - timing.task_cycles + 3
        return max(last.begin + num_words, least)

    def command_cycles(
        self, num_pes: int, num_words: int, arch: Arch, *, is_staggered: bool = False
    ) -> float:
        """How much later than the sum its last sender ends, by the instructions of the program.

        Behind its words it sends a command that turns back the switches which they have passed, by
        a task of its own, and a further task begins when that has ended. On short lines the sum is
        there before. Arguments are those of :meth:`cycles`.
        """
        children = self._children(num_pes)
        if len(children) < 2:
            return 0
        *_, before, distance = children
        timing, line = GENERATIONS[arch].timing, _line(num_words, arch, is_staggered)
        there = _last_message(self, num_pes, line, is_first=True).begin + num_words - 1
        own = _last_message(self, num_pes - distance, line)
        last = own.begin + num_words - 1
        sooner = timing.hop_cycles * distance if is_staggered else 0
        # Words that have no room on the way wait in the sender until the child before has sent.
        room = GENERATIONS[arch].output_queue_words[_QUEUE]
        if num_words > room + CHANNEL_DEPTH * (distance - before):
            way = _full_way_cycles(children, timing) - sooner
            last = max(last, there - way - room + timing.place_known_cycles)
        sent = line.sent(last, own.ready)
        done = sent + load_cycles(2, timing.load_latency) + 1 + timing.switch_cycles
        return max(0, done - sooner - there - timing.task_cycles)

    def _children(self, num_pes: int) -> Sequence[int]:
        """Positions of the PEs whose messages the first one takes, one behind the other."""
        match self.shape:
            case Shape.STAR:
                return range(1, num_pes)
            case Shape.TREE:
                return [1 << bit for bit in range((num_pes - 1).bit_length())]
            case Shape.TWO_PHASE if 1 < self.group < num_pes:
                return 1, self.group
            case _:
                return (1,)

    def most_elements(self, num_pes: int, length: int) -> int:
        """Elements of the longest operation of a PE."""
        return length * (num_pes - 1 if self.shape is Shape.STAR else self.num_additions(num_pes))


def _full_way_cycles(children: Sequence[int], timing: Timing) -> int:
    """From the landing of the last child's words at its router to the first PE's core.

    All routers on the way have been full but that of the nearest child, which sends at once. A full
    one takes a word as soon as one has left it, and the wavelet that turns the switch of a child
    leaves room for one more.
    """
    held = (CHANNEL_DEPTH - 1) * (children[-1] - 1) - (len(children) - 2)
    return timing.arrival_cycles + timing.hop_cycles + held


class _Line(NamedTuple):
    """A line's messages: wavelets of each, cycles of a hop, and the generation's timing."""

    words: int
    hop: int
    timing: Timing

    def comes(self, begin: float, distance: int) -> float:
        """When a message is added that begins so many PEs away."""
        return begin + self.hop * distance + 2 * self.timing.ramp_cycles + 1

    @property
    def again(self) -> int:
        """Cycles from behind a PE's last word of one operation to its first one of the next."""
        return load_cycles(3, self.timing.load_latency)

    def sent(self, last: float, ready: float) -> float:
        """When the task begins that sends a command behind a PE's last word.

        It begins no sooner than the task before lets it, whose last instruction issued the words.
        """
        issued = ready - self.timing.beat_cycles + 1
        return max(last + self.timing.task_cycles, issued + self.timing.switch_cycles)

    def passes(self, own: "_Message", distance: int) -> float:
        """When a message is added that waits for the command of a PE which is so far away."""
        timing = self.timing
        sent = self.sent(own.begin + self.words - 1, own.ready)
        command = sent + load_cycles(2, timing.load_latency) + timing.beat_cycles
        return self.comes(command, distance) + _TURN


class _Message(NamedTuple):
    """When a PE takes the first word of its last message, and when it is ready for it."""

    begin: float
    ready: float


def _line(num_words: int, arch: Arch, is_staggered: bool) -> _Line:
    timing = GENERATIONS[arch].timing
    return _Line(num_words, 0 if is_staggered else timing.hop_cycles, timing)


def _last_message(tree: Tree, num_pes: int, line: _Line, *, is_first: bool = False) -> _Message:
    """The last message that the first of some PEs takes, behind one that sends at once.

    Times are those since a PE without others has sent its first word.
    """
    if num_pes == 1:
        return _Message(0, 0)
    match tree.shape:
        case Shape.STAR:
            # Behind the message of a PE come those of all that are farther: the nearest one's
            # has least way and most words behind it, the farthest one's most way and none.
            behind = line.words * (num_pes - 2) + (_TURN if num_pes > 2 else 0)
            begin = max(line.comes(behind, 1), line.comes(0, num_pes - 1))
            return _Message(begin, _READY)
        case Shape.CHAIN:
            return _Message(line.comes(0, 1) * (num_pes - 1), _READY)
        case Shape.TREE:
            return _last_of_halves(num_pes, line, is_first=is_first)
        case Shape.TWO_PHASE:
            return _last_of_groups(num_pes, tree.group, line, is_first=is_first)


def _last_of_groups(num_pes: int, group: int, line: _Line, *, is_first: bool) -> _Message:
    """Of chains of PEs, of whose first ones another chain is made."""
    chain, num_others = line.comes(0, 1), ceil(num_pes / group) - 1
    if num_others == 0 or group == 1:
        return _Message(chain * (num_pes - 1), _READY)
    # Two messages of a first PE: the chain's, and behind it that of the next first one.
    free = chain * (group - 1) + line.words
    opened = _opened_in_chain(group, line)
    begin, ready = chain * (num_pes - num_others * group - 1), free + line.again
    if num_others > 1:
        begin = max(line.comes(begin, group), ready, opened)
        begin += (num_others - 2) * line.comes(0, group)
    ready = free + _TURN if is_first else ready
    return _Message(max(line.comes(begin, group), ready, opened), ready)


def _opened_in_chain(group: int, line: _Line) -> float:
    """When the next group's message can come past a chain, which uses its color every other PE."""
    if group <= _COMMANDED:
        return 0
    num_behind = group - 1 - _COMMANDED
    own = _Message(line.comes(0, 1) * num_behind, _READY if num_behind else 0)
    return line.passes(own, _COMMANDED)


@lru_cache(maxsize=4096)
def _last_of_halves(num_pes: int, line: _Line, *, is_first: bool = False) -> _Message:
    """Of PEs that add up by halves.

    The first one takes messages one after another, of 1, 2, 4 and so on PEs, each when it comes.
    The first PE of the line has one operation for all of them; another one has a second one for
    the last message, which it sends on as it comes.
    """
    last, ready = _Message(0, 0), float(_READY)
    for distance in (1 << bit for bit in range((num_pes - 1).bit_length())):
        own = _last_of_halves(min(distance, num_pes - distance), line)
        if not is_first and distance > 1 and 2 * distance >= num_pes:
            ready = last.begin + line.words + line.again
        comes = max(line.comes(own.begin, distance), _opened_by_halves(distance, line))
        last = _Message(max(comes, ready), ready)
        # The wavelet that turns the switch passes while words on the way wait.
        ready = last.begin + line.words + (_TURN if comes >= ready else 0)
    return last


@lru_cache(maxsize=4096)
def _opened_by_halves(distance: int, line: _Line) -> float:
    """When the message of a PE can come past all others, those of which use its color.

    They do so at an odd depth, and the last one of several that send to a PE does it by a command.
    """
    opened = 0.0
    for position in range(distance):
        size = position & -position
        if position.bit_count() >= _COMMANDED and position.bit_count() % 2 and position & 2 * size:
            opened = max(opened, line.passes(_last_of_halves(size, line), position))
    return opened


def best_tree(
    num_pes: int,
    length: int,
    num_words: int,
    arch: Arch,
    *,
    is_staggered: bool = False,
    slack: float = inf,
) -> Tree:
    """The tree of the fewest cycles by the model.

    Args:
        num_pes: of the line.
        length: elements of each PE.
        num_words: wavelets that they take.
        arch: the generation.
        is_staggered: as of :meth:`Tree.cycles`.
        slack: cycles behind the sum in which nothing waits for its last sender; infinity if
            nothing ever does.
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
        there = tree.cycles(num_pes, num_words, arch, is_staggered=is_staggered)
        late = tree.command_cycles(num_pes, num_words, arch, is_staggered=is_staggered)
        return there + max(0, late - slack)

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
    return num_words + way_cycles(rows + columns - 2, arch)


def way_cycles(num_hops: int, arch: Arch) -> int:
    """Of a word from one core to another, so many hops away."""
    timing = GENERATIONS[arch].timing
    return 2 * timing.ramp_cycles + 1 + timing.hop_cycles * num_hops


def start_delay(columns: int, arch: Arch) -> int:
    """Cycles until the last column begins: a command reaches each a hop behind the one before."""
    return GENERATIONS[arch].timing.hop_cycles * (columns - 1)
