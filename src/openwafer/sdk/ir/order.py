"""Which code has to keep to the order of cycles with operations in flight, and how it does.

Only an asynchronous operation runs beside code, so an image without one is left alone. In others
each vector operation on memory is marked, and ``sync`` stands before accesses of *shared* memory:
variables that a descriptor of an asynchronous operation, a FIFO or a register may reach, and all
that is reached through a pointer whose target is not seen in its block. Since accesses count at the
begin of the run of instructions that they belong to, one ``sync`` a run is enough.

What is not known is taken to be shared. The interpreter does without this page: it lets the machine
catch up before every access.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Global,
    Instruction,
    Module,
    Register,
    Resource,
    Type,
    Value,
)
from openwafer.sdk.ir.operations import CALLS, ORDERED, SYNCED
from openwafer.sdk.ir.suspension import is_request
from openwafer.sdk.program.descriptor import (
    DSD_WORDS,
    KIND_MASK,
    WORD_BASE,
    WORD_ELEMENT,
    DsdFlag,
    DsdKind,
)
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.mailbox import Option

_MEMORY_KINDS: Final = (DsdKind.MEM1D, DsdKind.MEM4D, DsdKind.CIRCULAR)
_HEAD_BITS: Final = KIND_MASK | sum(DsdFlag)
_MOST_ELEMENT_WORDS: Final = 4

Target: TypeAlias = str | None
"""What a pointer leads to: a global, a memory slot behind ``$``, None where that is not known."""


@dataclass(frozen=True)
class Reach:
    """What an image has besides its code that moves data.

    Attributes:
        addresses: a word in each variable that FIFOs, and registers at start-up, move.
        is_asynchronous: a register that is loaded at start-up makes operations asynchronous.
    """

    addresses: tuple[int, ...] = ()
    is_asynchronous: bool = False


NO_REACH: Final = Reach()
"""That of code alone."""


def reach_of(image: Image) -> Reach:
    """What an image's FIFOs and registers reach."""
    fifos = (fifo.address for fifo in image.fifos)
    bases = (dsr.words[WORD_BASE] for dsr in image.dsrs if _is_memory(dsr.words))
    return Reach((*fifos, *bases), any(dsr.options & Option.ASYNC for dsr in image.dsrs))


