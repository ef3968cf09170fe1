"""The types of CSL and how their values lie in memory: bytes, in words of 16 bits."""

import re
from dataclasses import dataclass, field
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.ir.function import Type as IrType
from openwafer.sdk.ir.numbers import WIDTHS
from openwafer.sdk.program.descriptor import DSD4_WORDS, DSD_WORDS


@dataclass(frozen=True)
class Type:
    """Any type; two types are the same when they are equal."""


@dataclass(frozen=True)
class Simple(Type):
    """A type that its name says all about: bool, void, f32, color, mem1d_dsd, dsr_dest ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Int(Type):
    """A fixed-width integer."""

    is_signed: bool
    num_bits: int

    def __str__(self) -> str:
        return f"{'i' if self.is_signed else 'u'}{self.num_bits}"

    @property
    def lowest(self) -> int:
        """Smallest value."""
        return -(1 << self.num_bits >> 1) if self.is_signed else 0

    @property
    def highest(self) -> int:
        """Largest value."""
        return (1 << self.num_bits >> self.is_signed) - 1 if self.num_bits else 0

    def holds(self, value: int) -> bool:
        """Whether `value` is in range."""
        return self.lowest <= value <= self.highest


@dataclass(frozen=True)
class Array(Type):
    """`[dims]element`, row-major; the element is never an array."""

    dims: tuple[int, ...]
    element: Type

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}]{self.element}"

    @property
    def num_elements(self) -> int:
        """Product of the dims."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count


@dataclass(frozen=True)
class Pointer(Type):
    """`*T`, `*const T`, or with `is_many` `[*]T` and `[*]const T`."""

    element: Type
    is_const: bool = False
    is_many: bool = False

    def __str__(self) -> str:
        const = "const " if self.is_const else ""
        return f"{'[*]' if self.is_many else '*'}{const}{self.element}"


@dataclass(frozen=True)
class Function(Type):
    """`fn(parameters) result`; a parameter of None takes any type."""

    parameters: tuple[Type | None, ...]
    result: Type

    def __str__(self) -> str:
        names = ("anytype" if kind is None else str(kind) for kind in self.parameters)
        return f"fn({', '.join(names)}) {self.result}"


@dataclass(frozen=True)
class Field:
    """A field of a struct; its name is its index in a tuple."""

    name: str
    type: Type


@dataclass(frozen=True)
class Struct(Type):
    """A struct or union.

    Attributes:
        fields: in the order of memory.
        origin: place of the definition, which makes named types differ; empty when anonymous.
        name: for messages.
        is_tuple: anonymous, with unnamed fields.
        is_packed: a run of bits, lowest field first, in the words of one integer.
    """

    fields: tuple[Field, ...]
    origin: str = ""
    name: str = field(default="", compare=False)
    is_tuple: bool = False
    is_union: bool = False
    is_packed: bool = False

    def __str__(self) -> str:
        if self.name:
            return self.name
        pairs = (str(f.type) if self.is_tuple else f"{f.name}: {f.type}" for f in self.fields)
        return f"{'struct' if self.origin else ''}{{{', '.join(pairs)}}}"

    def index_of(self, name: str) -> int | None:
        """Place of a field, None when there is none of that name."""
        return next((i for i, f in enumerate(self.fields) if f.name == name), None)


@dataclass(frozen=True)
class Enum(Type):
    """An enumeration; equal when defined at the same place with the same elements."""

    tag: Int
    elements: tuple[tuple[str, int], ...]
    origin: str
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"enum({self.tag})"


BOOL: Final = Simple("bool")
VOID: Final = Simple("void")
TYPE: Final = Simple("type")
COMPTIME_INT: Final = Simple("comptime_int")
COMPTIME_FLOAT: Final = Simple("comptime_float")
COMPTIME_STRING: Final = Simple("comptime_string")
COMPTIME_STRUCT: Final = Simple("comptime_struct")
IMPORTED_MODULE: Final = Simple("imported_module")
RANGE: Final = Simple("range")
DIRECTION: Final = Simple("direction")
NORETURN: Final = Simple("noreturn")
ENUM_LITERAL: Final = Simple("enum_literal")
TENSOR_ACCESS: Final = Simple("tensor_access")
UNDEFINED: Final = Simple("undefined")
ANYOPAQUE: Final = Simple("anyopaque")
FIFO: Final = Simple("fifo")

