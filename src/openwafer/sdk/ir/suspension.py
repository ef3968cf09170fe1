"""Which code may have to wait for the machine, and what must outlive the wait.

An instruction suspends when it makes a request (:func:`is_request`) or calls a function that may.
:func:`isolate` gives every such instruction the end of a block, so that compiled code can go on at
the block behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from openwafer.sdk.ir.function import (
    Block,
    Function,
    FunctionName,
    Instruction,
    Module,
    Register,
    Slot,
    Type,
)
from openwafer.sdk.ir.operations import CALLS, NOTED, OPERATIONS


def is_request(instruction: Instruction) -> bool:
    """Whether the machine has to serve an instruction; a vector operation with a plain name not."""
    if instruction.op == "vector":
        return any(name != NOTED for name in instruction.names[1:])
    return OPERATIONS[instruction.op].may_suspend


def callees(module: Module, instruction: Instruction) -> tuple[str, ...]:
    """Functions that an instruction may call; an indirect call reaches all of its signature."""
    if instruction.op == "call":
        return (instruction.names[0],)
    if instruction.op != "call_indirect":
        return ()
    target, *args = instruction.args
    if isinstance(target, FunctionName):
        return (target.name,)
    kinds = [arg.type for arg in args]
    return tuple(
        function.name
        for function in module.functions.values()
        if function.return_type is instruction.type
        and [slot.type for slot in function.parameters] == kinds
    )


def suspending_functions(module: Module) -> frozenset[str]:
    """Names of the functions that may suspend, by themselves or through what they call."""
    found = {function.name for function in module.functions.values() if _requests(function)}
    graph = call_graph(module)
    grows = True
    while grows:
        more = {name for name, called in graph.items() if name not in found and called & found}
        found |= more
        grows = bool(more)
    return frozenset(found)


def recursive_functions(module: Module) -> frozenset[str]:
    """Names of the functions that may call themselves, at whatever distance."""
    graph = call_graph(module)
    return frozenset(name for name in graph if name in reachable(graph, name))


def functions_in_loops(module: Module) -> frozenset[str]:
    """Names of the functions that have a loop, and of all that these call."""
    graph = call_graph(module)
    looping = {name for name, one in module.functions.items() if has_loop(one)}
    return frozenset(looping.union(*(reachable(graph, name) for name in looping)))


def has_loop(function: Function) -> bool:
    """Whether a block of the function leads back to itself or to one before it."""
    return function.once(has_loop, lambda one: any(_jumps_back(one)))


def _jumps_back(function: Function) -> Iterator[bool]:
    seen: set[str] = set()
    for block in function.blocks:
        seen.add(block.label)
        yield not seen.isdisjoint(successors(block))


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What a function may call, directly or not; itself only where it is among these."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def _requests(function: Function) -> bool:
    return function.once(_requests, lambda one: any(map(is_request, one.instructions)))


def calls(function: Function) -> tuple[Instruction, ...]:
    """Its calls, in the order of the text."""
    return function.once(calls, lambda one: tuple(i for i in one.instructions if i.op in CALLS))


def call_graph(module: Module) -> dict[str, set[str]]:
    """Functions that each function may call, by name."""
    return {
        function.name: {name for one in calls(function) for name in callees(module, one)}
        for function in module.functions.values()
    }


def isolate(function: Function, suspends: Callable[[Instruction], bool]) -> Function:
    """Return the function with every suspending instruction at the end of its block.

    Behind it stand only the `set` of its result and a jump to the rest of the block. Values that
    are used behind a suspension go through register slots of their own.
    """
    splitter = _Splitter(function)
    blocks = [piece for block in function.blocks for piece in splitter.split(block, suspends)]
    return replace(function, slots=[*function.slots, *splitter.slots], blocks=blocks)


class _Splitter:
    """Splits the blocks of one function."""

    def __init__(self, function: Function) -> None:
        self.slots: list[Slot] = []
        self._next = 1 + max((one.result for one in function.instructions), default=-1)

    def split(self, block: Block, suspends: Callable[[Instruction], bool]) -> Iterator[Block]:
        pieces: list[list[Instruction]] = [[]]
        for instruction in block.instructions:
            pieces[-1].append(instruction)
            if suspends(instruction):
                pieces.append([])
        if len(pieces) == 1:
            yield block
            return
        crossing = _crossing_values(pieces)
        labels = [block.label, *(f"{block.label}~{index}" for index in range(1, len(pieces)))]
        for index, piece in enumerate(pieces):
            instructions = list(self._connect(piece, crossing))
            is_last = index == len(pieces) - 1
            if not is_last:
                instructions.append(Instruction("jump", names=(labels[index + 1],)))
            closes_loop = is_last and block.is_loop_end
            yield Block(labels[index], instructions, closes_loop, block.is_stepped)

    def _connect(
        self, piece: list[Instruction], crossing: dict[int, Type]
    ) -> Iterator[Instruction]:
        """The piece with its crossing values read from slots, and written to them."""
        here = {instruction.result for instruction in piece}
        renamed: dict[int, Register] = {}
        for number in sorted(_used(piece) - here):
            renamed[number] = Register(self._next, crossing[number])
            self._next += 1
            yield Instruction("get", (), renamed[number].number, crossing[number], (_slot(number),))
        for instruction in piece:
            args = tuple(
                renamed.get(arg.number, arg) if isinstance(arg, Register) else arg
                for arg in instruction.args
            )
            yield replace(instruction, args=args)
            if instruction.result in crossing:
                kind = crossing[instruction.result]
                self.slots.append(Slot(_slot(instruction.result), kind))
                value = Register(instruction.result, kind)
                yield Instruction("set", (value,), names=(_slot(instruction.result),))


def _slot(number: int) -> str:
    return f"~{number}"


def _used(piece: list[Instruction]) -> set[int]:
    return {arg.number for one in piece for arg in one.args if isinstance(arg, Register)}


def _crossing_values(pieces: list[list[Instruction]]) -> dict[int, Type]:
    """Values that are used in another piece than the one that defines them."""
    defined = {one.result: (index, one.type) for index, piece in enumerate(pieces) for one in piece}
    return {
        number: defined[number][1]
        for index, piece in enumerate(pieces)
        for number in _used(piece)
        if defined[number][0] != index
    }


def live_slots(function: Function) -> dict[str, frozenset[str]]:
    """By a block's label: register slots whose value at its begin may still be read."""
    read, written = {}, {}
    for block in function.blocks:
        read[block.label], written[block.label] = _reads_and_writes(block)
    live = {block.label: frozenset(read[block.label]) for block in function.blocks}
    grows = True
    while grows:
        grows = False
        for block in reversed(function.blocks):
            behind = frozenset().union(*(live[label] for label in successors(block)))
            now = live[block.label] | (behind - written[block.label])
            grows |= now != live[block.label]
            live[block.label] = now
    return live


