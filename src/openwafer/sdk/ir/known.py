"""What is known of memory and variables at a point of a function; numbers stand for the values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from openwafer.sdk.ir.function import Type

Number: TypeAlias = int
"""Stands for a value: equal numbers are equal values."""
MemoryCell: TypeAlias = tuple[Number, int]
"""An address: a value and a constant offset in words."""


@dataclass(slots=True)
class Dsd:
    """A descriptor: where it lies, and words that differ from what lies there."""

    home: MemoryCell | None
    words: dict[int, Number]


@dataclass(slots=True)
class Known:
    """What is known of memory and variables at a point of a function.

    Attributes:
        memory: values by the cell that they were loaded from or stored to.
        slots: values of variables.
        computed: values that were computed and that the machine's compiler still has.
    """

    memory: dict[tuple[MemoryCell, Type], Number] = field(default_factory=dict)
    slots: dict[str, Number] = field(default_factory=dict)
    computed: set[Number] = field(default_factory=set)


def agreed(ends: Sequence["Known | None"]) -> "Known":
    """What the ends of all blocks that lead to a place know; one still to come knows nothing."""
    first, *others = ends or [None]
    if first is None or None in others:
        return Known()
    memory, slots, computed = dict(first.memory), dict(first.slots), set(first.computed)
    for other in others:
        assert other is not None
        memory = dict(memory.items() & other.memory.items())
        slots = dict(slots.items() & other.slots.items())
        computed &= other.computed
    return Known(memory, slots, computed)


class Numbers:
    """Numbers the values of a function, and keeps what descriptors are."""

    def __init__(self) -> None:
        self._of: dict[object, Number] = {}
        self.offsets: dict[Number, MemoryCell] = {}
        self.variables: set[Number] = set()
        self.constants: set[Number] = set()
        self.dsds: dict[Number, Dsd] = {}

    def of(self, key: object) -> Number:
        """The number of what a key describes."""
        return self._of.setdefault(key, len(self._of))

    def variable(self, key: object) -> Number:
        """The address of a variable, which no pointer is taken to reach."""
        number = self.of(key)
        self.variables.add(number)
        return number

    def constant(self, key: object) -> Number:
        """A value that is known when the machine's code is made."""
        number = self.of(("constant", key))
        self.constants.add(number)
        return number

    def fresh(self) -> Number:
        """A value that equals no other one."""
        return self.of(("fresh", len(self._of)))
