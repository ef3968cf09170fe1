"""Values that the compiler knows, lvalues that hold values, and operands, which are either.

How a known value is held: integers, ids, directions and enumerations as int, or as
:class:`~openwafer.sdk.csl.lanes.Lanes` where several cases are followed at once; floats as a float
that their type holds exactly; strings as bytes; arrays (flat, row-major) and structs as tuples;
types as :class:`~openwafer.sdk.csl.types.Type`; descriptors as the words of their DSD; FIFOs and
DSRs as their number; undefined as :data:`UNDEFINED`.
"""

import itertools
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.imports import module_name
from openwafer.sdk.csl.symbolic import Symbolic
from openwafer.sdk.csl.types import VOID, Type
from openwafer.sdk.ir import function as ir

Value: TypeAlias = object


class Undefined(Enum):
    """Type of :data:`UNDEFINED`."""

    UNDEFINED = "undefined"


UNDEFINED: Final = Undefined.UNDEFINED
"""Content of what was never assigned."""


@dataclass(eq=False, slots=True)
class Variable:
    """A global of an image.

    Attributes:
        name: as in the symbol table.
        address: first word in memory.
        words: what memory holds at start-up.
        align_words: what the program asks for, beyond what the type needs.
        declared: number of its module, and place in the file; zeros for what has none.
    """

    name: str
    type: Type
    address: int
    words: list[int]
    is_mutable: bool = True
    align_words: int = 1
    declared: tuple[int, int] = (0, 0)


_NUMBERS_OF_CELLS: Final = itertools.count()


@dataclass(eq=False, slots=True)
class Cell:
    """A variable that lives in the compiler; `content` holds lists where a value holds tuples.

    Attributes:
        variable: its copy in a PE's memory, once a constant was needed there.
        runtime_depth: branches and loops of the PE around its declaration.
        num_lane_loops: loops around its declaration that are followed in lanes.
        is_global: a constant at the top of a file, whose name no other one of the image has.
        number: higher than that of any older one.
    """

    name: str
    type: Type
    content: object
    is_const: bool = False
    variable: Variable | None = None
    runtime_depth: int = 0
    num_lane_loops: int = 0
    is_global: bool = False
    number: int = field(default_factory=_NUMBERS_OF_CELLS.__next__)


@dataclass(eq=False)
class Module:
    """One import of a file.

    Attributes:
        path: of the file.
        prefix: of the names of its symbols, with the dot; empty for the image's own file.
        params: values given by the importer.
        globals: what each name stands for, once it was asked for; None for what was wrong.
        pending: names whose declarations are being evaluated.
        keys: numbers that what the names stand for is compared by, with other images.
    """

    path: Path
    tree: ast.Module
    prefix: str
    params: dict[str, "Comptime"]
    declarations: dict[str, ast.Declaration] = field(default_factory=dict)
    globals: dict[str, "Operand | None"] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Its name for messages, which tells a module of the library from a file of that name."""
        return module_name(self.path)


@dataclass(frozen=True, slots=True)
class FunctionValue:
    """A function or task of a module."""

    declaration: ast.Function
    module: Module

    @property
    def is_task(self) -> bool:
        """Whether it was declared with `task`."""
        return self.declaration.kind is ast.FunctionKind.TASK

    def __hash__(self) -> int:
        return hash((id(self.declaration), id(self.module)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FunctionValue)
            and self.declaration is other.declaration
            and self.module is other.module
        )

    def __str__(self) -> str:
        return self.declaration.name.text


@dataclass(frozen=True, slots=True)
class PointerValue:
    """A known address.

    Attributes:
        target: what it points into; None for an address made of a number.
        path: indices from a cell to the element; empty for the whole.
        offset: bytes from a variable's first, or the address itself.
    """

    target: Cell | Variable | FunctionValue | None
    path: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Comptime:
    """A value that the compiler knows."""

    type: Type
    value: Value


@dataclass(frozen=True, slots=True)
class Runtime:
    """A scalar, pointer or descriptor that the PE computes."""

    type: Type
    value: ir.Value


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An array or struct of which at least one element is not known; elements as in memory."""

    type: Type
    elements: tuple["Known | Aggregate | MemoryLvalue", ...]


@dataclass(frozen=True, slots=True)
class CellLvalue:
    """A cell or a part of it."""

    type: Type
    cell: Cell
    path: tuple[int, ...]
    is_const: bool


@dataclass(frozen=True, slots=True)
class SlotLvalue:
    """A local variable in a register slot."""

    type: Type
    slot: str
    is_const: bool


@dataclass(frozen=True, slots=True)
class MemoryLvalue:
    """A run of words of the PE's memory; also how a run-time array or struct is held."""

    type: Type
    address: ir.Value
    is_const: bool


@dataclass(frozen=True, slots=True)
class BitsLvalue:
    """A field of a packed struct in memory.

    Attributes:
        owner: the outermost packed struct.
        shift: bits of it below the field.
    """

    type: Type
    owner: MemoryLvalue
    shift: int

    @property
    def is_const(self) -> bool:
        """Whether nothing may be assigned to it."""
        return self.owner.is_const


@dataclass(frozen=True, slots=True)
class RangeValue:
    """`@range`: bounds may be known or not; `element` is the type of each."""

    element: Type
    start: "Comptime | Runtime"
    stop: "Comptime | Runtime"
    step: "Comptime | Runtime"


@dataclass(frozen=True, slots=True)
class Affine:
    """`|i, j|{N, M} -> array[...]`.

    Attributes:
        array: the array's place.
        extents: of each index, outermost first.
        offset: elements from the array's first to the first visited.
        strides: elements for each index.
    """

    array: MemoryLvalue | CellLvalue
    extents: tuple["Comptime | Runtime", ...]
    offset: "Comptime | Runtime"
    strides: tuple["Comptime | Runtime", ...]


ACCESS_FIELDS: Final = ("base_address", "offset", "stride", "extent")
"""What a tensor access says of a descriptor."""


def known_numbers(items: "tuple[Comptime | Runtime, ...]") -> list[int]:
    """Integers that the compiler knows."""
    known = (one.value for one in items if isinstance(one, Comptime))
    return [number for number in known if isinstance(number, int)]


def relative_strides(access: Affine) -> list[int]:
    """Innermost first, each from the last element of the inner dimensions."""
    relative, walked = [], 0
    pairs = zip(known_numbers(access.strides), known_numbers(access.extents), strict=True)
    for stride, extent in reversed(list(pairs)):
        relative.append(stride - walked)
        walked += (extent - 1) * stride
    return relative


Lvalue: TypeAlias = CellLvalue | SlotLvalue | MemoryLvalue | BitsLvalue
Known: TypeAlias = Comptime | Runtime
Loaded: TypeAlias = Comptime | Runtime | Aggregate | MemoryLvalue
Operand: TypeAlias = Loaded | Lvalue

NOTHING: Final = Comptime(VOID, None)
"""The value of type void."""


def thaw(value: Value) -> object:
    """Content of a cell that holds `value`."""
    if type(value) is Symbolic:
        return value.copied(thaw)
    return [thaw(item) for item in value] if isinstance(value, tuple) else value


def freeze(content: object) -> Value:
    """The value that a cell's content stands for."""
    if type(content) is Symbolic:
        return content.copied(freeze)
    return tuple(freeze(item) for item in content) if isinstance(content, list) else content
