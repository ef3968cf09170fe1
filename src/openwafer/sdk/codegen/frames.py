"""Where the variables of a function lie in its frame, in words from the frame's begin.

A function that may suspend has its resume state in word 0, then its parameters and its result, so
that all functions of a signature agree on them; then the number of the function that it calls
indirectly, the register slots that outlive a suspension, and its memory slots. Other functions
only have memory slots.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.ir.function import Function, Slot, Type
from openwafer.sdk.ir.numbers import num_words

STATE: Final = 0
FIRST_PARAMETER: Final = 1

# Calls of one another also use the host's stack: this bounds their depth far below its size.
_RECURSIVE_FRAME_WORDS: Final = 8


@dataclass(frozen=True)
class Frame:
    """See the module.

    Attributes:
        num_words: length.
        places: first word of every slot that lies in the frame.
        result: first word of the result.
        callee: word that holds the function called indirectly.
    """

    num_words: int
    places: Mapping[str, int]
    result: int = 0
    callee: int = 0


def plain_frame(function: Function, *, is_recursive: bool) -> Frame:
    """Frame of a function that never suspends."""
    places, end = _place(_memory_slots(function), 0)
    return Frame(max(end, _RECURSIVE_FRAME_WORDS if is_recursive else 0), places)


def suspending_frame(function: Function, saved: frozenset[str]) -> Frame:
    """Frame of a function that may suspend; `saved` are the register slots that outlive it."""
    places, result = _place(function.parameters, FIRST_PARAMETER)
    callee = result + result_words(function.return_type)
    rest = [slot for slot in function.slots if slot.name in saved - places.keys()]
    more, end = _place([*rest, *_memory_slots(function)], callee + 1)
    return Frame(end, {**places, **more}, result, callee)


def result_place(function: Function) -> int:
    """First word of the result of a function that is called through its frame."""
    return FIRST_PARAMETER + sum(num_words(slot.type) for slot in function.parameters)


def result_words(kind: Type) -> int:
    """Words that a result takes in the frame."""
    return 0 if kind is Type.VOID else num_words(kind)


def _memory_slots(function: Function) -> list[Slot]:
    return [slot for slot in function.slots if slot.is_memory]


def _place(slots: Iterable[Slot], start: int) -> tuple[dict[str, int], int]:
    places = {}
    for slot in slots:
        places[slot.name] = start
        start += slot.num_words if slot.is_memory else num_words(slot.type)
    return places, start
