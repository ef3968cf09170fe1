"""One PE, cycle by cycle, as plainly as it can be said.

It walks through code whose time is counted. Before anything that the code does in a cycle come all
beats up to that cycle: in each cycle at most one beat of one operation.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from openwafer.sdk.arch.generation import GENERATIONS, WORD_BYTES, Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.ir.function import (
    Address,
    Constant,
    Function,
    Instruction,
    Module,
    Register,
    Resource,
    Type,
    Value,
)
from openwafer.sdk.program.mailbox import BlockKind

MAIN = 8
FIRST_CYCLE = 1
LOAD_TO_USE, BEAT = 4, 5
DRAIN = {Arch.WSE2: 3, Arch.WSE3: 6}
NUM_SLOTS, PORTS, ROW, PATIENCE = 8, 2, 4, 3000


@dataclass
class Operand:
    """Where elements come from or go to: memory, pointer, in, out, or a number."""

    kind: str
    value: int = 0


@dataclass
class Operation:
    """A vector operation that runs."""

    name: str
    operands: list[Operand]
    left: int
    width: int
    gap: int
    next_cycle: int
    priority: int = 0
    total: int = 0


@dataclass
class Pe:
    """Memory, queues and threads; `words` come from the host, `sent` goes there."""

    arch: Arch
    memory: list[int]
    words: deque[int]
    in_queue: int
    out_queue: int
    now: int = 0
    sent: list[int] = field(default_factory=list)
    running: dict[int, Operation] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    _arrived: deque[tuple[int, int]] = field(default_factory=deque)
    _sent_at: list[int] = field(default_factory=list)

    def advance(self, cycle: int) -> None:
        """Do what happens up to a cycle, and in it."""
        while self.now < cycle:
            self.now += 1
            self._take_word()
            self._beat()

    def _take_word(self) -> None:
        generation = GENERATIONS[self.arch]
        depth = generation.input_queue_words[self.in_queue]
        if self.words and len(self._arrived) < depth:
            ready = self.now + generation.timing.arrival_cycles - generation.timing.hop_cycles
            self._arrived.append((ready, self.words.popleft()))

    def _beat(self) -> None:
        for slot in self._order():
            if self._try(self.running[slot]):
                if slot != MAIN and MAIN in self.running:
                    self._hold_up(self.running[MAIN])
                if self.running[slot].left == 0:
                    self._finish(slot)
                return

    def _hold_up(self, one: Operation) -> None:
        """A beat in the middle of which another one came takes a cycle more."""
        if 0 < one.next_cycle - self.now < one.gap:
            one.next_cycle += 1

    def _order(self) -> list[int]:
        """Threads as they are asked: by priority, equal ones in turn from cycle to cycle."""
        first = (self.now + 1) % NUM_SLOTS
        turn = [(first + k) % NUM_SLOTS for k in range(NUM_SLOTS)]
        free = [slot for slot in turn if slot in self.running and slot not in self.held]
        high, medium, low = (
            [slot for slot in free if self.running[slot].priority == p] for p in (2, 1, 0)
        )
        return [*high, *medium, *([MAIN] if MAIN in self.running else []), *low]

    def _try(self, one: Operation) -> bool:
        kinds = [operand.kind for operand in one.operands]
        if one.next_cycle > self.now:
            return False
        if "in" in kinds and (not self._arrived or self._arrived[0][0] > self.now):
            return False
        if "out" in kinds and not self._has_space():
            return False
        for _ in range(min(one.width, one.left)):
            self._element(one)
        one.next_cycle = self.now + one.gap
        return True

    def _has_space(self) -> bool:
        generation = GENERATIONS[self.arch]
        before = len(self._sent_at) - generation.output_queue_words[self.out_queue]
        turn_round = generation.timing.ramp_cycles + generation.timing.place_known_cycles
        return before < 0 or self._sent_at[before] + turn_round <= self.now

    def _element(self, one: Operation) -> None:
        target, *sources = one.operands
        values = [self._read(source) for source in sources]
        if target.kind == "pointer":
            values[0] = one.total
        result = sum(values) & 0xFFFF
        one.left -= 1
        if target.kind == "memory":
            self.memory[target.value] = result
            target.value += 1
        elif target.kind == "out":
            self.sent.append(result)
            self._sent_at.append(self.now)
        else:
            one.total = result

    def _read(self, source: Operand) -> int:
        if source.kind == "in":
            return self._arrived.popleft()[1] & 0xFFFF
        if source.kind == "memory":
            source.value += 1
            return self.memory[source.value - 1]
        return source.value

    def _finish(self, slot: int) -> None:
        one = self.running.pop(slot)
        if one.operands[0].kind == "pointer":
            self.memory[one.operands[0].value] = one.total


class StuckError(Exception):
    """The main thread waits for a microthread that is blocked."""


class Walk:
    """The main thread on its way through a function."""

    def __init__(self, pe: Pe, module: Module) -> None:
        self._pe = pe
        self._function: Function = module.functions[module.entries[0]]
        self._addresses = {one.name: one.address for one in module.globals}
        self._values: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._registers: dict[int, tuple[int, ...]] = {}
        self._clock = FIRST_CYCLE
        self._drained = 0
        self._zero = 0

    def run(self) -> None:
        """Walk to the end, then wait for the microthreads; one that is blocked may prevent it."""
        with suppress(StuckError):
            self._walk()
        for _ in range(PATIENCE):
            self._pe.advance(self._pe.now + bool(self._pe.running))

    def _walk(self) -> None:
        blocks = {block.label: block for block in self._function.blocks}
        label = self._function.blocks[0].label
        while label:
            *others, last = blocks[label].instructions
            for one in others:
                self._clock += sum(one.cycles)
                self._do(one)
            label = self._leave(last)
        self._pe.advance(self._clock)

    def _leave(self, last: Instruction) -> str:
        if last.op == "return":
            self._clock += sum(last.cycles)
            return ""
        way = last.op == "branch" and not self._number(last.args[0])
        self._clock += last.cycles[way] if last.cycles else 0
        return last.names[way]

    def _number(self, value: Value) -> int:
        match value:
            case Register(number):
                return self._values[number]
            case Constant(int() as number):
                return number
            case Address(symbol, offset):
                return WORD_BYTES * self._addresses[symbol] + offset
            case _:
                raise ValueError(f"{value} is no number")

    def _do(self, one: Instruction) -> None:
        match one.op:
            case "get":
                self._values[one.result] = self._slots[one.names[0]]
            case "set":
                self._slots[one.names[0]] = self._number(one.args[0])
            case "lt" | "add":
                left, right = map(self._number, one.args)
                self._values[one.result] = left < right if one.op == "lt" else left + right & 0xFFFF
            case "timestamp_control":
                self._zero = self._clock
            case "timestamp":
                self._values[one.result] = self._clock - self._zero & 0xFFFF
            case "drain":
                self._clock = max(self._clock, self._drained)
            case "open_stream":
                pass
            case _:
                self._pe.advance(self._clock)
                self._act(one)

    def _act(self, one: Instruction) -> None:
        """What meets the operations that run; all beats of the cycle have been."""
        memory = self._pe.memory
        match one.op:
            case "load":
                self._values[one.result] = memory[self._number(one.args[0]) // WORD_BYTES]
            case "store":
                memory[self._number(one.args[0]) // WORD_BYTES] = self._number(one.args[1])
            case "copy":
                to, of, length = (self._number(arg) // WORD_BYTES for arg in one.args)
                memory[to : to + length] = memory[of : of + length]
            case "block" | "unblock":
                slot = self._number(one.args[0]) - (int(BlockKind.MICROTHREAD) << 8)
                (self._pe.held.add if one.op == "block" else self._pe.held.discard)(slot)
            case "load_dsr":
                content = one.args[0]
                assert isinstance(content, Constant)
                assert isinstance(content.value, tuple)
                file, number = map(int, one.names)
                self._registers[file << 8 | number] = content.value
            case _:
                self._vector(one)

    def _vector(self, one: Instruction) -> None:
        name, *options = one.names
        num = 1 + len(VECTOR_OPS[name].sources)
        words = [self._words(arg) for arg in one.args[:num]]
        numbers = [self._number(arg) for arg in one.args[num:]]
        num_given = sum(isinstance(arg, Constant) and arg.type is Type.DSD for arg in one.args)
        load = num_given + LOAD_TO_USE - 1 if num_given else 0
        slot, priority = MAIN, 0
        if "microthread" in options:
            slot, priority = numbers
        elif "async" in options:
            slot = next(w[4] for w in words if isinstance(w, tuple) and w[0] in (2, 3))
        self._wait(slot)
        self._clock += load
        operation = self._operation(name, words)
        operation.priority = priority
        self._pe.running[slot] = operation
        if slot != MAIN:
            self._clock += 1
            return
        self._wait(MAIN)
        # The last beat was this long behind its issue, and the next instruction is one behind that.
        self._clock = self._pe.now - BEAT + 1
        is_read = any(operand.kind == "memory" for operand in operation.operands[1:])
        drain = DRAIN[self._pe.arch]
        self._drained = self._clock + (drain if is_read else max(0, drain - LOAD_TO_USE))

    def _wait(self, slot: int) -> None:
        for _ in range(PATIENCE):
            if slot not in self._pe.running:
                return
            self._pe.advance(self._pe.now + 1)
            self._clock = max(self._clock, self._pe.now)
        raise StuckError

    def _words(self, arg: Value) -> tuple[int, ...] | Operand:
        match arg:
            case Resource(_, number):
                return self._registers[number]
            case Constant(tuple() as words):
                return words
            case Address():
                return Operand("pointer", self._number(arg) // WORD_BYTES)
            case _:
                return Operand("number", self._number(arg))

    def _operation(self, name: str, words: Sequence[tuple[int, ...] | Operand]) -> Operation:
        kinds = {1: "memory", 2: "in", 3: "out"}
        operands = [w if isinstance(w, Operand) else Operand(kinds[w[0]], w[1]) for w in words]
        (target, *sources), first = words, self._clock + BEAT
        length = next(w[2] for w in (*sources, target) if isinstance(w, tuple))
        width, turns = VECTOR_OPS[name].rates[self._pe.arch], 1
        if len([w for w in sources if isinstance(w, tuple) and w[0] == 1]) == 2:
            is_in_place = operands[0] == operands[1] and width >= ROW
            turns += is_in_place or (operands[1].value - operands[2].value) % (PORTS * ROW) == 0
        if any(operand.kind in ("in", "out") for operand in operands):
            return Operation(name, operands, length, 1, turns, first)
        total = next((w.value for w in words[1:] if isinstance(w, Operand)), 0)
        return Operation(name, operands, length, width, turns, first + turns - 1, total=total)
