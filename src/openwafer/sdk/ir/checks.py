"""Code that tells of mistakes of its program: instructions of the kind ``check`` before others.

They take no time and change nothing but what the host is told. Those of the kinds ``same``,
``flight``, ``shift``, ``written`` and ``unset`` (:mod:`openwafer.sdk.ir.unwritten`) are only in
code of checked runs; the others cost next to nothing and are in all.

=========  ===================================================  ===================================
kind       operands                                             tells when
=========  ===================================================  ===================================
inside     address, a variable's begin and bytes, bytes taken   the access leaves the variable
same       address, the pointer it was made of, bytes taken     they lie in different variables
flight     address, bytes taken                                 an operation in flight uses them
written    address, bytes taken; of a copy: target, source,     nothing has written them
           bytes
unset      whether a register slot has a value                  it has none
divisor    a number                                             it is zero
shift      a number of bits; word: how many the operand has     it leaves nothing of the operand
wrap       two integers; words: operation, type                 the type cannot hold the result
stream     none                                                 the command stream is open
width      descriptor; words: operation, operand's place        the variable's elements are wider,
                                                                or narrower, than the operation's
extent     base, extent, length; words: operation, place        always
=========  ===================================================  ===================================

The first three have ``read`` or ``write`` as another word; those of ``written`` are told of there.
A variable is a global, or an array of a function; where a pointer comes from elsewhere, it leads
into the variable that it points at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.arch.vector_ops import MOVE_OF_ANY_WIDTH, VECTOR_OPS
from openwafer.sdk.ir.function import (
    DSDS,
    Address,
    Block,
    Constant,
    Function,
    Instruction,
    Module,
    Register,
    Resource,
    Type,
    Value,
)
from openwafer.sdk.ir.numbers import INTEGERS, WIDTHS
from openwafer.sdk.ir.operations import FABRIC, MARKS, ORDERED
from openwafer.sdk.ir.unwritten import STREAM, noted
from openwafer.sdk.program.descriptor import (
    KIND_MASK,
    WORD_BASE,
    WORD_KIND,
    DsdKind,
    extent_of,
)
from openwafer.sdk.program.mailbox import WRAP_TYPES, Finding

READ: Final = "read"
WRITE: Final = "write"
OUTSIDE: Final = {READ: Finding.READ_OUTSIDE, WRITE: Finding.WRITE_OUTSIDE}
"""What accesses that leave their variable are, by their word."""
MET_IN_FLIGHT: Final = {
    READ: Finding.READ_IN_FLIGHT,
    WRITE: Finding.WRITE_IN_FLIGHT,
    STREAM: Finding.STREAM_IN_FLIGHT,
}
"""The same of accesses of what an operation in flight uses."""
_MOST_EXTENT: Final = 0x7FFF
_ENDING: Final = frozenset(
    ("terminate_on_control", "control_activate", "control_unblock", "filter", "single_step")
)
"""Options of operations that may have fewer elements than their descriptors."""
_IGNORED: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(
    {DsdKind.MEM1D: (), DsdKind.FABIN: (1,), DsdKind.FABOUT: (1,)}
)
"""By kind: extents that say nothing. Published programs give fabric descriptors 1 for any."""
_MAY_WRAP: Final = frozenset(("add16", "sub16"))
"""Vector operations on integers whose results may be too large for them."""
_SHIFTS: Final = frozenset(("sll16", "slr16", "sar16"))
_POINTER_STEPS: Final = frozenset(("ptr_add", "byte_add"))


class Depth(IntEnum):
    """How closely code is looked at; each looks at what the one before does, too."""

    PLAIN = 0
    """What costs next to nothing."""
    CHECKED = 1
    """Loads and stores through pointers that lead who knows where, or of what may be in flight."""
    WRAPS = 2
    """Integer arithmetic."""


@dataclass(frozen=True)
class Accesses:
    """What is looked at of single instructions.

    Attributes:
        depth: how closely.
        has_flight: operations may be in flight meanwhile.
    """

    depth: Depth = Depth.PLAIN
    has_flight: bool = True

    @property
    def are_checked(self) -> bool:
        """Whether the run is a checked one."""
        return self.depth >= Depth.CHECKED


def checked(module: Module, accesses: Accesses = Accesses()) -> Module:
    """The module with checks.

    Args:
        module: its time counted; a check takes over the cycles of what it stands before.
        accesses: what is looked at of them.
    """
    sizes = {one.name: WORD_BYTES * one.num_words for one in module.globals}
    functions = {
        name: _checked_function(function, sizes, accesses)
        for name, function in module.functions.items()
    }
    whole = replace(module, functions=functions)
    return noted(whole, has_flight=accesses.has_flight) if accesses.are_checked else whole


def _checked_function(function: Function, sizes: dict[str, int], accesses: Accesses) -> Function:
    own = tuple((name, sizes[name]) for name in sorted(function.symbols))

    return function.once(
        (_checked_function, own, accesses), lambda one: _Writer(one, dict(own), accesses).function()
    )


@dataclass(frozen=True)
class _Variable:
    """What a pointer was made of: a global, or a memory slot of the function."""

    name: str
    is_slot: bool


_Root: TypeAlias = _Variable | Value
"""What a pointer was made of in its block; a value where that is no variable."""


class _Writer:
    """Writes the checks of one function; `sizes` of globals are in bytes, by name."""

    def __init__(self, function: Function, sizes: dict[str, int], accesses: Accesses) -> None:
        self._function = function
        self._accesses = accesses
        self._sizes = sizes
        self._slots = {one.name: WORD_BYTES * one.num_words for one in function.slots}
        self._made: dict[int, Instruction] = {}
        results = (one.result for one in function.instructions)
        self._next = 1 + max(results, default=-1)
        self._kept: dict[str, _Root] = {
            slot.name: Constant(0, Type.PTR) for slot in function.parameters
        }
        for block in function.blocks:
            self._keep(block)

    def function(self) -> Function:
        """The function with its checks; itself where it needs none."""
        blocks = [self._checked(block) for block in self._function.blocks]
        if all(new is old for new, old in zip(blocks, self._function.blocks, strict=True)):
            return self._function
        return replace(self._function, blocks=blocks)

    def _keep(self, block: Block) -> None:
        """Note of register slots which variable they lead into, as far as that is one alone."""
        self._made = _values_of(block)
        for one in block.instructions:
            if one.op == "set" and one.args[0].type is Type.PTR:
                root = self._root(one.args[0])
                if self._kept.setdefault(one.names[0], root) != root:
                    self._kept[one.names[0]] = Constant(0, Type.PTR)

    def _checked(self, block: Block) -> Block:
        self._made = _values_of(block)
        instructions = list(self._instructions(block))
        has_checks = len(instructions) > len(block.instructions)
        return replace(block, instructions=instructions) if has_checks else block

    def _instructions(self, block: Block) -> Iterator[Instruction]:
        for one in block.instructions:
            cycles = one.cycles
            for check in self._needed(one):
                yield replace(check, place=one.place, cycles=cycles)
                cycles = ()
            names = one.names
            if self._accesses.depth >= Depth.WRAPS and one.op == "vector":
                names = _names_that_tell(names)
            yield (
                one
                if (cycles, names) == (one.cycles, one.names)
                else replace(one, cycles=cycles, names=names)
            )

    def _needed(self, one: Instruction) -> Iterator[Instruction]:
        match one.op:
            case "load":
                yield from self._access(one.args[0], _bytes_of(one.type), READ)
            case "store":
                yield from self._access(one.args[0], _bytes_of(one.args[1].type), WRITE)
            case "copy":
                target, source, length = one.args
                yield from self._access(source, length, READ)
                yield from self._access(target, length, WRITE)
            case "div" | "rem" if one.type in INTEGERS and not _is_nonzero(one.args[1]):
                yield Instruction("check", (one.args[1],), names=("divisor",))
            case "shl" | "shr" if self._accesses.are_checked and _is_unknown(one.args[1]):
                width = str(WIDTHS[one.type])
                yield Instruction("check", (one.args[1],), names=("shift", width))
            case "add" | "sub" | "mul" | "neg" if self._may_wrap(one):
                args = one.args if one.op != "neg" else (Constant(0, one.type), *one.args)
                op = "sub" if one.op == "neg" else one.op
                yield Instruction("check", args, names=("wrap", op, one.type.value))
            case "open_stream":
                yield Instruction("check", names=("stream",))
            case "vector":
                yield from _checks_of_operands(one)
                yield from self._distance(one)
            case _:
                pass

    def _distance(self, one: Instruction) -> Iterator[Instruction]:
        """Look at the distance of a vector operation that shifts, where it is one number."""
        if one.names[0] in _SHIFTS and one.args[2].type not in DSDS:
            distance, width = one.args[2], WIDTHS[Type.U16]
            known = distance.value if isinstance(distance, Constant) else 0
            is_wrong = isinstance(known, int) and known & 0xFFFF >= width
            if is_wrong or (self._accesses.are_checked and _is_unknown(distance)):
                yield Instruction("check", (distance,), names=("shift", str(width)))

    def _may_wrap(self, one: Instruction) -> bool:
        is_meant = "wraps" in one.names or not any(map(_is_unknown, one.args))
        return self._accesses.depth >= Depth.WRAPS and one.type.value in WRAP_TYPES and not is_meant

    def _access(self, address: Value, length: Value, way: str) -> Iterator[Instruction]:
        root, are_checked = self._root(address), self._accesses.are_checked
        if not isinstance(root, _Variable):
            if are_checked:
                yield Instruction("check", (address, root, length), names=("same", way))
        elif root.is_slot:
            begin = Register(self._next, Type.PTR)
            self._next += 1
            yield Instruction("slot_address", (), begin.number, Type.PTR, (root.name,))
            size = Constant(self._slots[root.name], Type.U16)
            yield Instruction("check", (address, begin, size, length), names=("inside", way))
        elif not _is_known_inside(address, self._sizes[root.name], length):
            size = Constant(self._sizes[root.name], Type.U16)
            args = address, Address(root.name), size, length
            yield Instruction("check", args, names=("inside", way))
        is_of_stack = isinstance(root, _Variable) and root.is_slot
        if are_checked and self._accesses.has_flight and not is_of_stack:
            yield Instruction("check", (address, length), names=("flight", way))

    def _root(self, address: Value) -> _Root:
        while isinstance(address, Register) and address.number in self._made:
            made = self._made[address.number]
            if made.op == "slot_address":
                return _Variable(made.names[0], is_slot=True)
            kept = self._kept.get(made.names[0]) if made.op == "get" else None
            if isinstance(kept, _Variable):
                return kept
            if made.op not in _POINTER_STEPS:
                break
            address = made.args[0]
        return _Variable(address.symbol, is_slot=False) if isinstance(address, Address) else address


def _names_that_tell(names: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a vector operation whose elements the machine looks at, where that is of use.

    Code runs those on memory by itself where no element leaves its type.
    """
    name, *options = names
    if name not in _MAY_WRAP:
        return names
    mark = FABRIC if FABRIC in options else ORDERED
    return (name, mark, *(one for one in options if one not in MARKS), "tells_wraps")


