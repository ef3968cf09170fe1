"""The intermediate representation of PE code.

A module is what all PEs of one image execute. A function is a list of blocks; a block ends in one
terminator. There are two kinds of storage:

- *values* (``%3``): defined once, used in the same block only, behind their definition;
- *slots* (``$x``): variables of the function. A register slot holds one scalar or DSD. A memory
  slot is a run of words in the PE's stack, has an address, and is read and written through it.

Types are scalars and descriptors; arrays and structs live in memory. A pointer is a byte address in
16 bits; values of 16 bits and more begin at words, 8-bit types and bool take a byte.

Signed and unsigned integers wrap around. Float operations round once each, to nearest even.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from openwafer.sdk.program.debug_info import NO_NUMBER, Place, VariableInfo

T = TypeVar("T")


class Type(StrEnum):
    """Type of a value."""

    VOID = "void"
    BOOL = "bool"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    CB16 = "cb16"
    F32 = "f32"
    PTR = "ptr"
    """A byte address; arithmetic wraps at 16 bits."""
    FN = "fn"
    """A function of the module, as a 16-bit number."""
    DSD = "dsd"
    """Eight words: mem1d, fabin, fabout."""
    DSD4 = "dsd4"
    """Sixteen words: mem4d."""


DSDS: Final = frozenset((Type.DSD, Type.DSD4))
"""Types of descriptors."""


@dataclass(frozen=True, slots=True)
class Register:
    """Use of the value of that number."""

    number: int
    type: Type


@dataclass(frozen=True, slots=True)
class Constant:
    """An immediate. Floats are held as their bits, integers as themselves, DSDs as their words."""

    value: int | tuple[int, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a global of the module, plus bytes."""

    symbol: str
    offset: int = 0

    @property
    def type(self) -> Type:
        """Always a pointer."""
        return Type.PTR


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function as a value."""

    name: str

    @property
    def type(self) -> Type:
        """Always a function."""
        return Type.FN


@dataclass(frozen=True, slots=True)
class Resource:
    """A DSR or a FIFO as an operand of `vector`; a DSR's file follows from the operand's place.

    Attributes:
        kind: ``dsr`` or ``fifo``.
    """

    kind: str
    number: int

    @property
    def type(self) -> Type:
        """No value has it."""
        return Type.VOID


Value: TypeAlias = Register | Constant | Address | FunctionName | Resource


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation; :mod:`openwafer.sdk.ir.operations` says what each means.

    Attributes:
        op: name.
        args: operands.
        result: number of the value defined; -1 for none.
        type: of the result.
        names: immediate words: slot, function, vector operation, parameter.
        place: index into the module's places.
        cycles: time that passes before it, or, of a terminator, up to each target; not part of the
            text (:mod:`openwafer.sdk.ir.cost` fills it in).
    """

    op: str
    args: tuple[Value, ...] = ()
    result: int = -1
    type: Type = Type.VOID
    names: tuple[str, ...] = ()
    place: int = 0
    cycles: tuple[int, ...] = ()


@dataclass(slots=True)
class Block:
    """A run of instructions; the last one is the terminator.

    Attributes:
        is_loop_end: the terminator's first target is the head of a loop that it closes.
        is_stepped: the machine itself counts and steps here: only loads and stores take time.
    """

    label: str
    instructions: list[Instruction] = field(default_factory=list)
    is_loop_end: bool = False
    is_stepped: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """A variable of a function: a scalar register slot, or `num_words` of memory."""

    name: str
    type: Type
    num_words: int = 0

    @property
    def is_memory(self) -> bool:
        """Whether it has an address."""
        return self.num_words > 0


@dataclass(slots=True)
class Function:
    """A function; its parameters are the first register slots.

    Nothing changes it once it is whole, and several modules may have it.

    Attributes:
        name: unique in the module.
        num_parameters: how many of the slots are parameters.
        return_type: VOID for none.
        slots: variables.
        blocks: the first is the entry.
        place: of its declaration; not part of the text, like what follows.
        result: number of its result's type, in the program.
        variables: its parameters and locals, as its source names them.
        made: what :meth:`once` made of it.
    """

    name: str
    num_parameters: int
    return_type: Type
    slots: list[Slot] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    place: int = field(default=NO_NUMBER, compare=False)
    result: int = field(default=NO_NUMBER, compare=False)
    variables: list[VariableInfo] = field(default_factory=list, repr=False, compare=False)
    made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def parameters(self) -> list[Slot]:
        """The slots that arguments come in."""
        return self.slots[: self.num_parameters]

    @property
    def instructions(self) -> Iterator[Instruction]:
        """All of them, block by block."""
        for block in self.blocks:
            yield from block.instructions

    @property
    def symbols(self) -> frozenset[str]:
        """The global variables that it names."""

        def find(one: "Function") -> frozenset[str]:
            args = (arg for instruction in one.instructions for arg in instruction.args)
            return frozenset(arg.symbol for arg in args if isinstance(arg, Address))

        return self.once("symbols", find)

    @property
    def first_place(self) -> int:
        """Place in the source of what it does first; -1 where that is not known."""
        return next((one.place for one in self.instructions if one.place >= 0), -1)

    def once(self, key: Hashable, make: Callable[["Function"], T]) -> T:
        """What `make` gives of it, called once for each key, which says all else it depends on."""
        if key not in self.made:
            self.made[key] = make(self)
        made: T = self.made[key]
        return made


@dataclass(frozen=True, slots=True)
class Global:
    """A global variable at a fixed address.

    Attributes:
        initial: its words at start-up.
    """

    name: str
    address: int
    num_words: int
    initial: tuple[int, ...] = ()
    is_mutable: bool = True


@dataclass(slots=True)
class Module:
    """The code of one image.

    Attributes:
        memory_words: end of the memory that frames may use.
        stack_base: first word of the stack.
        functions: by name.
        entries: names of the functions that the machine starts, in the order of their numbers.
    """

    name: str
    stack_base: int
    memory_words: int
    globals: list[Global] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
