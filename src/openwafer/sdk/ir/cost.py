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
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from openwafer.sdk.arch.generation import WORD_BYTES, Generation
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
    Type,
    Value,
)
from openwafer.sdk.ir.issue import Run
from openwafer.sdk.ir.numbers import num_words
from openwafer.sdk.ir.operations import OPERATIONS
from openwafer.sdk.ir.prices import (
    FREE,
    ONE,
    Price,
    accesses,
    copy_slots,
    edge_cycles,
    inlined_functions,
    price,
    shortcuts,
)
from openwafer.sdk.ir.suspension import calls, is_request, successors
from openwafer.sdk.program.descriptor import WORD_EXTENT

Number: TypeAlias = int
"""Stands for a value: equal numbers are equal values."""
Place: TypeAlias = tuple[Number, int]
"""An address: a value and a constant offset in words."""

_DSDS: Final = (Type.DSD, Type.DSD4)
_PURE: Final = frozenset(
    name
    for name, operation in OPERATIONS.items()
    if operation.result != "." and not operation.may_suspend
) - {"call", "call_indirect", "timestamp", "random"}
_STOPS: Final = frozenset(
    name for name, operation in OPERATIONS.items() if operation.may_suspend and name != "load_dsr"
) | {"copy", "call", "call_indirect", "timestamp", "timestamp_control"}
_FORGETS: Final = frozenset(("copy", "call", "call_indirect", "vector"))
_HIGH_EXTENT: Final = WORD_EXTENT + 1