def _values_of(block: Block) -> dict[int, Instruction]:
    return {one.result: one for one in block.instructions if one.result >= 0}


def _bytes_of(kind: Type) -> Constant:
    return Constant(-(-WIDTHS[kind] // 8), Type.U16)


def _is_unknown(value: Value) -> bool:
    return not isinstance(value, Constant)


def _is_nonzero(value: Value) -> bool:
    return isinstance(value, Constant) and value.value != 0


def _checks_of_operands(one: Instruction) -> Iterator[Instruction]:
    name = one.names[0]
    if FABRIC not in one.names and name != MOVE_OF_ANY_WIDTH:
        # The machine looks at those that it serves.
        for place, arg in enumerate(one.args):
            if arg.type is Type.DSD:
                yield Instruction("check", (arg,), names=("width", name, str(place)))
    known = {place: dsd for place, dsd in enumerate(map(_known_dsd, one.args)) if dsd is not None}
    length = _known_length(one, known)
    for place, dsd in known.items():
        kind, extent = dsd[WORD_KIND] & KIND_MASK, extent_of(dsd)
        if length is not None and kind in _IGNORED and extent not in (*_IGNORED[kind], length):
            base = dsd[WORD_BASE] if kind == DsdKind.MEM1D else 0
            numbers = (base, extent, length)
            args = tuple(Constant(number & _MOST_EXTENT, Type.U16) for number in numbers)
            yield Instruction("check", args, names=("extent", name, str(place)))


def _known_length(one: Instruction, known: dict[int, tuple[int, ...]]) -> int | None:
    """Elements that an operation has, as its first source says; None where that is not known."""
    if not _ENDING.isdisjoint(one.names) or any(isinstance(arg, Resource) for arg in one.args):
        return None
    for place in (*range(1, 1 + len(VECTOR_OPS[one.names[0]].sources)), 0):
        if one.args[place].type not in DSDS:
            continue
        # A source without elements leaves the length to the next descriptor.
        if place not in known or extent_of(known[place]):
            return extent_of(known[place]) if place in known else None
    return None


def _known_dsd(value: Value) -> tuple[int, ...] | None:
    if isinstance(value, Constant) and isinstance(value.value, tuple):
        return value.value if value.type is Type.DSD else None
    return None


def _is_known_inside(address: Value, size: int, length: Value) -> bool:
    """Whether the compiler sees that an access stays inside of its variable."""
    if not isinstance(address, Address) or not isinstance(length, Constant):
        return False
    assert isinstance(length.value, int)
    return 0 <= address.offset <= size - length.value
