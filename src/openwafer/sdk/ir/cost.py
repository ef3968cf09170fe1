"""Cycles of scalar code: what the machine's compiler would make of a block, and how long it takes.

A block is walked once. Values that were computed before, addresses with a constant offset and moves
between variables cost nothing; what was loaded or stored is known until something may change it,
also where ways meet that all know it; stores wait until they have to be in memory, and only the
last one to an address is done. What is left is issued by :mod:`openwafer.sdk.ir.issue`, in runs
that end where nothing can be moved: at calls, vector operations, reads of the clock, and at the end
of the block.

A descriptor lives in memory: changing one stores the changed words, and a DSR is loaded from there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from openwafer.sdk.arch.generation import WORD_BYTES, Generation
from openwafer.sdk.ir.diamonds import Diamond, diamonds
from openwafer.sdk.ir.drains import drained, looks_at_clock
from openwafer.sdk.ir.function import (
    DSDS,
    Address,
    Block,
    Constant,
    Function,
    FunctionName,
    Instruction,
    Module,
    Register,
    Resource,
    Type,
    Value,
)
from openwafer.sdk.ir.issue import Issued, Run, Share
from openwafer.sdk.ir.known import Dsd, Known, MemoryCell, Number, Numbers, agreed
from openwafer.sdk.ir.numbers import FLOATS, num_words
from openwafer.sdk.ir.operations import CALLS, PURE, Effect, with_effect
from openwafer.sdk.ir.prices import (
    FREE,
    ONE,
    Price,
    accesses,
    copy_slots,
    edge_cycles,
    inlined_functions,
    is_mask,
    needed_words,
    price,
    shortcuts,
)
from openwafer.sdk.ir.suspension import calls, is_request, successors
from openwafer.sdk.ir.unrolling import unrolled_counters
from openwafer.sdk.program.descriptor import WORD_EXTENT

_STOPS: Final = with_effect(Effect.BORDER)
_FORGETS: Final = with_effect(Effect.WRITES, Effect.CALLS)
_HIGH_EXTENT: Final = WORD_EXTENT + 1


class Charge(NamedTuple):
    """Cycles that pass at one point of the code: those of a run that ends there, and its own."""

    issued: Issued | None
    own: Share

    @property
    def cycles(self) -> int:
        """All of them."""
        return self.own.taken + (self.issued.cycles if self.issued is not None else 0)

    @property
    def shares(self) -> tuple[Share, ...]:
        """To which places they belong, each named once."""
        whole: dict[int, Share] = {}
        for place, taken, waited in (*(self.issued.shares() if self.issued else ()), self.own):
            _, before, waited_before = whole.get(place, Share(place, 0, 0))
            whole[place] = Share(place, before + taken, waited_before + waited)
        return tuple(share for share in whole.values() if share.taken or share.waited)

    def and_then(self, cycles: int) -> "Charge":
        """With more cycles of its own."""
        if cycles == 0:
            return self
        return Charge(self.issued, self.own._replace(taken=self.own.taken + cycles))


Charges: TypeAlias = tuple[Charge, ...]
"""Of an instruction: what passes before it; of a terminator, up to each of its targets."""
_NOTHING: Final[Charges] = (Charge(None, Share(0, 0)),)


def timed(module: Module, generation: Generation) -> Module:
    """The module with the cycles of every instruction, and where it waits for vector operations."""
    module = drained(module)
    inlined = inlined_functions(module)
    functions = {
        name: _timed_function(function, generation, _inlined_in(function, inlined))
        for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


def charged(module: Module, generation: Generation) -> Iterator[tuple[Instruction, Charges]]:
    """The instructions of :func:`timed`, in the order of the code, and what is charged for each."""
    module = drained(module)
    inlined = inlined_functions(module)
    for function in module.functions.values():
        for block, charges in _charged_blocks(function, generation, inlined):
            yield from zip(block.instructions, charges, strict=True)


def _inlined_in(function: Function, inlined: frozenset[str]) -> frozenset[str]:
    return inlined.intersection(one.names[0] for one in calls(function) if one.op == "call")


def _timed_function(
    function: Function, generation: Generation, inlined: frozenset[str]
) -> Function:
    return function.once(
        (_timed_function, generation.arch, inlined),
        lambda one: replace(
            one,
            blocks=[
                _with_cycles(block, charges)
                for block, charges in _charged_blocks(one, generation, inlined)
            ],
        ),
    )


def _with_cycles(block: Block, charges: Sequence[Charges]) -> Block:
    *others, last = block.instructions
    instructions = [
        one if own is _NOTHING or not own[0].cycles else replace(one, cycles=(own[0].cycles,))
        for one, own in zip(others, charges, strict=False)
    ]
    ends = tuple(charge.cycles for charge in charges[-1])
    return replace(block, instructions=[*instructions, replace(last, cycles=ends)])


def _charged_blocks(
    function: Function, generation: Generation, inlined: frozenset[str]
) -> Iterator[tuple[Block, list[Charges]]]:
    ways, numbers, counters = shortcuts(function), Numbers(), unrolled_counters(function)
    before = _predecessors(function)
    tests = {block.label: block.instructions[-1] for block in function.blocks}
    known: dict[str, Known] = {}
    chosen: dict[str, _Walk] = {}
    passed: set[str] = set()
    for index, block in enumerate(function.blocks):
        last = block.instructions[-1]
        if block.label in passed:
            yield block, [_NOTHING] * len(block.instructions)
            continue
        start = agreed([known.get(label) for label in before[block.label]])
        if block.label in counters:
            start.slots[counters[block.label]] = numbers.constant(counters[block.label])
        walk = chosen.get(block.label) or _Walk(
            numbers, generation, inlined, start, is_stepped=block.is_stepped
        )
        charges = walk.visit(block)
        diamond = diamonds(function).get(block.label)
        if diamond is not None and walk.chooses(diamond, last):
            passed.update(way.label for way in diamond.ways)
            chosen[diamond.end] = walk
            ends: Charges = 2 * _NOTHING
        else:
            edges = edge_cycles(function, index, generation, ways)
            if last.op in ("branch", "switch") and walk.is_constant(last.args[0]):
                edges = (0,) * len(edges)
            if block.is_loop_end and last.names[0] in counters:
                edges = (0,)
            end = walk.end(block)
            if block.is_loop_end and last.op == "jump":
                # The way back is the loop's test, which stands in its head.
                end = Charge(end.issued, Share(tests[last.names[0]].place, 0))
            ends = tuple(map(end.and_then, edges)) or (end,)
        known[block.label] = walk.known
        yield block, [*charges, ends]


def _predecessors(function: Function) -> dict[str, list[str]]:
    """By label, the blocks that lead to it."""
    sources: dict[str, list[str]] = {block.label: [] for block in function.blocks}
    for block in function.blocks:
        for label in successors(block):
            sources[label].append(block.label)
    return sources


class _Store(NamedTuple):
    """A store that waits: what it needs, and its place in the source."""

    args: tuple[Number, ...]
    at: int


class _Walk:
    """One pass over a block."""

    def __init__(
        self,
        numbers: Numbers,
        generation: Generation,
        inlined: frozenset[str],
        known: Known,
        *,
        is_stepped: bool,
    ) -> None:
        self.known = known
        self._numbers = numbers
        self._generation = generation
        self._timing = generation.timing
        self._inlined = inlined
        self._is_stepped = is_stepped
        self._values: dict[int, Number] = {}
        self._stores: dict[tuple[MemoryCell, Type | int], _Store] = {}
        self._at = 0
        self._needed: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        """Start a run."""
        self._run = Run()
        self._done: dict[Number, tuple[int, ...]] = {}

    def visit(self, block: Block) -> list[Charges]:
        """Cycles before each instruction but the last."""
        used, self._needed = _used(block.instructions), needed_words(block.instructions)
        return [
            self._visit(one) if _has_effect(one) or one.result in used else _NOTHING
            for one in block.instructions[:-1]
        ]

    def end(self, block: Block) -> Charge:
        """Cycles before the last instruction of a block, without its edges."""
        last = block.instructions[-1]
        self._at = last.place
        return self._stop(map(self._number, last.args))

    def chooses(self, diamond: Diamond, branch: Instruction) -> bool:
        """Go through both ways and choose between their values, where that loads nothing."""
        condition = branch.args[0]
        if self.is_constant(condition) or any(map(self._loads_in, diamond.ways)):
            return False
        before, sides = self.known.slots, []
        for way in diamond.ways:
            self.known.slots = dict(before)
            self.visit(way)
            sides.append(self.known.slots)
        first, second = sides
        self._at = branch.place
        self.known.slots = {**before, **second, **first}
        for name in first.keys() | second.keys():
            values = first.get(name), second.get(name)
            if values[0] != values[1]:
                operands = [value for value in values if value is not None]
                number = self._numbers.fresh()
                node = self._add(ONE, (self._number(condition), *operands))
                self._done[number] = (node,)
                self.known.slots[name] = number
        return True

    def _loads_in(self, way: Block) -> bool:
        """Whether a way loads something that is not known."""
        known = Known(dict(self.known.memory), dict(self.known.slots), set(self.known.computed))
        trial = _Walk(self._numbers, self._generation, self._inlined, known, is_stepped=False)
        trial.visit(way)
        return trial.has_loads

    @property
    def has_loads(self) -> bool:
        """Whether the run loads anything."""
        return self._run.has_loads

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known when the machine's code is made; a PE's parameter is."""
        return self._number(value) in self._numbers.constants

    def _visit(self, one: Instruction) -> Charges:
        self._at = one.place
        if one.op in _STOPS or looks_at_clock(one):
            return (self._visit_stop(one),)
        match one.op:
            case "drain":
                pass
            case "set":
                self._set(one)
            case "store":
                self._store(one)
            case "load_dsr":
                self._load_dsr(one)
                return (Charge(None, Share(one.place, 1)),)
            case "dsd_set":
                self._values[one.result] = self._changed(one)
            case _:
                result = self._value(one)
                if one.result >= 0:
                    self._values[one.result] = result
        return _NOTHING

    def _visit_stop(self, one: Instruction) -> Charge:
        args = [self._number(arg) for arg in one.args]
        if one.op == "copy":
            self._add(Price(copy_slots(one.args[2]), 1), args)
        for arg, number in zip(one.args, args, strict=True):
            if arg.type in DSDS:
                self._materialise(number)
        charge, cycles = self._stop(args), 0
        is_inlined = one.op == "call" and one.names[0] in self._inlined
        if one.op in CALLS and not is_inlined:
            cycles += self._timing.call_cycles + len(args)
        if one.op in _FORGETS:
            self.known.memory.clear()
        if one.result >= 0:
            self._values[one.result] = self._numbers.fresh()
        if one.op == "timestamp_control":
            # The control lies in memory, and what comes next waits until it is written.
            self._add(Price(1 + self._timing.load_latency, 1), ())
        is_scalar_request = is_request(one) and one.op != "vector"
        if one.op == "set_dsr_base":
            # The register is read, changed and loaded.
            cycles += self._timing.load_latency
        return charge.and_then(cycles + self._timing.request_cycles * is_scalar_request)

    def _stop(self, awaited: Iterable[Number]) -> Charge:
        """End the run, with all stores in memory."""
        at = self._at
        self._write_back()
        last = [node for number in awaited for node in self._done.get(number, ())]
        issued = self._run.issued(last) if self._run.slots else None
        self._begin()
        return Charge(issued, Share(at, 0))

    def _add(self, cost: Price, args: Iterable[Number], at: int | None = None) -> int:
        operands = (node for number in args for node in self._done.get(number, ()))
        return self._run.add(cost.slots, cost.latency, operands, self._at if at is None else at)

    def _issue(
        self, number: Number, cost: Price, args: Iterable[Number], *, is_address: bool = False
    ) -> Number:
        """Issue what computes a value, unless that was computed before."""
        if number in self._done:
            return number
        if number in self.known.computed:
            self._done[number] = ()
            return number
        args = tuple(args)
        self.known.computed.add(number)
        if self._is_stepped or not cost.slots:
            nodes = (node for arg in args for node in self._done.get(arg, ()))
            self._done[number] = tuple(dict.fromkeys(nodes))
        else:
            self._done[number] = (self._add(cost, args),)
            if is_address:
                self._run.mark_address(self._done[number][0])
        return number

    def _number(self, value: Value) -> Number:
        numbers = self._numbers
        match value:
            case Register(number):
                return self._values[number]
            case Constant(content, kind) if kind in DSDS:
                number = numbers.of(("constant", content, kind))
                numbers.dsds.setdefault(number, Dsd((number, 0), {}))
                return number
            case Constant(content, kind):
                return numbers.constant((content, kind))
            case Address(symbol, offset):
                return self._moved(numbers.variable(("address", symbol)), offset)
            case FunctionName(name):
                return numbers.of(("function", name))
            case Resource(kind, number):
                return numbers.of((kind, number))

    def _moved(self, base: Number, offset: int) -> Number:
        """A pointer and a constant number of bytes."""
        start, before = self._numbers.offsets.get(base, (base, 0))
        offset += before
        if offset == 0:
            return start
        number = self._numbers.of(("moved", start, offset))
        self._numbers.offsets[number] = (start, offset)
        if start in self._done:
            self._done.setdefault(number, self._done[start])
        return number

    def _cell(self, pointer: Number) -> MemoryCell:
        return self._numbers.offsets.get(pointer, (pointer, 0))

    def _value(self, one: Instruction) -> Number:
        """The value that an instruction gives."""
        numbers = self._numbers
        match one.op:
            case "get":
                return self._get(one)
            case "slot_address":
                return numbers.variable(("slot address", one.names[0]))
            case "bitcast" | "word_of" | "at_word":
                return self._number(one.args[0])
            case "ptr_add" | "byte_add" if isinstance(one.args[1], Constant):
                offset, unit = one.args[1].value, WORD_BYTES if one.op == "ptr_add" else 1
                return self._moved(
                    self._number(one.args[0]), unit * offset if isinstance(offset, int) else 0
                )
            case "load":
                return self._load(self._number(one.args[0]), one.type)
            case "dsd_get":
                return self._word(self._number(one.args[0]), int(one.names[0]))
            case _:
                args = tuple(map(self._number, one.args))
                if one.op == "rem" and not is_mask(one):
                    quotient = replace(one, op="div")
                    number = numbers.of(("div", one.names, one.type, args))
                    cost = self._price(quotient, number, args)
                    args = (self._issue(number, cost, args), args[1])
                key = (one.op, one.names, one.type, args)
                number = numbers.of(key) if one.op in PURE else numbers.fresh()
                is_address = one.op in ("ptr_add", "byte_add")
                cost = self._price(one, number, args)
                return self._issue(number, cost, args, is_address=is_address)

    def _price(self, one: Instruction, number: Number, args: tuple[Number, ...]) -> Price:
        """Nothing where the machine's compiler computes."""
        is_folded = one.op == "parameter" or (bool(args) and set(args) <= self._numbers.constants)
        if one.op in PURE and is_folded:
            self._numbers.constants.add(number)
            return FREE
        return price(one, self._generation, self._needed.get(one.result, 1))

    def _get(self, one: Instruction) -> Number:
        name = one.names[0]
        if name not in self.known.slots:
            number = self._numbers.fresh()
            self.known.slots[name] = number
            if one.type in DSDS:
                home = self._numbers.of(("slot", name))
                self._numbers.dsds[number] = Dsd((home, 0), {})
        return self.known.slots[name]

    def _set(self, one: Instruction) -> None:
        number, name = self._number(one.args[0]), one.names[0]
        self.known.slots[name] = number
        if one.args[0].type in DSDS:
            self._move_home(number, (self._numbers.of(("slot", name)), 0))

    def _load(self, pointer: Number, kind: Type) -> Number:
        cell = self._cell(pointer)
        found = self.known.memory.get((cell, kind))
        if found is not None:
            return found
        if cell[0] not in self._numbers.variables:
            self._write_back()
        number = self._numbers.fresh()
        self.known.memory[cell, kind] = number
        if kind in DSDS:
            self._numbers.dsds[number] = Dsd(cell, {})
        else:
            if self._is_stepped:
                # The number is in a register, where what uses it finds it as a result.
                latency = self._timing.float_latency if kind in FLOATS else 1
                cost = Price(latency, latency)
            else:
                cost = Price(accesses(num_words(kind)), self._timing.load_latency)
            node = self._add(cost, (pointer,))
            self._run.mark_load(node)
            self._done[number] = (node,)
        return number

    def _store(self, one: Instruction) -> None:
        pointer, number = (self._number(arg) for arg in one.args)
        cell, kind = self._cell(pointer), one.args[1].type
        if kind in DSDS:
            self._move_home(number, cell)
        else:
            self._keep(cell, kind, (number, pointer))
        self._forget_others(cell)
        self.known.memory[cell, kind] = number

    def _keep(self, cell: MemoryCell, kind: Type | int, args: tuple[Number, ...]) -> None:
        """Let a store wait: of a value, of a word of a descriptor, or of a whole one (-1)."""
        if (cell, kind) not in self._stores or self._stores[cell, kind].args != args:
            self._stores[cell, kind] = _Store(args, self._at)

    def _forget_others(self, cell: MemoryCell) -> None:
        """A store may change what lies behind other pointers, and what overlaps."""
        variables, base = self._numbers.variables, cell[0]
        for key in list(self.known.memory):
            other = key[0]
            is_apart = other != cell and (other[0] == base or {base, other[0]} <= variables)
            if not is_apart:
                del self.known.memory[key]

    def _move_home(self, number: Number, home: MemoryCell) -> None:
        """A descriptor is stored: changed words if it came from there, else all."""
        dsd = self._numbers.dsds.get(number)
        if dsd is None or dsd.home != home:
            self._keep(home, -1, ())
        if dsd is not None:
            for word, value in dsd.words.items():
                if word != _HIGH_EXTENT:
                    self._keep(home, word, (value,))
        self._numbers.dsds[number] = Dsd(home, dict(dsd.words) if dsd else {})

    def _changed(self, one: Instruction) -> Number:
        """A descriptor with a word replaced."""
        old, value = (self._number(arg) for arg in one.args)
        word = int(one.names[0])
        number = self._numbers.of(("dsd_set", old, word, value))
        dsd = self._numbers.dsds.get(old) or Dsd(None, {})
        self._numbers.dsds[number] = Dsd(dsd.home, {**dsd.words, word: value})
        return number

    def _word(self, number: Number, word: int) -> Number:
        dsd = self._numbers.dsds.get(number) or Dsd(None, {})
        if word in dsd.words:
            return dsd.words[word]
        cost = FREE if word == _HIGH_EXTENT else Price(1, self._timing.load_latency)
        return self._issue(self._numbers.of(("dsd_get", number, word)), cost, ())

    def _materialise(self, number: Number) -> None:
        """A descriptor that is used where it does not lie in memory yet has to be put there."""
        dsd = self._numbers.dsds.get(number)
        if dsd is None or dsd.home is None:
            return
        for word, value in dsd.words.items():
            if word != _HIGH_EXTENT and self.known.memory.get((dsd.home, Type.DSD)) != number:
                self._keep(dsd.home, word, (value,))

    def _load_dsr(self, one: Instruction) -> None:
        number = self._number(one.args[0])
        self._materialise(number)
        stores = self._write_back()
        file, register = map(int, one.names[:2])
        dsr = self._numbers.of(("dsr", file << 8 | register))
        # The machine serves it as a request, which has its cycle there.
        node = self._run.add(1, self._timing.load_latency, stores, one.place)
        self._run.mark_paid(node)
        self._done[dsr] = (node,)

    def _write_back(self) -> list[int]:
        """Do the stores that wait; gives their numbers in the run."""
        nodes = []
        for (_, kind), store in self._stores.items():
            if isinstance(kind, int):
                cost = ONE if kind >= 0 else Price(_WHOLE_DSD, 1)
            else:
                cost = Price(accesses(num_words(kind)), 1)
            nodes.append(self._add(cost, store.args, store.at))
        self._stores = {}
        return nodes


# Two loads and two stores of 64 bits.
_WHOLE_DSD: Final = 4


def _has_effect(one: Instruction) -> bool:
    return one.op not in PURE and one.op not in ("assert", "show")


def _used(instructions: list[Instruction]) -> set[int]:
    """Values that something with an effect needs."""
    used: set[int] = set()
    for one in reversed(instructions):
        if _has_effect(one) or one.result in used:
            used.update(arg.number for arg in one.args if isinstance(arg, Register))
    return used
