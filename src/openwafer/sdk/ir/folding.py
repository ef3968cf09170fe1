"""Calls whose result follows from constants are computed when the program is compiled.

A call is folded when its arguments are constants and its function, with all that it calls, touches
nothing but its own variables and constants of the image; so is what only computes from the results
of folded calls. The reference interpreter does the computing, so folded code means what it meant.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES, WSE3
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Instruction,
    Module,
    Register,
    Type,
    Value,
)
from openwafer.sdk.ir.interpreter import Bits, Frame, Interpreter
from openwafer.sdk.ir.machine import NARROW, Machine, TrapError
from openwafer.sdk.ir.numbers import FLOATS, INTEGERS, decode, num_words
from openwafer.sdk.ir.operations import OPERATIONS, Effect, with_effect
from openwafer.sdk.ir.suspension import callees, calls, recursive_functions
from openwafer.sdk.program import mailbox

MOST_CYCLES: Final = 20_000
"""Time on the PE of a call that is folded at most; it bounds the time of the compilation."""
_COMPUTES: Final = frozenset(
    name for name, one in OPERATIONS.items() if one.result != "." and not one.effects
)
_NEEDS_THE_PE: Final = with_effect(
    Effect.ADDRESSES, Effect.PLACE, Effect.STATE, Effect.CLOCK, Effect.SUSPENDS
)
_NUMBERS: Final = FLOATS | INTEGERS | {Type.BOOL}


def folded(module: Module) -> Module:
    """The module without calls that give what is known; functions that nothing calls stay."""
    closed = _closed_functions(module)
    if not any(_folds(function, closed) for function in module.functions.values()):
        return module
    folder = _Folder(module, closed)
    functions = {name: folder.function(one) for name, one in module.functions.items()}
    return replace(module, functions=functions)


def _folds(function: Function, closed: frozenset[str]) -> bool:
    return any(_may_fold(one, closed) for one in calls(function))


def _closed_functions(module: Module) -> frozenset[str]:
    """Functions without effects, which return a number that depends on memory at most."""
    found = {
        function.name for function in module.functions.values() if _keeps_to_itself(function)
    } - recursive_functions(module)
    while True:
        others = {
            name
            for name in found
            for one in calls(module.functions[name])
            if not found.issuperset(callees(module, one))
        }
        if not others:
            return frozenset(found)
        found -= others


def _keeps_to_itself(function: Function) -> bool:
    return function.once(
        _keeps_to_itself,
        lambda one: all(i.op not in _NEEDS_THE_PE for i in one.instructions),
    )


def _may_fold(one: Instruction, closed: frozenset[str]) -> bool:
    """Whether an instruction is a call that gives a number, of constants."""
    is_call = one.op == "call" and one.names[0] in closed and one.type in _NUMBERS
    return is_call and all(isinstance(arg, Constant | Address) for arg in one.args)


class _UnknownError(Exception):
    """What was to be folded needs the PE."""


@dataclass(frozen=True)
class _Constants(Machine):
    """A PE of which only the stack and constants are known; it computes nothing of a mistake."""

    is_unwritten: NDArray[np.uint8] = field(kw_only=True)
    is_known: NDArray[np.bool_] = field(kw_only=True)
    stack_base: int = field(kw_only=True)

    def load(self, address: int, kind: Type) -> Bits:
        self._check(address, _num_bytes(kind))
        return super().load(address, kind)

    def store(self, address: int, kind: Type, bits: Bits) -> None:
        self._check(address, _num_bytes(kind), is_written=True)
        super().store(address, kind, bits)

    def copy(self, target: int, source: int, length: int) -> None:
        self._check(source, length)
        self._check(target, length, is_written=True)
        super().copy(target, source, length)

    def show(self, operand: int, first: int, last: int) -> None:
        if operand & mailbox.FINDING:
            raise _UnknownError
        super().show(operand, first, last)

    def unwritten(self, begin: int, length: int) -> NDArray[np.uint8]:
        return self.is_unwritten[begin : begin + length]

    def note(self, begin: int, unwritten: NDArray[np.uint8]) -> None:
        self.is_unwritten[begin : begin + unwritten.size] = unwritten

    def _check(self, address: int, length: int, *, is_written: bool = False) -> None:
        begin, end = address // WORD_BYTES, -(-(address + length) // WORD_BYTES)
        is_own = begin >= self.stack_base
        if not is_own and (is_written or not self.is_known[begin:end].all()):
            raise _UnknownError


class _BoundedFrame(Frame):
    """An activation that gives up after some time."""

    def leave(self, instruction: Instruction) -> str | None:
        if self.machine.box[mailbox.CYCLE] > MOST_CYCLES:
            raise _UnknownError
        return super().leave(instruction)


class _Folder:
    """Folds the functions of a module."""

    def __init__(self, module: Module, closed: frozenset[str]) -> None:
        self._closed = closed
        only = {name: one for name, one in module.functions.items() if name in closed}
        self._interpreter = Interpreter(
            replace(module, functions=only, entries=[]), (), WSE3, depth=Depth.CHECKED
        )
        self._memory = np.zeros(module.memory_words, np.uint16)
        self._is_known = np.zeros(module.memory_words, bool)
        self._stack_base = module.stack_base
        for constant in module.globals:
            if not constant.is_mutable:
                end = constant.address + constant.num_words
                self._memory[constant.address : constant.address + len(constant.initial)] = (
                    constant.initial
                )
                self._is_known[constant.address : end] = True
        self._results: dict[tuple[object, ...], Constant | None] = {}

    def function(self, function: Function) -> Function:
        """A function without what can be folded; itself where that is nothing."""
        if not _folds(function, self._closed):
            return function
        blocks = [self._block(block) for block in function.blocks]
        if all(new is old for new, old in zip(blocks, function.blocks, strict=True)):
            return function
        # What is left tells what it was made of: images that fold the same share the result.
        key = tuple(tuple(block.instructions) for block in blocks)
        return function.once((_Folder, key), lambda one: replace(one, blocks=blocks))

    def _block(self, block: Block) -> Block:
        known: dict[int, Constant] = {}
        kept = []
        for one in block.instructions:
            args = tuple(_known(arg, known) for arg in one.args)
            result = self._result(replace(one, args=args), has_folded=args != one.args)
            if result is not None:
                known[one.result] = result
            else:
                kept.append(replace(one, args=args) if args != one.args else one)
        return replace(block, instructions=kept) if known else block

    def _result(self, one: Instruction, *, has_folded: bool) -> Constant | None:
        computes = has_folded and one.op in _COMPUTES and one.type in _NUMBERS
        are_known = all(isinstance(arg, Constant) for arg in one.args)
        if not _may_fold(one, self._closed) and not (computes and are_known):
            return None
        key = (one.op, one.args, one.type, one.names)
        if key not in self._results:
            self._results[key] = self._computed(one)
        return self._results[key]

    def _computed(self, one: Instruction) -> Constant | None:
        """The result of one instruction, run in a function of its own."""
        last = Instruction("return", (Register(0, one.type),), cycles=(0,))
        alone = Block("alone", [replace(one, result=0, cycles=()), last])
        function = Function("alone", 0, one.type, [], [alone])
        box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
        box[mailbox.LIMIT] = mailbox.MOST_CYCLES
        machine = _Constants(
            box,
            self._memory.copy(),
            is_unwritten=np.zeros(MEMORY_WORDS, np.uint8),
            is_known=self._is_known,
            stack_base=self._stack_base,
        )
        frame = _BoundedFrame(self._interpreter, machine, function, [], self._stack_base)
        try:
            list(frame.run())
        except (_UnknownError, TrapError):
            return None
        assert isinstance(frame.result, int)
        return _constant(frame.result, one.type)


def _num_bytes(kind: Type) -> int:
    return 1 if kind in NARROW else WORD_BYTES * num_words(kind)


def _constant(bits: int, kind: Type) -> Constant:
    value = bits if kind in FLOATS else decode(bits, kind)
    assert isinstance(value, int)
    return Constant(value, kind)


def _known(value: Value, known: dict[int, Constant]) -> Value:
    return known.get(value.number, value) if isinstance(value, Register) else value
