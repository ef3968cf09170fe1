"""The body of a function: blocks, slots, time, and what outlives a suspension."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.codegen.body import Body, constant, llvm_type, zero
from openwafer.sdk.codegen.floats import Floats
from openwafer.sdk.codegen.frames import STATE, Frame
from openwafer.sdk.codegen.mailboxes import (
    CODE_PARAMETERS,
    add,
    field,
    load,
    read,
    store,
    trap,
    word_address,
    write,
)
from openwafer.sdk.codegen.vectors import Kernel
from openwafer.sdk.ir.counters import is_awaited, num_charges
from openwafer.sdk.ir.function import (
    Address,
    Constant,
    Function,
    FunctionName,
    Instruction,
    Module,
    Register,
    Type,
    Value,
)
from openwafer.sdk.ir.suspension import live_slots, saved_at
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.debug_info import FrameInfo, Resume
from openwafer.sdk.program.mailbox import Outcome, Trap

_LOOK_CYCLES: Final = 1 << 22
"""How many cycles a loop runs before it looks whether the host wants an end."""


@dataclass(frozen=True)
class Unit:
    """What the functions of one module share.

    Attributes:
        module: with its time and with its suspending functions isolated.
        floats: conversions of the host's processor.
        frames: of every function, by name.
        suspending: functions that may suspend.
        addresses: of the globals, by name.
        numbers: of the functions, by name.
        first_counters: by name, the number of a function's first counter; empty where code does
            not count.
        kernels: vector operations in use; bodies add to it.
    """

    module: Module
    floats: Floats
    frames: dict[str, Frame]
    suspending: frozenset[str]
    addresses: dict[str, int]
    numbers: dict[str, int]
    first_counters: dict[str, int]
    kernels: dict[Kernel, None] = attribute(default_factory=dict)

    def seen_by_callers(self, name: str) -> Hashable:
        """All that the text of a caller has of a function."""
        function = self.module.functions[name]
        kinds = tuple(slot.type for slot in function.parameters)
        frame = self.frames[name].num_words
        return name, self.numbers[name], name in self.suspending, kinds, function.return_type, frame

    def spell_constant(self, value: Value) -> str:
        """LLVM's spelling of a value that is no register."""
        match value:
            case Constant():
                return constant(value)
            case Address(symbol, offset):
                return str((WORD_BYTES * self.addresses[symbol] + offset) & 0xFFFF)
            case FunctionName(name):
                return str(self.numbers[name])
            case _:
                raise ValueError(f"{value} is no value of native code")


def result_type(function: Function) -> str:
    """What the native form of a function that never suspends returns: whether it trapped, value."""
    if function.return_type is Type.VOID:
        return "i1"
    return f"{{ i1, {llvm_type(function.return_type)} }}"


def native_name(name: str) -> str:
    """Name of a function's native form; LLVM reads no quotes or backslashes in names."""
    plain = "".join(letter if letter not in '"\\' else f"\\{ord(letter):02X}" for letter in name)
    return f'@"pe.{plain}"'


