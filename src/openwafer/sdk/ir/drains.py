"""Where code waits for the results of vector operations.

Vector operations pass through the core one behind the other, and code behind them is issued before
their last results are written. Before it reads memory or looks at the clock it waits for them; this
places a ``drain`` there, the first time behind an operation that the main thread did, or behind a
call. What is not known is taken to be under way: at worst a ``drain`` has nothing to wait for.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from openwafer.sdk.ir.function import DSDS, Block, Function, Instruction, Module
from openwafer.sdk.ir.operations import CALLS, Effect, with_effect
from openwafer.sdk.ir.suspension import calls, successors

_WAITS: Final = with_effect(Effect.DRAINS)


def drained(module: Module) -> Module:
    """The module with a ``drain`` wherever results may be under way that code waits for."""
    if not any(map(_has_vectors, module.functions.values())):
        return module
    called = {one.names[0] for f in module.functions.values() for one in calls(f) if one.names}
    is_indirect = any(not one.names for f in module.functions.values() for one in calls(f))
    functions = {
        name: _drained_function(function, is_called=is_indirect or name in called)
        for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


def _has_vectors(function: Function) -> bool:
    def look(one: Function) -> bool:
        return any(i.op == "vector" for i in one.instructions)

    return function.once(_has_vectors, look)


def looks_at_clock(instruction: Instruction) -> bool:
    """Whether it reads the clock's low word; the others are then as they are in that cycle."""
    return instruction.op == "timestamp" and instruction.names[0] == "0"


def _drained_function(function: Function, *, is_called: bool) -> Function:
    def drain(one: Function) -> Function:
        pending = _pending(one, is_called=is_called)
        blocks = [
            replace(block, instructions=list(_instructions(block, is_pending=pending[block.label])))
            for block in one.blocks
        ]
        return replace(one, blocks=blocks)

    return function.once((_drained_function, is_called), drain)


def _pending(function: Function, *, is_called: bool) -> dict[str, bool]:
    """By label: whether results may be under way where the block begins."""
    pending = dict.fromkeys((block.label for block in function.blocks), False)
    pending[function.blocks[0].label] = is_called
    grows = True
    while grows:
        grows = False
        for block in function.blocks:
            if not _ends_pending(block, is_pending=pending[block.label]):
                continue
            for label in successors(block):
                grows |= not pending[label]
                pending[label] = True
    return pending


def _ends_pending(block: Block, *, is_pending: bool) -> bool:
    for one in block.instructions:
        is_pending = (is_pending and not _waits(one, block)) or _leaves_results(one)
    return is_pending


def _instructions(block: Block, *, is_pending: bool) -> Iterator[Instruction]:
    for one in block.instructions:
        if is_pending and _waits(one, block):
            yield Instruction("drain", place=one.place)
            is_pending = False
        is_pending |= _leaves_results(one)
        yield one


def _waits(one: Instruction, block: Block) -> bool:
    """Whether an instruction reads memory or the clock.

    A DSR is loaded when it is asked for; elements that the machine steps through come like those of
    a vector operation.
    """
    if one.op == "load":
        return one.type not in DSDS and not block.is_stepped
    return one.op in _WAITS or looks_at_clock(one)


def _leaves_results(one: Instruction) -> bool:
    """Whether behind an instruction results of vector operations may be under way."""
    return one.op in CALLS or (one.op == "vector" and "async" not in one.names)
