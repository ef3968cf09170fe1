"""Counters of code: how often the cycles of each point have passed, and how long operations took.

A module's counters are numbered function by function, in the order of the code: for an instruction
that takes time one for each number of its cycles; behind these two for an operation that code waits
for, how often and how long. Passes behind :func:`~openwafer.sdk.ir.cost.timed` keep that order, so
the number of a counter follows from the place in any of their modules. Code counts in an array of
the PE's own (``COUNTS`` of :mod:`openwafer.sdk.program.mailbox`) where it is asked to.
"""

from collections.abc import Iterator
from typing import NamedTuple

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.ir.cost import charged
from openwafer.sdk.ir.function import Instruction, Module
from openwafer.sdk.ir.issue import Share
from openwafer.sdk.ir.suspension import is_request


class Counter(NamedTuple):
    """What a counter stands for.

    Attributes:
        point: number of the point of the module's code that it belongs to: one of the point's
            counters is raised by one each time that code comes by.
        place: of that point in the source.
        shares: to which places the cycles belong that pass each time.
        is_in_cycles: it counts how long an operation took.
    """

    point: int
    place: int
    shares: tuple[Share, ...] = ()
    is_in_cycles: bool = False


def is_awaited(instruction: Instruction) -> bool:
    """Whether code stands still for an instruction while the machine works."""
    if instruction.op in ("sync", "step"):
        return False
    return instruction.op in ("vector", "drain") or is_request(instruction)


def num_counters(instruction: Instruction) -> int:
    """How many counters an instruction has."""
    return num_charges(instruction) + 2 * is_awaited(instruction)


def num_charges(instruction: Instruction) -> int:
    """How many of them count how often its cycles have passed; these come first."""
    return len(instruction.cycles) if any(instruction.cycles) else 0


def first_counters(module: Module) -> dict[str, int]:
    """By function of a module whose time is counted, the number of its first counter."""
    first, end = {}, 0
    for name, function in module.functions.items():
        first[name] = end
        end += sum(map(num_counters, function.instructions))
    return first


def counters_of(module: Module, generation: Generation) -> Iterator[Counter]:
    """What the counters of a verified module stand for, in the order of their numbers."""
    for number, (one, charges) in enumerate(charged(module, generation)):
        before, behind = 2 * number, 2 * number + 1
        if any(charge.cycles for charge in charges):
            yield from (Counter(before, one.place, charge.shares) for charge in charges)
        if is_awaited(one):
            yield Counter(behind, one.place)
            yield Counter(behind, one.place, is_in_cycles=True)