class FunctionWriter:
    """State of one function while it is written; `instructions` modules write through it."""

    def __init__(self, unit: Unit, function: Function) -> None:
        self.unit = unit
        self.function = function
        self.frame = unit.frames[function.name]
        self.may_suspend = function.name in unit.suspending
        self.body = Body(self._signature())
        self.values: dict[int, str] = {}
        self.slots: dict[str, str] = {}
        self.pending_cycles = 0
        self.inside: set[tuple[Value, int]] = set()
        """Addresses, and how many bytes behind them are known to lie in memory."""
        self._kinds = {slot.name: slot.type for slot in function.slots}
        self._order = {block.label: index for index, block in enumerate(function.blocks)}
        self._live = live_slots(function) if self.may_suspend else {}
        self.resumes: list[Resume] = []
        self._in_memory = [slot.name for slot in function.slots if slot.is_memory]
        self._labels: list[str] = []
        self._cycles = ""
        self._limit = ""
        self._block_index = 0
        self._counts = ""
        self._counter = unit.first_counters.get(function.name, 0)

    def _signature(self) -> str:
        name = native_name(self.function.name)
        if self.may_suspend:
            return f"define hidden i32 {name}({CODE_PARAMETERS}, i32 %fp) nounwind"
        kinds = ", ".join(
            f"{llvm_type(slot.type)} %p{index}"
            for index, slot in enumerate(self.function.parameters)
        )
        head = f"define hidden {result_type(self.function)} {name}({CODE_PARAMETERS}, i32 %fp"
        return f"{head}{', ' if kinds else ''}{kinds}) nounwind"

    def begin(self) -> None:
        """Write everything before the first block."""
        body = self.body
        body.begin_entry()
        self._cycles = body.variable("i64")
        for slot in self.function.slots:
            if not slot.is_memory:
                self.slots[slot.name] = body.variable(llvm_type(slot.type))
        self.reload_cycles()
        self._limit = body.variable("i64")
        self._set_limit(body.value(f"load i64, ptr {self._cycles}"))
        if self.unit.first_counters:
            self._counts = body.value(f"inttoptr i64 {read(body, mailbox.COUNTS)} to ptr")
        if self.may_suspend:
            body.jump("dispatch")
            body.begin("start")
            self._clear_slots()
            self.restore(slot.name for slot in self.function.parameters)
        else:
            self.check_stack(self.frame.num_words, self.function.first_place)
            self._clear_slots()
            for index, slot in enumerate(self.function.parameters):
                kind = llvm_type(slot.type)
                body.do(f"store {kind} %p{index}, ptr {self.slots[slot.name]}")
        body.jump("b0")

    def _clear_slots(self) -> None:
        for name, variable in self.slots.items():
            kind = self._kinds[name]
            self.body.do(f"store {llvm_type(kind)} {zero(kind)}, ptr {variable}")

    def end(self) -> str:
        """Write the ways out, and return the function's text."""
        body = self.body
        body.begin("trapped")
        if self.may_suspend:
            body.do(f"ret i32 {Outcome.TRAPPED.value}")
            body.begin("suspended")
            body.do(f"ret i32 {Outcome.SUSPENDED.value}")
            body.begin("dispatch")
            state = body.value(f"load i16, ptr {self.frame_address(STATE)}, align 2")
            cases = " ".join(f"i16 {n} , label %{to}" for n, to in enumerate(self._labels, 1))
            body.do(f"switch i16 {state}, label %start [ {cases} ]")
        else:
            self._return_plain("true", "")
        return body.text()

    def begin_block(self, index: int) -> None:
        """Start a block of the function."""
        self._block_index = index
        self.body.begin(f"b{index}")

    def spell(self, value: Value) -> str:
        """LLVM's name of a value."""
        if isinstance(value, Register):
            return self.values[value.number]
        return self.unit.spell_constant(value)

    def count(self, instruction: Instruction) -> None:
        """Count the cycles before an instruction."""
        self.pending_cycles += sum(instruction.cycles)
        if num_charges(instruction):
            self._raise_counter(str(self._counter), "1")
        self._counter += num_charges(instruction)

    def begin_wait(self, instruction: Instruction) -> None:
        """Note when an operation begins that the code waits for."""
        if self._counts and is_awaited(instruction):
            write(self.body, mailbox.ASKED, self.cycles())

    def end_wait(self, instruction: Instruction) -> None:
        """Count that it has ended, and the cycles that it took."""
        if not is_awaited(instruction):
            return
        if self._counts:
            asked = read(self.body, mailbox.ASKED)
            taken = self.body.value(f"sub i64 {self.cycles()}, {asked}")
            self._raise_counter(str(self._counter), "1")
            self._raise_counter(str(self._counter + 1), taken)
        self._counter += 2

    def _raise_counter(self, number: str, more: str) -> None:
        """Raise one of the PE's counters, where code counts."""
        if self._counts:
            address = self.body.value(f"getelementptr i64, ptr {self._counts}, i64 {number}")
            before = self.body.value(f"load i64, ptr {address}")
            self.body.do(f"store i64 {self.body.value(f'add i64 {before}, {more}')}, ptr {address}")

    def cycles(self) -> str:
        """The local clock, up to the instruction that is being written."""
        now = self.body.value(f"load i64, ptr {self._cycles}")
        if self.pending_cycles:
            now = self.body.value(f"add i64 {now}, {self.pending_cycles}")
            self.body.do(f"store i64 {now}, ptr {self._cycles}")
            self.pending_cycles = 0
        return now

    def cycles_so_far(self) -> str:
        """The same for a way that the code rarely takes: nothing is written."""
        now = self.body.value(f"load i64, ptr {self._cycles}")
        return self.body.value(f"add i64 {now}, {self.pending_cycles}")

    def flush_cycles(self) -> None:
        """Bring the mailbox's clock up to date."""
        write(self.body, mailbox.CYCLE, self.cycles())

    def reload_cycles(self) -> None:
        """Take the clock from the mailbox again."""
        self.body.do(f"store i64 {read(self.body, mailbox.CYCLE)}, ptr {self._cycles}")

    def drain(self) -> None:
        """Bring the clock to where results of vector operations can be used."""
        now, drained = self.cycles(), read(self.body, mailbox.DRAINED)
        later = self.body.value(f"call i64 @llvm.smax.i64(i64 {now}, i64 {drained})")
        self.body.do(f"store i64 {later}, ptr {self._cycles}")
        add(self.body, mailbox.DRAINS, self.body.value(f"sub i64 {later}, {now}"))

    def frame_address(self, offset: int, base: str = "%fp") -> str:
        """Native address of a word of the frame that begins at `base`."""
        return word_address(self.body, self.body.value(f"add i32 {base}, {offset}"), "i32")

    def check_stack(self, num_words: int, place: int) -> None:
        """Trap unless the stack holds so many words from this frame's begin on."""
        if num_words == 0:
            return
        end = self.body.value(f"add i32 %fp, {num_words}")
        fits = self.body.value(f"icmp ule i32 {end}, {self.unit.module.memory_words}")
        wanted = self.body.value(f"zext i32 {end} to i64")
        self.trap_unless(fits, Trap.STACK_OVERFLOW, wanted, place)

    def trap_unless(self, condition: str, kind: Trap | str, value: str, place: int) -> None:
        """Go on only when `condition` holds."""
        good, bad = self.body.fresh_label(), self.body.fresh_label()
        self.body.branch(condition, good, bad)
        self.body.begin(bad)
        self.trap(kind, value, place)
        self.body.begin(good)

    def trap(self, kind: Trap | str, value: str, place: int) -> None:
        """Stop here; the mailbox's clock tells when. Ends the block."""
        write(self.body, mailbox.CYCLE, self.cycles_so_far())
        trap(self.body, kind, value, str(place))
        self.body.jump("trapped")

    def save(self, names: Iterable[str]) -> None:
        """Write register slots to the frame."""
        for name in names:
            kind = self._kinds[name]
            value = self.body.value(f"load {llvm_type(kind)}, ptr {self.slots[name]}")
            store(self.body, self.frame_address(self.frame.places[name]), value, kind)

    def restore(self, names: Iterable[str]) -> None:
        """Read register slots from the frame."""
        for name in names:
            kind = self._kinds[name]
            value = load(self.body, self.frame_address(self.frame.places[name]), kind)
            self.body.do(f"store {llvm_type(kind)} {value}, ptr {self.slots[name]}")

    def suspend(self, place: int, callee: str = "") -> tuple[str, list[str]]:
        """Save what outlives a suspension here; gives the label to resume at, and the slots."""
        live = sorted(saved_at(self.function, self._block_index, self._live))
        self.save(live)
        self.resumes.append(Resume(place, callee, (*live, *self._in_memory)))
        self._labels.append(self.body.fresh_label())
        state = len(self._labels)
        self.body.do(f"store i16 {state}, ptr {self.frame_address(STATE)}, align 2")
        return self._labels[-1], live

    def frame_info(self) -> FrameInfo:
        """What the program says of the frame, once everything is written."""
        slots = tuple(self.frame.places.items())
        size, callee = self.frame.num_words, self.frame.callee
        return FrameInfo(self.function.name, size, slots, callee, tuple(self.resumes))

    def terminate(self, instruction: Instruction) -> None:
        """Write the end of a block."""
        targets = [f"%b{self._order[name]}" for name in instruction.names]
        match instruction.op:
            case "jump":
                self._count_edges(instruction, instruction.cycles or (0,))
                self.body.do(f"br label {targets[0]}")
            case "branch":
                condition = self.spell(instruction.args[0])
                taken, not_taken = instruction.cycles
                self._count_edges(instruction, (not_taken, taken), [condition])
                self.body.do(f"br i1 {condition}, label {targets[0]}, label {targets[1]}")
            case "switch":
                self._count_edges(instruction, instruction.cycles, self._is_case(instruction))
                self._switch(instruction, targets)
            case "return":
                self._return(instruction)
            case _:
                self.trap(Trap.UNREACHABLE, "0", instruction.place)

    def _count_edges(
        self, instruction: Instruction, edges: tuple[int, ...], conditions: Sequence[str] = ()
    ) -> None:
        """Count the way to the next block; the way back to an earlier one is a loop's.

        The first of `edges` counts when no condition holds, else that of the first one that does.
        """
        self.pending_cycles += min(edges)
        if self._counts and num_charges(instruction):
            numbers = range(self._counter, self._counter + len(edges))
            in_order = reversed(numbers) if instruction.op == "branch" else numbers
            self._raise_counter(self._chosen(conditions, [*map(str, in_order)]), "1")
        self._counter += num_charges(instruction)
        now = self.cycles()
        if any(self._order[name] <= self._block_index for name in instruction.names):
            self._check_time(now, instruction.place)
        if max(edges) == min(edges):
            return
        more = self._chosen(conditions, [str(cycles - min(edges)) for cycles in edges])
        later = self.body.value(f"add i64 {now}, {more}")
        self.body.do(f"store i64 {later}, ptr {self._cycles}")

    def _chosen(self, conditions: Sequence[str], values: Sequence[str]) -> str:
        """The first value when no condition holds, else that of the first one that does."""
        value, *others = values
        for condition, other in reversed(list(zip(conditions, others, strict=True))):
            value = self.body.select(condition, "i64", other, value)
        return value

    def _is_case(self, instruction: Instruction) -> list[str]:
        """Whether the value equals each of a switch's constants."""
        value, *constants = instruction.args
        left, kind = self.spell(value), llvm_type(value.type)
        return [self.body.value(f"icmp eq {kind} {left}, {self.spell(one)}") for one in constants]

    def _set_limit(self, now: str) -> None:
        """Look at the time again when some more cycles have gone by."""
        later = self.body.value(f"add i64 {now}, {_LOOK_CYCLES}")
        self.body.do(f"store i64 {later}, ptr {self._limit}")

    def _check_time(self, now: str, place: int) -> None:
        """Trap past the mailbox's limit, which the host may have changed since the loop began."""
        soon, late = self.body.fresh_label(), self.body.fresh_label()
        limit = self.body.value(f"load i64, ptr {self._limit}")
        self.body.branch(self.body.value(f"icmp sle i64 {now}, {limit}"), soon, late)
        self.body.begin(late)
        last = self.body.value(f"load volatile i64, ptr {field(self.body, mailbox.LIMIT)}")
        in_time = self.body.value(f"icmp sle i64 {now}, {last}")
        self.trap_unless(in_time, Trap.ENDLESS_LOOP, "0", place)
        self._set_limit(now)
        self.body.jump(soon)
        self.body.begin(soon)

    def _switch(self, instruction: Instruction, targets: list[str]) -> None:
        value, *constants = instruction.args
        kind, seen, cases = llvm_type(value.type), set(), []
        for arg, target in zip(constants, targets[1:], strict=True):
            spelled = self.spell(arg)
            if spelled not in seen:
                seen.add(spelled)
                cases.append(f"{kind} {spelled}, label {target}")
        self.body.do(f"switch {kind} {self.spell(value)}, label {targets[0]} [ {' '.join(cases)} ]")

    def _return(self, instruction: Instruction) -> None:
        self.count(instruction)
        self.flush_cycles()
        value = self.spell(instruction.args[0]) if instruction.args else ""
        if not self.may_suspend:
            self._return_plain("false", value)
            return
        if value:
            place = self.frame_address(self.frame.result)
            store(self.body, place, value, instruction.args[0].type)
        self.body.do(f"ret i32 {Outcome.FINISHED.value}")

    def _return_plain(self, trapped: str, value: str) -> None:
        kind = self.function.return_type
        if kind is Type.VOID:
            self.body.do(f"ret i1 {trapped}")
            return
        whole = result_type(self.function)
        pair = self.body.value(f"insertvalue {whole} zeroinitializer, i1 {trapped}, 0")
        if value:
            pair = self.body.value(f"insertvalue {whole} {pair}, {llvm_type(kind)} {value}, 1")
        self.body.do(f"ret {whole} {pair}")
