"""Loops that the machine's compiler writes out: a known number of turns, and little in all.

The cost of such a loop is that of its body, with the counter as a constant.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from openwafer.sdk.ir.arithmetic import BINARY
from openwafer.sdk.ir.function import (
    DSDS,
    Block,
    Constant,
    Function,
    Instruction,
    Register,
    Value,
)

_MOST_INSTRUCTIONS: Final = 150
"""Of all turns: what LLVM takes, on which the vendor's compiler is built."""
_FREE: Final = frozenset(
    ("get", "set", "jump", "cast", "bitcast", "word_of", "at_word", "assert", "drain")
)
_OF_NUMBERS: Final = BINARY | {"shl", "shr", "neg", "bitnot", "cast"}


def unrolled_counters(function: Function) -> dict[str, str]:
    """By label of a loop's head, the slot that counts its turns, where the loop is written out."""
    return function.once(unrolled_counters, lambda one: dict(_found(one.blocks)))


def _found(blocks: Sequence[Block]) -> Iterator[tuple[str, str]]:
    places = {block.label: place for place, block in enumerate(blocks)}
    for end, last in enumerate(blocks):
        jump = last.instructions[-1]
        begin = places[jump.names[0]] if last.is_loop_end and jump.op == "jump" else -1
        body = blocks[begin : end + 1]
        if begin < 1 or any(block.is_loop_end or block.is_stepped for block in body[:-1]):
            continue
        slot, limit = _test(body[0])
        start = _constant_set(blocks[begin - 1].instructions, slot)
        step = _step(last.instructions, slot)
        if limit is None or start is None or not step:
            continue
        num_turns = -((start - limit) // step)
        if 0 < num_turns * sum(_weight(block, slot) for block in body[1:]) <= _MOST_INSTRUCTIONS:
            yield body[0].label, slot


def _test(head: Block) -> tuple[str, int | None]:
    """The counter and its limit, where a loop's head does nothing but compare these."""
    match [one for one in head.instructions if one.op != "assert"]:
        case [
            Instruction(op="get", names=(slot,)),
            Instruction(op="ne" | "lt", args=(Register(), Constant(int() as limit))),
            Instruction(op="branch"),
        ]:
            return slot, limit
        case _:
            return "", None


def _constant_set(instructions: Sequence[Instruction], slot: str) -> int | None:
    """What a block leaves in a slot, where that is a constant."""
    for one in reversed(instructions):
        if one.op == "set" and one.names[0] == slot:
            value = one.args[0]
            known = value.value if isinstance(value, Constant) else None
            return known if isinstance(known, int) else None
    return None


def _step(instructions: Sequence[Instruction], slot: str) -> int:
    """What is added to the counter behind each turn; 0 where that is not all that happens to it."""
    match [one for one in instructions if one.op in ("get", "add", "set")][-3:]:
        case [
            Instruction(op="get", names=(taken,), result=before),
            Instruction(op="add", args=(Register(number), Constant(int() as step)), result=after),
            Instruction(op="set", names=(changed,), args=(Register(stored),)),
        ] if taken == changed == slot and (number, stored) == (before, after):
            return step
        case _:
            return 0


def _weight(block: Block, counter: str) -> int:
    """Instructions of a turn that the counter and constants do not settle."""
    weight, settled = 0, set[int]()
    for one in block.instructions:
        is_counter = one.op == "get" and one.names == (counter,)
        if is_counter or (
            one.op in _OF_NUMBERS and all(_is_settled(arg, settled) for arg in one.args)
        ):
            settled.add(one.result)
        elif one.op not in _FREE:
            weight += 1 + sum(arg.type in DSDS for arg in one.args)
    return weight


def _is_settled(value: Value, settled: set[int]) -> bool:
    return value.number in settled if isinstance(value, Register) else True