def timed(module: Module, generation: Generation) -> Module:
    """The module with the cycles of every instruction."""
    inlined = inlined_functions(module)
    functions = {
        name: _timed_function(function, generation, inlined)
        for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


def _timed_function(
    function: Function, generation: Generation, inlined: frozenset[str]
) -> Function:
    here = inlined.intersection(one.names[0] for one in calls(function) if one.op == "call")
    return function.once(
        (_timed_function, generation.arch, here),
        lambda one: replace(one, blocks=list(_timed_blocks(one, generation, here))),
    )


def _timed_blocks(
    function: Function, generation: Generation, inlined: frozenset[str]
) -> Iterator[Block]:
    ways, numbers = shortcuts(function), _Numbers()
    before = _predecessors(function)
    known: dict[str, _Known] = {}
    for index, block in enumerate(function.blocks):
        start = _agreed([known.get(label) for label in before[block.label]])
        walk = _Walk(numbers, generation, inlined, start, is_stepped=block.is_stepped)
        cycles = walk.cycles(block)
        known[block.label] = walk.known
        *others, last = block.instructions
        edges = edge_cycles(function, index, generation, ways)
        if last.op in ("branch", "switch") and walk.is_constant(last.args[0]):
            edges = (0,) * len(edges)
        instructions = [
            replace(one, cycles=(n,)) if n else one for one, n in zip(others, cycles, strict=False)
        ]
        ends = tuple(cycles[-1] + edge for edge in edges) or (cycles[-1],)
        instructions.append(replace(last, cycles=ends))
        yield replace(block, instructions=instructions)


def _predecessors(function: Function) -> dict[str, list[str]]:
    """By label, the blocks that lead to it."""
    sources: dict[str, list[str]] = {block.label: [] for block in function.blocks}
    for block in function.blocks:
        for label in successors(block):
            sources[label].append(block.label)
    return sources


def _agreed(ends: Sequence["_Known | None"]) -> "_Known":
    """What the ends of all blocks that lead to a place know; one still to come knows nothing."""
    first, *others = ends or [None]
    if first is None or None in others:
        return _Known()
    memory, slots = dict(first.memory), dict(first.slots)
    for other in others:
        assert other is not None
        memory = dict(memory.items() & other.memory.items())
        slots = dict(slots.items() & other.slots.items())
    return _Known(memory, slots)


@dataclass(slots=True)
class _Dsd:
    """A descriptor: where it lies, and words that differ from what lies there."""

    home: Place | None
    words: dict[int, Number]


@dataclass(slots=True)
class _Known:
    """What is known of memory and variables at a point of a function."""

    memory: dict[tuple[Place, Type], Number] = field(default_factory=dict)
    slots: dict[str, Number] = field(default_factory=dict)


class _Numbers:
    """Numbers the values of a function, and keeps what descriptors are."""

    def __init__(self) -> None:
        self._of: dict[object, Number] = {}
        self.offsets: dict[Number, Place] = {}
        self.variables: set[Number] = set()
        self.constants: set[Number] = set()
        self.dsds: dict[Number, _Dsd] = {}

    def of(self, key: object) -> Number:
        """The number of what a key describes."""
        return self._of.setdefault(key, len(self._of))

    def variable(self, key: object) -> Number:
        """The address of a variable, which no pointer is taken to reach."""
        number = self.of(key)
        self.variables.add(number)
        return number

    def fresh(self) -> Number:
        """A value that equals no other one."""
        return self.of(("fresh", len(self._of)))


class _Walk:
    """One pass over a block."""

    def __init__(
        self,
        numbers: _Numbers,
        generation: Generation,
        inlined: frozenset[str],
        known: _Known,
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
        self._stores: dict[tuple[Place, Type | int], tuple[Number, ...]] = {}
        self._begin()

    def _begin(self) -> None:
        """Start a run."""
        self._run = Run()
        self._done: dict[Number, tuple[int, ...]] = {}
        self._num_requests = 0

    def cycles(self, block: Block) -> list[int]:
        """Cycles before each instruction; of the last one without its edges."""
        used = _used(block.instructions)
        cycles = []
        for one in block.instructions[:-1]:
            is_needed = _has_effect(one) or one.result in used
            cycles.append(self._visit(one) if is_needed else 0)
        last = block.instructions[-1]
        return [*cycles, self._stop(map(self._number, last.args))]

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known when the machine's code is made; a PE's parameter is."""
        return self._number(value) in self._numbers.constants

    def _visit(self, one: Instruction) -> int:
        if one.op in _STOPS:
            return self._visit_stop(one)
        match one.op:
            case "set":
                self._set(one)
            case "store":
                self._store(one)
            case "load_dsr":
                self._load_dsr(one)
                return 1
            case "dsd_set":
                self._values[one.result] = self._changed(one)
            case _:
                result = self._value(one)
                if one.result >= 0:
                    self._values[one.result] = result
        return 0

    def _visit_stop(self, one: Instruction) -> int:
        args = [self._number(arg) for arg in one.args]
        if one.op == "copy":
            self._add(Price(copy_slots(one.args[2]), 1), args)
        for arg, number in zip(one.args, args, strict=True):
            if arg.type in _DSDS:
                self._materialise(number)
        cycles = self._stop(args)
        is_inlined = one.op == "call" and one.names[0] in self._inlined
        if one.op in ("call", "call_indirect") and not is_inlined:
            cycles += self._timing.call_cycles + len(args)
        if one.op in _FORGETS:
            self.known.memory.clear()
        if one.result >= 0:
            self._values[one.result] = self._numbers.fresh()
        if one.op in ("timestamp", "timestamp_control"):
            self._add(ONE, ())
        return cycles + self._timing.request_cycles * is_request(one)

    def _stop(self, awaited: Iterable[Number]) -> int:
        """End the run, with all stores in memory; gives its cycles.

        Loads of DSRs have had theirs, since each is a request that the machine serves by itself.
        """
        self._write_back()
        last = [node for number in awaited for node in self._done.get(number, ())]
        cycles = self._run.cycles(last) - self._num_requests
        self._begin()
        return max(0, cycles)

    def _add(self, cost: Price, args: Iterable[Number]) -> int:
        operands = (node for number in args for node in self._done.get(number, ()))
        return self._run.add(cost.slots, cost.latency, operands)

    def _issue(self, number: Number, cost: Price, args: Iterable[Number]) -> Number:
        """Issue what computes a value, unless that was computed before."""
        if number in self._done:
            return number
        args = tuple(args)
        if self._is_stepped or not cost.slots:
            nodes = (node for arg in args for node in self._done.get(arg, ()))
            self._done[number] = tuple(dict.fromkeys(nodes))
        else:
            self._done[number] = (self._add(cost, args),)
        return number

    def _number(self, value: Value) -> Number:
        numbers = self._numbers
        match value:
            case Register(number):
                return self._values[number]
            case Constant(content, kind) if kind in _DSDS:
                number = numbers.of(("constant", content, kind))
                numbers.dsds.setdefault(number, _Dsd((number, 0), {}))
                return number
            case Constant(content, kind):
                number = numbers.of(("constant", content, kind))
                numbers.constants.add(number)
                return number
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

    def _place(self, pointer: Number) -> Place:
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
                key = (one.op, one.names, one.type, args)
                number = numbers.of(key) if one.op in _PURE else numbers.fresh()
                return self._issue(number, self._price(one, number, args), args)

    def _price(self, one: Instruction, number: Number, args: tuple[Number, ...]) -> Price:
        """Nothing where the machine's compiler computes."""
        is_folded = one.op == "parameter" or (bool(args) and set(args) <= self._numbers.constants)
        if one.op in _PURE and is_folded:
            self._numbers.constants.add(number)
            return FREE
        return price(one, self._generation)

    def _get(self, one: Instruction) -> Number:
        name = one.names[0]
        if name not in self.known.slots:
            number = self._numbers.fresh()
            self.known.slots[name] = number
            if one.type in _DSDS:
                home = self._numbers.of(("slot", name))
                self._numbers.dsds[number] = _Dsd((home, 0), {})
        return self.known.slots[name]

    def _set(self, one: Instruction) -> None:
        number, name = self._number(one.args[0]), one.names[0]
        self.known.slots[name] = number
        if one.args[0].type in _DSDS:
            self._move_home(number, (self._numbers.of(("slot", name)), 0))

    def _load(self, pointer: Number, kind: Type) -> Number:
        place = self._place(pointer)
        found = self.known.memory.get((place, kind))
        if found is not None:
            return found
        if place[0] not in self._numbers.variables:
            self._write_back()
        number = self._numbers.fresh()
        self.known.memory[place, kind] = number
        if kind in _DSDS:
            self._numbers.dsds[number] = _Dsd(place, {})
        else:
            latency = 1 if self._is_stepped else self._timing.load_latency
            node = self._add(Price(accesses(num_words(kind)), latency), (pointer,))
            self._done[number] = (node,)
        return number

    def _store(self, one: Instruction) -> None:
        pointer, number = (self._number(arg) for arg in one.args)
        place, kind = self._place(pointer), one.args[1].type
        if kind in _DSDS:
            self._move_home(number, place)
        else:
            self._stores[place, kind] = (number, pointer)
        self._forget_others(place)
        self.known.memory[place, kind] = number

    def _forget_others(self, place: Place) -> None:
        """A store may change what lies behind other pointers, and what overlaps."""
        variables, base = self._numbers.variables, place[0]
        for key in list(self.known.memory):
            other = key[0]
            is_apart = other != place and (other[0] == base or {base, other[0]} <= variables)
            if not is_apart:
                del self.known.memory[key]

    def _move_home(self, number: Number, home: Place) -> None:
        """A descriptor is stored: changed words if it came from there, else all."""
        dsd = self._numbers.dsds.get(number)
        if dsd is None or dsd.home != home:
            self._stores[home, -1] = ()
        if dsd is not None:
            for word, value in dsd.words.items():
                if word != _HIGH_EXTENT:
                    self._stores[home, word] = (value,)
        self._numbers.dsds[number] = _Dsd(home, dict(dsd.words) if dsd else {})

    def _changed(self, one: Instruction) -> Number:
        """A descriptor with a word replaced."""
        old, value = (self._number(arg) for arg in one.args)
        word = int(one.names[0])
        number = self._numbers.of(("dsd_set", old, word, value))
        dsd = self._numbers.dsds.get(old) or _Dsd(None, {})
        self._numbers.dsds[number] = _Dsd(dsd.home, {**dsd.words, word: value})
        return number

    def _word(self, number: Number, word: int) -> Number:
        dsd = self._numbers.dsds.get(number) or _Dsd(None, {})
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
                self._stores[dsd.home, word] = (value,)

    def _load_dsr(self, one: Instruction) -> None:
        number = self._number(one.args[0])
        self._materialise(number)
        stores = self._write_back()
        file, register = map(int, one.names[:2])
        dsr = self._numbers.of(("dsr", file << 8 | register))
        node = self._run.add(1, self._timing.load_latency, stores)
        self._done[dsr] = (node,)
        self._num_requests += 1

    def _write_back(self) -> list[int]:
        """Do the stores that wait; gives their numbers in the run."""
        nodes = []
        for (_, kind), args in self._stores.items():
            if isinstance(kind, int):
                cost = ONE if kind >= 0 else Price(_WHOLE_DSD, 1)
            else:
                cost = Price(accesses(num_words(kind)), 1)
            nodes.append(self._add(cost, args))
        self._stores = {}
        return nodes


# Two loads and two stores of 64 bits.
_WHOLE_DSD: Final = 4


def _has_effect(one: Instruction) -> bool:
    return one.op not in _PURE and one.op not in ("assert", "show")


def _used(instructions: list[Instruction]) -> set[int]:
    """Values that something with an effect needs."""
    used: set[int] = set()
    for one in reversed(instructions):
        if _has_effect(one) or one.result in used:
            used.update(arg.number for arg in one.args if isinstance(arg, Register))
    return used