def saved_at(
    function: Function, block_index: int, live: dict[str, frozenset[str]]
) -> frozenset[str]:
    """Register slots that outlive the suspension at the end of an isolated block.

    Args:
        function: isolated.
        block_index: of a block that ends in a suspension.
        live: of :func:`live_slots`.
    """
    *_, before, last = function.blocks[block_index].instructions
    result = {before.names[0]} if before.op == "set" else set()
    return live[last.names[0]] - result


def saved_slots(function: Function, suspends: Callable[[Instruction], bool]) -> frozenset[str]:
    """Register slots of an isolated function that outlive any of its suspensions."""
    live = live_slots(function)
    return frozenset[str]().union(
        *(
            saved_at(function, index, live)
            for index, block in enumerate(function.blocks)
            if any(map(suspends, block.instructions))
        )
    )


def successors(block: Block) -> tuple[str, ...]:
    """Labels of the blocks that may follow."""
    last = block.instructions[-1]
    return last.names if last.op in ("jump", "branch", "switch") else ()


def _reads_and_writes(block: Block) -> tuple[set[str], set[str]]:
    """Slots read before they are written, and slots written."""
    read: set[str] = set()
    written: set[str] = set()
    for instruction in block.instructions:
        if instruction.op == "get" and instruction.names[0] not in written:
            read.add(instruction.names[0])
        elif instruction.op == "set":
            written.add(instruction.names[0])
    return read, written