def ordered(module: Module, reach: Reach = NO_REACH) -> Module:
    """The module, its time counted, with ``sync`` and ordered vector operations where they matter.

    Args:
        module: of :func:`~openwafer.sdk.ir.cost.timed`.
        reach: what the image has besides.
    """
    if not may_be_in_flight(module, reach):
        return module
    shared = shared_variables(module, reach)
    functions = {
        name: _ordered_function(function, shared) for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


def may_be_in_flight(module: Module, reach: Reach = NO_REACH) -> bool:
    """Whether an operation may run beside the module's code."""
    return reach.is_asynchronous or any(map(_is_asynchronous, module.functions.values()))


def shared_variables(module: Module, reach: Reach = NO_REACH) -> frozenset[str]:
    """Variables that an asynchronous operation may touch."""
    variables = _Variables(module.globals)
    addresses = [*reach.addresses]
    for variable in module.globals:
        addresses += _bases_in(variable)
    shared = set[str]()
    for function in module.functions.values():
        seen = function.once(_seen_by_machine, _seen_by_machine)
        if seen.is_anything:
            return variables.mutable
        addresses += seen.addresses
        shared.update(seen.symbols)
    return variables.mutable & (shared | variables.at(addresses))


class _Variables:
    """Finds the variable of an address."""

    def __init__(self, variables: Iterable[Global]) -> None:
        self._by_address = sorted(variables, key=lambda one: one.address)
        self._starts = [one.address for one in self._by_address]
        self.mutable = frozenset(one.name for one in self._by_address if one.is_mutable)

    def at(self, addresses: Iterable[int]) -> set[str]:
        """Names of the variables that begin last before the addresses, or at them."""
        places = (bisect_right(self._starts, address) for address in addresses)
        starts = {self._starts[place - 1] for place in places if place}
        return {one.name for one in self._by_address if one.address in starts}


def _bases_in(variable: Global) -> Iterator[int]:
    """Base addresses of what may be a descriptor of memory in a variable's initial words."""
    words = (*variable.initial, *[0] * DSD_WORDS)
    for start in range(len(variable.initial)):
        window = words[start : start + DSD_WORDS]
        if _is_memory(window) and 0 < window[WORD_ELEMENT] <= _MOST_ELEMENT_WORDS:
            yield window[WORD_BASE]


def _is_memory(words: Sequence[int]) -> bool:
    return words[0] & KIND_MASK in _MEMORY_KINDS and words[0] & ~_HEAD_BITS == 0


def _is_asynchronous(function: Function) -> bool:
    def find(one: Function) -> bool:
        return any(
            i.op in ("vector", "load_dsr") and "async" in i.names[1:] for i in one.instructions
        )

    return function.once(_is_asynchronous, find)


@dataclass
class _Seen:
    """What the machine is shown of memory by a function.

    Attributes:
        addresses: base addresses that descriptors have.
        symbols: variables whose address a descriptor takes.
        is_anything: a descriptor takes an address that is not seen.
    """

    addresses: list[int]
    symbols: set[str]
    is_anything: bool = False


def _seen_by_machine(function: Function) -> _Seen:
    seen = _Seen([], set())
    for block in function.blocks:
        made = {one.result: one for one in block.instructions if one.result >= 0}
        for one in block.instructions:
            _see(seen, one, made)
    return seen


def _see(seen: _Seen, one: Instruction, made: dict[int, Instruction]) -> None:
    if one.op not in ("show", "dsd_get") and not _runs_alone(one):
        descriptors = [arg.value for arg in one.args if isinstance(arg, Constant)]
        seen.addresses += [
            words[WORD_BASE]
            for words in descriptors
            if isinstance(words, tuple) and _is_memory(words)
        ]
    changes_base = one.op == "dsd_set" and one.names[0] == str(WORD_BASE)
    if changes_base or one.op == "set_dsr_base":
        _see_base(seen, one.args[1], made)
    elif one.op == "vector" and not _runs_alone(one) and one.args[0].type is Type.PTR:
        _see_base(seen, one.args[0], made)


def _runs_alone(one: Instruction) -> bool:
    """Whether it is a vector operation that the main thread waits for."""
    if one.op != "vector":
        return False
    takes_options = any(isinstance(arg, Resource) and arg.kind == "dsr" for arg in one.args)
    return "async" not in one.names and not takes_options


def _see_base(seen: _Seen, base: Value, made: dict[int, Instruction]) -> None:
    """Note what a base address comes from: a variable, another descriptor's base, or who knows."""
    waiting, is_known = [base], False
    numbers: list[int] = []
    while waiting:
        value = waiting.pop()
        match value:
            case Address(symbol):
                seen.symbols.add(symbol)
                is_known = True
            case Constant(int() as number):
                numbers.append(number & 0xFFFF)
            case Register(number) if number in made and _is_arithmetic(made[number]):
                waiting += made[number].args
            case Register(number) if number in made and made[number].op == "dsd_get":
                is_known = True
            case Register(number) if number in made and made[number].op == "slot_address":
                is_known = True
            case _ if value.type is Type.PTR:
                seen.is_anything = True
            case _:
                pass
    if not is_known:
        seen.addresses += numbers
        seen.is_anything |= not numbers


def _is_arithmetic(one: Instruction) -> bool:
    return one.op in ("add", "sub", "ptr_add", "byte_add", "word_of", "at_word", "bitcast", "cast")


def _ordered_function(function: Function, shared: frozenset[str]) -> Function:
    own = shared & function.symbols
    return function.once(
        (_ordered_function, own),
        lambda one: replace(one, blocks=list(_ordered_blocks(one, own))),
    )


def _ordered_blocks(function: Function, shared: frozenset[str]) -> Iterator[Block]:
    targets = [_targets(block) for block in function.blocks]
    known = shared.union(*(_escaping(*pair) for pair in zip(function.blocks, targets, strict=True)))
    for block, own in zip(function.blocks, targets, strict=True):
        yield replace(block, instructions=list(_ordered_block(block, own, known)))


def _targets(block: Block) -> dict[int, Target]:
    """Where the block's pointers lead, by number of the value."""
    found: dict[int, Target] = {}
    for one in block.instructions:
        match one.op:
            case "slot_address":
                found[one.result] = f"${one.names[0]}"
            case "ptr_add" | "byte_add":
                found[one.result] = _target(one.args[0], found)
            case _:
                pass
    return found


def _target(pointer: Value, targets: dict[int, Target]) -> Target:
    if isinstance(pointer, Address):
        return pointer.symbol
    return targets.get(pointer.number) if isinstance(pointer, Register) else None


_NUM_POINTERS: Final = {"load": 1, "store": 1, "ptr_add": 1, "byte_add": 1, "copy": 2}
"""How many of an instruction's operands are pointers that it only follows."""


def _escaping(block: Block, targets: dict[int, Target]) -> set[str]:
    """Memory slots whose address goes where it is not followed."""
    return {
        target
        for one in block.instructions
        for arg in one.args[_NUM_POINTERS.get(one.op, 0) :]
        if isinstance(arg, Register) and (target := targets.get(arg.number) or "")[:1] == "$"
    }


def _ordered_block(
    block: Block, targets: dict[int, Target], shared: frozenset[str]
) -> Iterator[Instruction]:
    is_over = False
    for one in block.instructions:
        is_over &= not any(one.cycles)
        if one.op == "vector" and len(one.names) == 1:
            is_over = False
            yield replace(one, names=(*one.names, ORDERED))
        elif not is_over and _meets(one, targets, shared):
            is_over = True
            yield Instruction("sync", place=one.place, cycles=one.cycles)
            yield replace(one, cycles=())
        else:
            is_over &= one.op not in CALLS and one.op != "drain" and not is_request(one)
            yield one


def _meets(one: Instruction, targets: dict[int, Target], shared: frozenset[str]) -> bool:
    """Whether an instruction touches what operations in flight may touch."""
    if one.op not in SYNCED:
        return False
    pointers = (_target(arg, targets) for arg in one.args[: _NUM_POINTERS.get(one.op, 0)])
    return one.op not in _NUM_POINTERS or any(to is None or to in shared for to in pointers)
