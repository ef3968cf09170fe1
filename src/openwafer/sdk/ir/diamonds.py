"""Conditions that only choose values: the machine's compiler needs no branch for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.ir.function import Block, Function
from openwafer.sdk.ir.operations import PURE
from openwafer.sdk.ir.suspension import successors

# What is a routine of the machine is not done for nothing.
_CALCULATES: Final = PURE - {"div", "rem", "math"}
_MOST_INSTRUCTIONS: Final = 12


@dataclass(frozen=True)
class Diamond:
    """What lies between a branch and the block where its ways meet again.

    Attributes:
        ways: the blocks that the branch leads to, in the order of its targets.
        end: label of the block that both lead to.
    """

    ways: tuple[Block, Block]
    end: str


def diamonds(function: Function) -> dict[str, Diamond]:
    """By label of the block with the branch; both ways only calculate, and set variables."""
    return function.once(diamonds, lambda one: dict(_found(one.blocks)))


def _found(blocks: Sequence[Block]) -> list[tuple[str, Diamond]]:
    leading: dict[str, int] = {}
    for block in blocks:
        for label in successors(block):
            leading[label] = leading.get(label, 0) + 1
    found = []
    for head, first, second, end in zip(blocks, blocks[1:], blocks[2:], blocks[3:], strict=False):
        last = head.instructions[-1]
        is_diamond = last.op == "branch" and last.names == (first.label, second.label)
        ways_end = successors(first) == successors(second) == (end.label,)
        is_alone = [leading[way.label] for way in (first, second, end) if is_diamond] == [1, 1, 2]
        # What the machine steps is not charged, and the ways would be part of it.
        is_plain = not head.is_stepped
        if ways_end and is_alone and is_plain and _only_chooses(first) and _only_chooses(second):
            found.append((head.label, Diamond((first, second), end.label)))
    return found


def _only_chooses(way: Block) -> bool:
    *others, _ = way.instructions
    ops = {one.op for one in others}
    return len(others) <= _MOST_INSTRUCTIONS and ops <= _CALCULATES | {"set"}
