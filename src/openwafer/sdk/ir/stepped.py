"""Code that can be stopped before each statement, and shows the present of its PE there.

Where the line changes stands ``step``: there code asks the machine to go on, which it does once
that cycle has come. So code is never further ahead of the fabric than a statement, and at its begin
it is not ahead at all. All functions may wait, so their variables lie in frames of the PE's memory.
Its time, its data and what it sends are those of code that is not stepped; only the words of the
stack differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from openwafer.sdk.ir.function import Block, Function, Instruction, Module
from openwafer.sdk.ir.suspension import successors
from openwafer.sdk.program.debug_info import Place


def statements_of(places: Sequence[Place]) -> tuple[int, ...]:
    """By place, the number of its statement: of a line in an expansion of a function."""
    numbers: dict[object, int] = {}
    keys = ((one.file, one.line, one.function, one.call) for one in places)
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def stepped(module: Module, statements: Sequence[int]) -> Module:
    """The module, of :func:`~openwafer.sdk.ir.order.ordered`, with ``step`` before statements.

    `statements` is of :func:`statements_of`.
    """
    functions = {name: _stepped(one, statements) for name, one in module.functions.items()}
    return replace(module, functions=functions)


def _stepped(function: Function, statements: Sequence[int]) -> Function:
    goes_on = _going_on(function, statements)
    blocks = [
        replace(block, instructions=list(_instructions(block, statements, goes_on[block.label])))
        for block in function.blocks
    ]
    return replace(function, blocks=blocks)


def _going_on(function: Function, statements: Sequence[int]) -> dict[str, int | None]:
    """By block, the statement that all ways to it come from; None where they differ."""
    before: dict[str, set[int | None]] = {block.label: set() for block in function.blocks}
    before[function.blocks[0].label].add(None)
    for block in function.blocks:
        own = [statements[one.place] for one in block.instructions if one.place >= 0]
        for label in successors(block):
            before[label].add(own[-1] if own else None)
    return {label: one.pop() if len(one) == 1 else None for label, one in before.items()}


def _instructions(
    block: Block, statements: Sequence[int], before: int | None
) -> Iterator[Instruction]:
    for one in block.instructions:
        if one.place >= 0 and statements[one.place] != before:
            before = statements[one.place]
            # The end of a block takes its time on the way to the next one.
            is_end = one is block.instructions[-1]
            yield Instruction("step", place=one.place, cycles=() if is_end else one.cycles)
            yield one if is_end else replace(one, cycles=())
        else:
            yield one
