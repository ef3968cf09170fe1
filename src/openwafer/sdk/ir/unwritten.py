"""Checks of checked runs that tell of what is read before anything wrote it.

A ``check`` of the kind ``written`` has one word more: ``read`` tells where a word of some bytes has
never been written; ``write`` notes that they are written now, ``begin`` that they hold no value
yet, as the arrays of a function do when it is called; ``copy`` passes on what is known of the
source, since a copy of nothing is no use of it. The kind ``unset`` does the same for register
slots, by a slot of type bool beside each that is declared without a value.

A variable of the file that is changed in place, as `sum += x` does, may begin without a value:
published programs count on the loader, which fills such variables with zeros. What is only read has
no such excuse.

Vector operations on memory are marked: where a word that they read or write may have none, the
machine keeps book of them as of those that it serves itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Instruction,
    Module,
    Register,
    Slot,
    Type,
    Value,
)
from openwafer.sdk.ir.numbers import WIDTHS
from openwafer.sdk.ir.operations import FABRIC, NOTED

READ: Final = "read"
WRITE: Final = "write"
BEGIN: Final = "begin"
COPY: Final = "copy"
STREAM: Final = "stream"
"""Of a check of the kind ``flight``: the command stream is opened."""
UNSET: Final = "unset"
"""Word of a ``set`` that only declares its slot."""


def noted(module: Module, *, has_flight: bool) -> Module:
    """The module with these checks; each takes over the cycles of what it stands before.

    Args:
        module: with its other checks.
        has_flight: operations may be in flight while code runs.
    """
    copied = {
        arg.symbol
        for function in module.functions.values()
        for one in function.instructions
        for arg in one.args[:1]
        if one.op == "copy" and isinstance(arg, Address)
    }
    # A copy of what nothing wrote leaves its target without a value.
    set_globals = frozenset(one.name for one in module.globals if one.initial) - copied
    functions = {
        name: _noted_function(function, set_globals, has_flight)
        for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


def _noted_function(function: Function, set_globals: frozenset[str], has_flight: bool) -> Function:
    own = tuple(sorted(set_globals & function.symbols))
    return function.once(
        (_noted_function, own, has_flight),
        lambda one: _Writer(one, frozenset(own), has_flight).function(),
    )


class _Writer:
    """Writes the checks of one function; `set_globals` begin with values."""

    def __init__(self, function: Function, set_globals: frozenset[str], has_flight: bool) -> None:
        self._function, self._has_flight = function, has_flight
        self._set_globals = set_globals
        self._next = 1 + max((one.result for one in function.instructions), default=-1)
        declared = (one.names[0] for one in function.instructions if one.names[1:] == (UNSET,))
        self._flags = {slot: Slot(f"{slot} has a value", Type.BOOL) for slot in declared}

    def function(self) -> Function:
        blocks = [self._block(block) for block in self._function.blocks]
        first = [*self._begun(), *blocks[0].instructions]
        blocks[0] = replace(blocks[0], instructions=first)
        slots = [*self._function.slots, *self._flags.values()]
        return replace(self._function, blocks=blocks, slots=slots)

    def _begun(self) -> Iterator[Instruction]:
        for slot in self._function.slots:
            if slot.is_memory:
                begin = self._register(Type.PTR)
                yield Instruction("slot_address", (), begin.number, Type.PTR, (slot.name,))
                yield _check(BEGIN, begin, Constant(2 * slot.num_words, Type.U16))

    def _block(self, block: Block) -> Block:
        updates = _updates(block)
        instructions: list[Instruction] = []
        for one in block.instructions:
            cycles, is_update = one.cycles, one.result in updates
            for check in () if is_update else self._needed(one):
                instructions.append(replace(check, place=one.place, cycles=cycles))
                cycles = ()
            names = (*one.names, NOTED) if _is_of_memory(one) else one.names
            instructions.append(replace(one, cycles=cycles, names=names))
        return replace(block, instructions=instructions)

    def _needed(self, one: Instruction) -> Iterator[Instruction]:
        match one.op:
            case "load" if not self._is_set(one.args[0]):
                yield _check(READ, one.args[0], _bytes_of(one.type))
            case "store" if not self._is_set(one.args[0]):
                yield _check(WRITE, one.args[0], _bytes_of(one.args[1].type))
            case "copy":
                yield _check(COPY, *one.args)
            case "set" if one.names[0] in self._flags:
                has_value = Constant(int(one.names[1:] != (UNSET,)), Type.BOOL)
                yield Instruction("set", (has_value,), names=(self._flags[one.names[0]].name,))
            case "get" if one.names[0] in self._flags:
                flag = self._register(Type.BOOL)
                name = self._flags[one.names[0]].name
                yield Instruction("get", (), flag.number, Type.BOOL, (name,))
                yield Instruction("check", (flag,), names=("unset",))
            case "open_stream" if self._has_flight:
                yield Instruction("sync")
                nothing = Constant(0, Type.PTR), Constant(0, Type.U16)
                yield Instruction("check", nothing, names=("flight", STREAM))
            case _:
                pass

    def _is_set(self, address: Value) -> bool:
        """Whether an address is that of a variable that begins with a value."""
        return isinstance(address, Address) and address.symbol in self._set_globals

    def _register(self, kind: Type) -> Register:
        self._next += 1
        return Register(self._next - 1, kind)


def _check(way: str, *args: Value) -> Instruction:
    return Instruction("check", args, names=("written", way))


def _bytes_of(kind: Type) -> Constant:
    return Constant(-(-WIDTHS[kind] // 8), Type.U16)


def _is_of_memory(one: Instruction) -> bool:
    """Whether code may run a vector operation by itself."""
    return one.op == "vector" and FABRIC not in one.names[1:]


def _updates(block: Block) -> set[int]:
    """Loads from where the block writes as well: of a variable of the file, or but for a field."""
    made = {one.result: one for one in block.instructions if one.result >= 0}
    stored = {_way_to(one.args[0], made) for one in block.instructions if one.op == "store"}
    kept = {
        arg
        for one in block.instructions
        if one.op == "or" and _op(one.args[0], made) == "and"
        for arg in made[_number(one.args[0])].args
    }
    return {
        one.result
        for one in block.instructions
        if one.op == "load"
        and _way_to(one.args[0], made) in stored
        and (Register(one.result, one.type) in kept or not _is_of_stack(one.args[0], made))
    }


_Made: TypeAlias = dict[int, Instruction]


def _number(value: Value) -> int:
    return value.number if isinstance(value, Register) else -1


def _op(value: Value, made: _Made) -> str:
    one = made.get(_number(value))
    return one.op if one is not None else ""


def _way_to(address: Value, made: _Made) -> object:
    """How an address is made, equal for two that are made alike."""
    one = made.get(_number(address))
    if one is None or one.op == "load":
        return address
    return (one.op, one.names, *(_way_to(arg, made) for arg in one.args))


def _is_of_stack(address: Value, made: _Made) -> bool:
    one = made.get(_number(address))
    return one is not None and (
        one.op == "slot_address" or any(_is_of_stack(arg, made) for arg in one.args[:1])
    )
