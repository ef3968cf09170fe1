"""What a program knows of its source: files, places, types, variables, functions and frames.

Each record stands once in a table of the program; whoever needs it names it by its number there, so
that images which are alike share their records.
"""

from dataclasses import dataclass, field
from enum import StrEnum

NO_NUMBER = -1
"""In place of a number in a table: there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Characters of a source, and whose code they are.

    Attributes:
        file: name of the source.
        line: of the first character, from 1 on; so the other numbers.
        function: whose instructions they are; empty at the top of a file.
        end_line: line of the first character behind them; 0 where that is not known.
        inlined: the inline function whose body was expanded here; empty where the code is
            `function`'s own.
        call: number of the place that called it; -1 where nothing was expanded.
    """

    file: str
    line: int
    column: int
    function: str
    end_line: int = 0
    end_column: int = 0
    inlined: str = ""
    call: int = NO_NUMBER

    def __str__(self) -> str:
        """As reports show it: `file:line (function)`."""
        return f"{self.file}:{self.line} ({self.function})"

    @property
    def written(self) -> tuple[str, int, int, str]:
        """The place as it is written, which is the same in each expansion of a function."""
        return self.file, self.line, self.column, self.function


@dataclass(frozen=True)
class Source:
    """A file as it was compiled.

    Attributes:
        name: as places and messages have it.
        path: absolute, on the machine that compiled.
        digest: SHA-256 of its bytes, hexadecimal.
        text: decoded; what is no UTF-8 is replaced.
    """

    name: str
    path: str
    digest: str
    text: str = field(repr=False)


class TypeKind(StrEnum):
    """How the bytes of a value are read."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    ID = "id"
    """A color, queue, task, microthread or direction: its number."""
    POINTER = "pointer"
    FUNCTION = "function"
    ENUM = "enum"
    ARRAY = "array"
    STRUCT = "struct"
    UNION = "union"
    DSD = "dsd"
    DSR = "dsr"
    FIFO = "fifo"
    TEXT = "text"
    OTHER = "other"


@dataclass(frozen=True)
class FieldInfo:
    """A field of a struct: bits of the struct's little-endian bytes."""

    name: str
    type: int
    bit_offset: int
    num_bits: int


@dataclass(frozen=True)
class TypeInfo:
    """A type.

    Attributes:
        name: as CSL writes it.
        num_bytes: length in memory; 0 where each value has its own.
        is_signed: of integers.
        element: type of an array's elements, of what a pointer points to, of an enumeration's tag.
        shape: of an array, whose elements follow each other without a gap, the last index fastest.
        fields: of a struct or union.
        members: names and values of an enumeration.
    """

    kind: TypeKind
    name: str
    num_bytes: int
    is_signed: bool = False
    element: int = NO_NUMBER
    shape: tuple[int, ...] = ()
    fields: tuple[FieldInfo, ...] = ()
    members: tuple[tuple[str, int], ...] = ()


BY_NUMBER = "*"
"""In place of the name of a callee."""


class Home(StrEnum):
    """Where the value of a variable is."""

    MEMORY = "memory"
    """In a PE's memory, from the word `address` on."""
    SLOT = "slot"
    """In the slot `slot` of its function: in words of the frame, where that has it."""
    POINTED = "pointed"
    """In memory, at the byte address that the slot holds."""
    PARAMETER = "parameter"
    """The PE's own value number `address`."""
    CONSTANT = "constant"
    """`content`, the same for all PEs of the image."""
    NOWHERE = "nowhere"
    """The compiler needed no place for it, or several that the source does not tell apart."""


@dataclass(frozen=True)
class VariableInfo:
    """A variable, constant or parameter by its name.

    Attributes:
        name: of a global, with the prefix of its module, as in the symbol table.
        type: number of its type.
        scope: number of the place from its name to the end of what sees it, a block or a file;
            -1 for what the compiler made itself.
        content: bytes of a constant, as memory would hold them.
    """

    name: str
    type: int
    home: Home
    address: int = 0
    slot: str = ""
    content: bytes = b""
    scope: int = NO_NUMBER
    is_const: bool = False


@dataclass(frozen=True)
class FunctionInfo:
    """A function of the image's code.

    Attributes:
        name: there.
        place: number of its declaration.
        result: number of its result's type.
        variables: numbers of its parameters and locals.
    """

    name: str
    place: int = NO_NUMBER
    result: int = NO_NUMBER
    variables: tuple[int, ...] = ()


@dataclass(frozen=True)
class Resume:
    """Where a function waits.

    Attributes:
        place: number of what it waits in.
        callee: name of the function that it waits for; :data:`BY_NUMBER` where the frame has the
            number of that function in the image; empty where it waits for the machine.
        saved: slots whose words of the frame hold their values then: those in memory, and of the
            others those that are still needed.
    """

    place: int
    callee: str = ""
    saved: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrameInfo:
    """The words of a function in the stack.

    Attributes:
        function: its name.
        num_words: length; the frame of a callee that waits, too, begins behind it.
        slots: first word of each slot, from the frame's begin.
        callee: word with the number of a function that is called by a pointer.
        resumes: by the state in word 0, from 1 on; empty for a function that never waits.
    """

    function: str
    num_words: int
    slots: tuple[tuple[str, int], ...] = ()
    callee: int = 0
    resumes: tuple[Resume, ...] = ()


@dataclass(frozen=True)
class FrameTable:
    """Frames of a program's code, and by image the numbers of those of its functions."""

    frames: tuple[FrameInfo, ...] = ()
    images: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ImageNames:
    """Numbers of an image's records: its globals, its functions, and their frames."""

    variables: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()


@dataclass(frozen=True)
class DebugInfo:
    """The tables of a program; `layout` numbers the constants of the layout's file."""

    sources: tuple[Source, ...] = ()
    types: tuple[TypeInfo, ...] = ()
    variables: tuple[VariableInfo, ...] = ()
    functions: tuple[FunctionInfo, ...] = ()
    frames: tuple[FrameInfo, ...] = ()
    layout: tuple[int, ...] = ()
