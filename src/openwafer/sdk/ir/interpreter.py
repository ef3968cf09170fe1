"""The reference interpreter: the plain meaning of a module, and the oracle of compiled code.

It speaks the binary interface of :mod:`openwafer.sdk.program.mailbox`, so that the simulator runs
it in the place of native code, and counts the same cycles. While an operation is in flight it lets
the machine catch up before every access of memory, whether or not the two can meet.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import WORD_BYTES, Generation
from openwafer.sdk.ir import arithmetic
from openwafer.sdk.ir.checking import run_check
from openwafer.sdk.ir.checks import Accesses, Depth, checked
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.ir.counters import is_awaited, num_charges, num_counters
from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    FunctionName,
    Instruction,
    Module,
    Register,
    Resource,
    Value,
)
from openwafer.sdk.ir.machine import Machine, TrapError
from openwafer.sdk.ir.numbers import WIDTHS, convert, decode, num_words
from openwafer.sdk.ir.operations import CALLS, NOTED, SYNCED
from openwafer.sdk.ir.requests import fill_request
from openwafer.sdk.ir.suspension import is_request
from openwafer.sdk.ir.vectors import run_inline, show_streams
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Finding, Outcome, Trap, finding_of

Bits: TypeAlias = int | tuple[int, ...]
"""Raw bits of a scalar, or the words of a descriptor."""
Run: TypeAlias = Iterator[None]


class Interpreter:
    """Runs the entries of one module, each PE's on its own.

    Args:
        module: verified.
        splits_wavelet: by entry: whether its arguments are parts of one wavelet's 32 bits.
        generation: whose time is counted.
        depth: how closely code is looked at.
    """

    def __init__(
        self,
        module: Module,
        splits_wavelet: tuple[bool, ...],
        generation: Generation,
        *,
        depth: Depth = Depth.PLAIN,
    ) -> None:
        self._module = checked(timed(module, generation), Accesses(depth))
        self._generation = generation
        self._splits_wavelet = splits_wavelet
        self._addresses = {variable.name: variable.address for variable in module.globals}
        self._numbers = {name: number for number, name in enumerate(module.functions)}
        self._functions = list(self._module.functions.values())
        self._running: dict[int, Run] = {}
        self._counters = dict(self._numbered_counters())

    def _numbered_counters(self) -> Iterator[tuple[int, int]]:
        """By identity of an instruction, the number of its first counter."""
        number = 0
        for function in self._module.functions.values():
            for one in function.instructions:
                yield id(one), number
                number += num_counters(one)

    def run(
        self,
        key: int,
        box: NDArray[np.int64],
        memory: NDArray[np.uint16],
        entry: int,
        *,
        is_resume: bool,
    ) -> Outcome:
        """Run an entry until its end or its next request.

        Args:
            key: tells the PEs apart.
            box: the PE's mailbox, shape (MAILBOX_WORDS,).
            memory: the PE's memory, shape (memory_words,).
            entry: number of the entry; ignored when `is_resume`.
            is_resume: go on behind the request made last.
        """
        box[mailbox.LIMIT] = box[mailbox.CYCLE] + mailbox.MOST_CYCLES
        if not is_resume:
            machine = Machine(box, memory)
            self._running[key] = self._start(machine, entry)
        try:
            next(self._running[key])
        except StopIteration:
            del self._running[key]
            return Outcome.FINISHED
        except TrapError as trapped:
            del self._running[key]
            box[mailbox.TRAP], box[mailbox.TRAP_VALUE] = trapped.trap, trapped.value
            return Outcome.TRAPPED
        return Outcome.SUSPENDED

    def _start(self, machine: Machine, entry: int) -> Run:
        function = self._module.functions[self._module.entries[entry]]
        raw = [int(word) for word in machine.box[mailbox.ARGUMENTS :][: mailbox.NUM_ARGUMENTS]]
        kinds = [slot.type for slot in function.parameters]
        if self._splits_wavelet[entry]:
            shifts = np.cumsum([0, *(num_words(kind) * 16 for kind in kinds)])
            raw = [(raw[0] & 0xFFFFFFFF) >> int(shift) for shift in shifts]
        arguments: list[Bits] = [
            raw[index] & ((1 << WIDTHS[kind]) - 1) for index, kind in enumerate(kinds)
        ]
        frame = Frame(self, machine, function, arguments, self._module.stack_base)
        yield from frame.run()

    def function_of(self, number: int) -> Function:
        """The function that a value of type FN stands for."""
        return self._functions[number]

    def constant(self, value: Value) -> Bits:
        """Bits of a value that is no register."""
        match value:
            case Constant(tuple() as words):
                return words
            case Constant(int() as number, kind):
                return number & ((1 << WIDTHS[kind]) - 1)
            case Address(symbol, offset):
                return (2 * self._addresses[symbol] + offset) & 0xFFFF
            case FunctionName(name):
                return self._numbers[name]
            case _:
                raise ValueError(f"{value} has no bits")

    def counter(self, instruction: Instruction) -> int:
        """Number of the first counter of an instruction of the module."""
        return self._counters[id(instruction)]

    @property
    def generation(self) -> Generation:
        """Whose time is counted."""
        return self._generation

    @property
    def memory_words(self) -> int:
        """End of the memory that frames may use."""
        return self._module.memory_words

    @property
    def module(self) -> Module:
        """What is run."""
        return self._module


class Frame:
    """One activation of a function.

    Attributes:
        machine: the PE.
        result: what the function returned.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        machine: Machine,
        function: Function,
        arguments: list[Bits],
        base: int,
    ) -> None:
        self._interpreter = interpreter
        self.machine = machine
        self._function = function
        self._slots: dict[str, Bits] = {}
        self._values: dict[int, Bits] = {}
        self._places: dict[str, int] = {}
        self.result: Bits = 0
        self._end = base
        for slot in function.slots:
            if slot.is_memory:
                self._places[slot.name] = self._end
                self._end += slot.num_words
            else:
                self._slots[slot.name] = 0
        for slot, bits in zip(function.parameters, arguments, strict=True):
            self._slots[slot.name] = bits
        if self._end > interpreter.memory_words:
            machine.box[mailbox.PLACE] = function.first_place
            raise TrapError(Trap.STACK_OVERFLOW, self._end)

    def run(self) -> Run:
        """Execute the function; stops at each request."""
        blocks = {block.label: block for block in self._function.blocks}
        block: Block | None = self._function.blocks[0]
        while block is not None:
            for instruction in block.instructions[:-1]:
                yield from self._execute(instruction)
            label = self.leave(block.instructions[-1])
            block = blocks[label] if label is not None else None

    def _bits(self, value: Value) -> Bits:
        if isinstance(value, Register):
            return self._values[value.number]
        return self._interpreter.constant(value)

    def _scalar(self, value: Value) -> int:
        bits = self._bits(value)
        if not isinstance(bits, int):
            raise TypeError(f"{value} is a descriptor")
        return bits

    def _pass(self, instruction: Instruction, target: int = 0) -> None:
        """Let the cycles of an instruction pass; of a terminator, those up to a target."""
        if any(instruction.cycles):
            self.machine.box[mailbox.CYCLE] += instruction.cycles[target]
            self._count(instruction, target, 1)

    def _count(self, instruction: Instruction, index: int, more: int) -> None:
        """Raise a counter of an instruction, where the PE has counters."""
        if self.machine.box[mailbox.COUNTS]:
            self.machine.count(self._interpreter.counter(instruction) + index, more)

    def leave(self, instruction: Instruction) -> str | None:
        """Execute the end of a block; gives the label of the next one."""
        match instruction.op:
            case "jump" | "branch" | "switch":
                target = self._target(instruction)
                self._pass(instruction, target)
                box = self.machine.box
                if box[mailbox.CYCLE] > box[mailbox.LIMIT]:
                    box[mailbox.PLACE] = instruction.place
                    raise TrapError(Trap.ENDLESS_LOOP, 0)
                return instruction.names[target]
            case "return":
                self._pass(instruction)
                self.result = self._bits(instruction.args[0]) if instruction.args else 0
                return None
            case _:
                self.machine.box[mailbox.PLACE] = instruction.place
                raise TrapError(Trap.UNREACHABLE, 0)

    def _target(self, instruction: Instruction) -> int:
        """Which of its targets the end of a block goes to."""
        if instruction.op == "jump":
            return 0
        value, *constants = map(self._scalar, instruction.args)
        if instruction.op == "branch":
            return 0 if value else 1
        return constants.index(value) + 1 if value in constants else 0

    def _execute(self, instruction: Instruction) -> Run:
        self._pass(instruction)
        if instruction.op in CALLS:
            yield from self._call(instruction)
            return
        self.machine.box[mailbox.PLACE] = instruction.place
        if self._is_synced(instruction) and self.machine.is_late():
            self.machine.box[mailbox.REQUEST] = mailbox.Request.SYNC
            yield
        asked = int(self.machine.box[mailbox.CYCLE])
        if instruction.op in _REQUESTS or self._is_request(instruction):
            args = [
                arg if isinstance(arg, Resource) else self._bits(arg) for arg in instruction.args
            ]
            fill_request(self.machine.box, instruction, args)
            yield
            result: Bits = int(self.machine.box[mailbox.RESULT]) & 0xFFFF
        else:
            result = self._compute(instruction)
        if is_awaited(instruction):
            taken = int(self.machine.box[mailbox.CYCLE]) - asked
            self._count(instruction, num_charges(instruction), 1)
            self._count(instruction, num_charges(instruction) + 1, taken)
        if instruction.result >= 0:
            self._values[instruction.result] = result

    def _is_synced(self, instruction: Instruction) -> bool:
        return instruction.op in (*SYNCED, "sync") or instruction.names[:1] == ("flight",)

    def _is_request(self, instruction: Instruction) -> bool:
        if instruction.op != "vector":
            return False
        return is_request(instruction) or bool(self.machine.box[mailbox.IN_FLIGHT] != 0)

    def _call(self, instruction: Instruction) -> Run:
        args = list(instruction.args)
        if instruction.op == "call":
            callee = self._interpreter.module.functions[instruction.names[0]]
        else:
            callee = self._interpreter.function_of(self._scalar(args.pop(0)))
        bits = [self._bits(arg) for arg in args]
        frame = type(self)(self._interpreter, self.machine, callee, bits, self._end)
        yield from frame.run()
        if instruction.result >= 0:
            self._values[instruction.result] = frame.result

    def _compute(self, instruction: Instruction) -> Bits:
        op, args, kind = instruction.op, instruction.args, instruction.type
        if op in arithmetic.BINARY:
            return arithmetic.binary(op, self._scalar(args[0]), self._scalar(args[1]), kind)
        if op in arithmetic.COMPARISONS:
            sides = self._scalar(args[0]), self._scalar(args[1])
            return arithmetic.compare(op, *sides, args[0].type)
        if op == "vector":
            operands = [(arg.type, self._bits(arg)) for arg in args]
            name = instruction.names[0]
            run_inline(self.machine, name, operands, self._interpreter.generation)
            if NOTED in instruction.names:
                fill_request(self.machine.box, instruction, [bits for _, bits in operands])
                self.machine.show(finding_of(Finding.OPERAND_UNWRITTEN), 0, 0)
            return 1
        return self._SIMPLE[op](self, instruction)

    def _shift(self, instruction: Instruction) -> int:
        bits, count = (self._scalar(arg) for arg in instruction.args)
        amount = int(decode(count, instruction.args[1].type))
        return arithmetic.shift(instruction.op, bits, amount & 0xFFFF, instruction.type)

    def _unary(self, instruction: Instruction) -> int:
        bits, kind = self._scalar(instruction.args[0]), instruction.type
        match instruction.op:
            case "neg":
                return arithmetic.negate(bits, kind)
            case "not":
                return bits ^ 1
            case "bitnot":
                return ~bits & ((1 << WIDTHS[kind]) - 1)
            case "cast":
                return convert(bits, instruction.args[0].type, kind)
            case _:
                return bits

    def _function_of_numbers(self, instruction: Instruction) -> int:
        args = [self._scalar(arg) for arg in instruction.args]
        return arithmetic.function(instruction.names[0], args, instruction.type)

    def _get(self, instruction: Instruction) -> Bits:
        return self._slots[instruction.names[0]]

    def _set(self, instruction: Instruction) -> int:
        self._slots[instruction.names[0]] = self._bits(instruction.args[0])
        return 0

    def _slot_address(self, instruction: Instruction) -> int:
        return 2 * self._places[instruction.names[0]]

    def _ptr_add(self, instruction: Instruction) -> int:
        base, offset = (self._scalar(arg) for arg in instruction.args)
        unit = WORD_BYTES if instruction.op == "ptr_add" else 1
        return (base + unit * int(decode(offset, instruction.args[1].type))) & 0xFFFF

    def _word_of(self, instruction: Instruction) -> int:
        return self._scalar(instruction.args[0]) // WORD_BYTES

    def _at_word(self, instruction: Instruction) -> int:
        return (self._scalar(instruction.args[0]) * WORD_BYTES) & 0xFFFF

    def _load(self, instruction: Instruction) -> Bits:
        return self.machine.load(self._scalar(instruction.args[0]), instruction.type)

    def _store(self, instruction: Instruction) -> int:
        address, value = instruction.args
        self.machine.store(self._scalar(address), value.type, self._bits(value))
        return 0

    def _show(self, instruction: Instruction) -> int:
        show_streams(self.machine, instruction.names, list(map(self._bits, instruction.args)))
        return 0

    def _check(self, instruction: Instruction) -> int:
        run_check(self.machine, instruction.names, list(map(self._bits, instruction.args)))
        return 0

    def _nothing(self, _instruction: Instruction) -> int:
        return 0

    def _copy(self, instruction: Instruction) -> int:
        target, source, length = (self._scalar(arg) for arg in instruction.args)
        self.machine.copy(target, source, length)
        return 0

    def _dsd_word(self, instruction: Instruction) -> Bits:
        words = self._bits(instruction.args[0])
        if not isinstance(words, tuple):
            raise TypeError(f"{instruction} has no descriptor")
        index = int(instruction.names[0])
        if instruction.op == "dsd_get":
            return words[index]
        new = self._scalar(instruction.args[1]) & 0xFFFF
        return (*words[:index], new, *words[index + 1 :])

    def _schedule(self, instruction: Instruction) -> int:
        self.machine.schedule(instruction.op, self._scalar(instruction.args[0]))
        return 0

    def _of_the_machine(self, instruction: Instruction) -> int:
        machine = self.machine
        match instruction.op:
            case "timestamp":
                return machine.timestamp(int(instruction.names[0]))
            case "timestamp_control":
                machine.control_timestamp(instruction.names[0])
            case "random":
                return machine.random()
            case "coordinate":
                return machine.coordinate(instruction.names[0])
            case "parameter":
                bits = machine.parameter(int(instruction.names[0]))
                return bits & ((1 << WIDTHS[instruction.type]) - 1)
            case "seed_random":
                machine.seed(self._scalar(instruction.args[0]))
            case "open_stream":
                machine.box[mailbox.STREAM_OPEN] = 1
            case "drain":
                machine.drain()
            case _:
                if not self._scalar(instruction.args[0]):
                    raise TrapError(Trap.ASSERTION, 0)
        return 0

    _SIMPLE: ClassVar[dict[str, Callable[[Any, Instruction], Bits]]] = {
        **dict.fromkeys(("shl", "shr"), _shift),
        **dict.fromkeys(("neg", "not", "bitnot", "cast", "bitcast"), _unary),
        **dict.fromkeys(("activate", "block", "unblock"), _schedule),
        **dict.fromkeys(("dsd_get", "dsd_set"), _dsd_word),
        **dict.fromkeys(
            ("timestamp", "timestamp_control", "random", "coordinate", "parameter", "open_stream"),
            _of_the_machine,
        ),
        "drain": _of_the_machine,
        "sync": _nothing,
        "assert": _of_the_machine,
        "seed_random": _of_the_machine,
        "math": _function_of_numbers,
        "get": _get,
        "set": _set,
        "slot_address": _slot_address,
        "ptr_add": _ptr_add,
        "byte_add": _ptr_add,
        "word_of": _word_of,
        "at_word": _at_word,
        "load": _load,
        "store": _store,
        "copy": _copy,
        "show": _show,
        "check": _check,
    }


_REQUESTS: Final = frozenset(
    (
        *("load_dsr", "set_dsr_base", "set_fifo_lengths", "flush_queue"),
        *("read_register", "write_register", "print"),
    )
)