I8, I16, I32, I64 = (Int(True, bits) for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (Int(False, bits) for bits in (8, 16, 32, 64))
F16, BF16, CB16, F32 = (Simple(name) for name in ("f16", "bf16", "cb16", "f32"))
FLOATS: Final = frozenset((F16, BF16, CB16, F32))

COLOR: Final = Simple("color")
LOCAL_TASK_ID: Final = Simple("local_task_id")
DATA_TASK_ID: Final = Simple("data_task_id")
CONTROL_TASK_ID: Final = Simple("control_task_id")
INPUT_QUEUE: Final = Simple("input_queue")
OUTPUT_QUEUE: Final = Simple("output_queue")
UT_ID: Final = Simple("ut_id")
IDS: Final = frozenset(
    (COLOR, LOCAL_TASK_ID, DATA_TASK_ID, CONTROL_TASK_ID, INPUT_QUEUE, OUTPUT_QUEUE, UT_ID)
)
"""Distinct types whose values are u16 at run time."""

DSR_DEST: Final = Simple("dsr_dest")
DSR_SRC0: Final = Simple("dsr_src0")
DSR_SRC1: Final = Simple("dsr_src1")
DSR_FIFO_DEST: Final = Simple("dsr_fifo_dest")
DSR_FIFO_SRC1: Final = Simple("dsr_fifo_src1")
XDSR: Final = Simple("xdsr")
SR: Final = Simple("sr")
FIFO_DSRS: Final = frozenset((DSR_FIFO_DEST, DSR_FIFO_SRC1))
DSRS: Final = frozenset((DSR_DEST, DSR_SRC0, DSR_SRC1, XDSR, SR)) | FIFO_DSRS

MEM1D_DSD: Final = Simple("mem1d_dsd")
MEM4D_DSD: Final = Simple("mem4d_dsd")
CIRCBUF_DSD: Final = Simple("circbuf_dsd")
FABIN_DSD: Final = Simple("fabin_dsd")
FABOUT_DSD: Final = Simple("fabout_dsd")
DSDS: Final = frozenset((MEM1D_DSD, MEM4D_DSD, CIRCBUF_DSD, FABIN_DSD, FABOUT_DSD))

_NAMED: Final = (
    *(BOOL, VOID, TYPE, COMPTIME_INT, COMPTIME_FLOAT, COMPTIME_STRING, COMPTIME_STRUCT),
    *(IMPORTED_MODULE, RANGE, DIRECTION, ANYOPAQUE, FIFO),
    *(I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, CB16, F32),
    *(COLOR, LOCAL_TASK_ID, DATA_TASK_ID, CONTROL_TASK_ID, INPUT_QUEUE, OUTPUT_QUEUE, UT_ID),
    *(DSR_DEST, DSR_SRC0, DSR_SRC1, DSR_FIFO_DEST, DSR_FIFO_SRC1, XDSR, SR),
    *(MEM1D_DSD, MEM4D_DSD, CIRCBUF_DSD, FABIN_DSD, FABOUT_DSD),
)
NAMED_TYPES: Final[dict[str, Type]] = {str(kind): kind for kind in _NAMED}
"""The types that are names of the language."""

MAX_INTEGER_BITS: Final = 16777215
RUNTIME_BITS: Final = 64
"""Width of the widest integer that a PE computes with."""
_INTEGER_NAME: Final = re.compile(r"[iu](0|[1-9]\d*)")


def integer_named(name: str) -> Int | None:
    """The type `iN` or `uN` of any width; None where the name is none."""
    if _INTEGER_NAME.fullmatch(name) is None or int(name[1:]) > MAX_INTEGER_BITS:
        return None
    return Int(name[0] == "i", int(name[1:]))


_COMPTIME_ONLY: Final[frozenset[Type]] = DSRS | {
    *(TYPE, COMPTIME_INT, COMPTIME_FLOAT, COMPTIME_STRING, COMPTIME_STRUCT, IMPORTED_MODULE),
    *(RANGE, ENUM_LITERAL, TENSOR_ACCESS, UNDEFINED, FIFO),
}


def is_comptime_only(kind: Type) -> bool:
    """Whether every value of the type must be known to the compiler."""
    match kind:
        case Function():
            return True
        case Array(element=element):
            return is_comptime_only(element)
        case Struct(fields=fields):
            return any(is_comptime_only(f.type) for f in fields)
        case Int(num_bits=num_bits):
            return num_bits > RUNTIME_BITS
        case _:
            return kind in _COMPTIME_ONLY


def is_int(kind: Type) -> bool:
    """A fixed-width or comptime integer."""
    return isinstance(kind, Int) or kind == COMPTIME_INT


def is_float(kind: Type) -> bool:
    """A float of any width or a comptime float."""
    return kind in FLOATS or kind == COMPTIME_FLOAT


def is_number(kind: Type) -> bool:
    """What arithmetic takes."""
    return is_int(kind) or is_float(kind)


def is_aggregate(kind: Type) -> bool:
    """Whether run-time values live in memory only."""
    return isinstance(kind, Array | Struct)


_IR_TYPES: Final[dict[Type, IrType]] = {
    BOOL: IrType.BOOL,
    VOID: IrType.VOID,
    DIRECTION: IrType.U16,
    FIFO: IrType.U16,
    **dict.fromkeys(IDS | DSRS, IrType.U16),
    **{kind: IrType(str(kind)) for kind in (I8, I16, I32, I64, U8, U16, U32, U64, *FLOATS)},
    **dict.fromkeys((MEM1D_DSD, CIRCBUF_DSD, FABIN_DSD, FABOUT_DSD), IrType.DSD),
    MEM4D_DSD: IrType.DSD4,
}


def ir_type(kind: Type) -> IrType:
    """The type of a run-time value; KeyError for aggregates and comptime-only types."""
    match kind:
        case Pointer(element=Function()):
            return IrType.FN
        case Pointer():
            return IrType.PTR
        case Enum(tag=tag):
            return ir_type(tag)
        case Int():
            return _IR_TYPES[_container(kind)]
        case _:
            return _IR_TYPES[kind]


def _container(kind: Int) -> Int:
    """The narrowest integer of a PE that holds the type; KeyError past its widest."""
    width = next((w for w in _WIDTHS if kind.num_bits <= w), kind.num_bits)
    return Int(kind.is_signed, width)


def spare_bits(kind: Type) -> int:
    """Bits of the PE's integer that copy the sign, or are zero, because the type has fewer."""
    if isinstance(kind, Enum):
        kind = kind.tag
    return _container(kind).num_bits - kind.num_bits if isinstance(kind, Int) else 0


_BYTE_BITS: Final = 8
_WIDTHS: Final = (_BYTE_BITS, 16, 32, RUNTIME_BITS)
_WIDE: Final[dict[Type, int]] = {
    F32: 2,
    **dict.fromkeys((MEM1D_DSD, CIRCBUF_DSD, FABIN_DSD, FABOUT_DSD), DSD_WORDS),
    MEM4D_DSD: DSD4_WORDS,
    VOID: 0,
}


def is_byte(kind: Type) -> bool:
    """Whether a value is a number of at most 8 bits, which takes a byte."""
    if isinstance(kind, Enum):
        kind = kind.tag
    return kind == BOOL or (isinstance(kind, Int) and kind.num_bits <= _BYTE_BITS)


def num_bytes(kind: Type) -> int:
    """Memory bytes of a value; elements of an array follow each other without a gap."""
    if isinstance(kind, Array):
        return kind.num_elements * num_bytes(kind.element)
    return 1 if is_byte(kind) else WORD_BYTES * num_words(kind)


def num_words(kind: Type) -> int:
    """Memory words that a variable takes; fields of a struct begin at words, too."""
    match kind:
        case Array():
            return -(-num_bytes(kind) // WORD_BYTES)
        case Struct(is_packed=True):
            return num_words(Int(False, num_bits(kind)))
        case Struct(fields=fields, is_union=True):
            return max((num_words(f.type) for f in fields), default=0)
        case Struct(fields=fields):
            return sum(num_words(f.type) for f in fields)
        case Enum(tag=tag):
            return num_words(tag)
        case Int():
            return max(1, _container(kind).num_bits // 16)
        case _:
            return _WIDE.get(kind, 1)


def align_words(kind: Type) -> int:
    """Words that the address of a variable is a multiple of: numbers of 32 bits lie in pairs."""
    match kind:
        case Array(element=element):
            return align_words(element)
        case Struct(fields=fields, is_packed=False):
            return max((align_words(f.type) for f in fields), default=1)
        case Int() | Enum() | Struct():
            return min(2, num_words(kind))
        case _:
            return 2 if kind == F32 else 1


def align_bytes(kind: Type) -> int:
    """Bytes that the address of a value is a multiple of."""
    element = kind.element if isinstance(kind, Array) else kind
    return 1 if is_byte(element) else WORD_BYTES * align_words(kind)


def num_bits(kind: Type) -> int:
    """Bits that a value has for `@bitcast` and in a packed struct.

    Raises:
        KeyError: values of the type are no run of bits.
    """
    match kind:
        case Int():
            return kind.num_bits
        case Enum(tag=tag):
            return tag.num_bits
        case Struct(fields=fields, is_packed=True):
            widths = [num_bits(f.type) for f in fields]
            return max(widths, default=0) if kind.is_union else sum(widths)
        case Struct() | Array():
            raise KeyError(kind)
        case _:
            return WIDTHS[ir_type(kind)]


def bit_offset(kind: Struct, index: int) -> int:
    """Bits below a field of a packed struct."""
    return 0 if kind.is_union else sum(num_bits(f.type) for f in kind.fields[:index])


def field_offset(kind: Struct, index: int) -> int:
    """Words before a field."""
    return 0 if kind.is_union else sum(num_words(f.type) for f in kind.fields[:index])
