"""The syntax tree of CSL: what was written and where, nothing resolved.

Types are expressions, as in Zig, so one set of expressions serves values and types. Bodies of `if`,
`switch`, `for` and `while` are expressions or assignments; a statement list adds variables. Nodes
compare by content alone, their spans aside.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from openwafer.sdk.csl.operators import BinaryOperator, UnaryOperator
from openwafer.source import Span


@dataclass(frozen=True, slots=True)
class Node:
    """Anything that was written; `span` covers its first to its last character."""

    span: Span = field(kw_only=True, compare=False, repr=False)


def walk(node: object) -> Iterator[Node]:
    """A node, or several, and all nodes inside, in the order of the text."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting.extend(reversed(one))
        elif isinstance(one, Node):
            yield one
            waiting.extend(getattr(one, name) for name in reversed(one.__slots__))


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A name where it is declared or selected, or a label; as a value it is an `Identifier`."""

    text: str


@dataclass(frozen=True, slots=True)
class IntLiteral(Node):
    """`42`, `0xff`, `0b1010`, `0o17`, `1_000`: a `comptime_int`."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatLiteral(Node):
    """`1.5`, `2e-3`: a `comptime_float`, which is an IEEE double."""

    value: float


@dataclass(frozen=True, slots=True)
class CharLiteral(Node):
    """`'a'`: a `comptime_int`."""

    value: int


@dataclass(frozen=True, slots=True)
class StringLiteral(Node):
    """A `comptime_string`: bytes, UTF-8 as written in the source."""

    value: bytes


@dataclass(frozen=True, slots=True)
class BoolLiteral(Node):
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class EnumLiteral(Node):
    """`.name` without anything before the dot; `name` is without the dot."""

    name: Name


@dataclass(frozen=True, slots=True)
class FieldInit(Node):
    """`.name = value` inside a struct literal."""

    name: Name
    value: "Expression"


@dataclass(frozen=True, slots=True)
class StructInit(Node):
    """`.{ .x = 1 }`, or `T{ .x = 1 }` with `type`; at least one field."""

    type: "Expression | None"
    fields: tuple[FieldInit, ...]


@dataclass(frozen=True, slots=True)
class ArrayInit(Node):
    """`.{ 1, 2 }` (a tuple), `[2]i16{ 1, 2 }`, and the empty `.{}` and `T{}` of either kind."""

    type: "Expression | None"
    elements: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Identifier(Node):
    """A name used as a value or type: variables, functions, `i16`, `color`, `mem1d_dsd`."""

    name: str


@dataclass(frozen=True, slots=True)
class BuiltinCall(Node):
    """`@name(arguments)`; `name` is without the `@`."""

    name: Name
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`callee(arguments)`."""

    callee: "Expression"
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Member(Node):
    """`operand.name`: a field, an enum's element, a module's symbol."""

    operand: "Expression"
    name: Name


@dataclass(frozen=True, slots=True)
class Index(Node):
    """`operand[i]` or `operand[i, j]`; at least one index."""

    operand: "Expression"
    indices: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Dereference(Node):
    """`operand.*`."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class AddressOf(Node):
    """`&operand`."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`operator operand`."""

    operator: UnaryOperator
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """`left operator right`."""

    operator: BinaryOperator
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Comptime(Node):
    """`comptime operand`, where the operand may be a block or a loop."""

    operand: "Body"


@dataclass(frozen=True, slots=True)
class TensorAccess(Node):
    """`|i, j|{N, M} -> A[i, j]`: which elements a memory DSD visits, innermost index last."""

    indices: tuple[Name, ...]
    shape: tuple["Expression", ...]
    element: "Expression"


@dataclass(frozen=True, slots=True)
class AsmOperand(Node):
    """`[name] "constraint" (value)`."""

    name: Name
    constraint: StringLiteral
    value: "Expression"


@dataclass(frozen=True, slots=True)
class Asm(Node):
    """`asm volatile (template : outputs : inputs : clobbers)`."""

    is_volatile: bool
    template: "Expression"
    outputs: tuple[AsmOperand, ...]
    inputs: tuple[AsmOperand, ...]
    clobbers: tuple[StringLiteral, ...]


@dataclass(frozen=True, slots=True)
class ArrayType(Node):
    """`[N]element` or `[R, C]element`; at least one dim."""

    dims: tuple["Expression", ...]
    element: "Expression"


@dataclass(frozen=True, slots=True)
class PointerType(Node):
    """`*T` and `*const T`; with `is_many`, `[*]T` and `[*]const T`."""

    is_many: bool
    is_const: bool
    element: "Expression"


class FunctionKind(StrEnum):
    """The word that opens a function or its type."""

    FN = "fn"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class FunctionType(Node):
    """`fn(A, B) R` or `task(A) R`."""

    kind: FunctionKind
    parameters: tuple["Expression", ...]
    result: "Expression"


class AggregateLayout(StrEnum):
    """Who decides where the fields of an aggregate lie: the compiler, the C ABI, a bit count."""

    AUTO = ""
    EXTERN = "extern"
    PACKED = "packed"


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`name: type` inside an aggregate type."""

    name: Name
    type: "Expression"


@dataclass(frozen=True, slots=True)
class AggregateType(Node):
    """`struct { ... }`, `packed struct { ... }`, `extern union { ... }`."""

    layout: AggregateLayout
    is_union: bool
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class EnumElement(Node):
    """`name` or `name = value` inside an enum type."""

    name: Name
    value: "Expression | None"


@dataclass(frozen=True, slots=True)
class EnumType(Node):
    """`enum(tag) { a, b = 4 }`; `tag` None where it was left out."""

    tag: "Expression | None"
    elements: tuple[EnumElement, ...]


@dataclass(frozen=True, slots=True)
class AnyType(Node):
    """`anytype`, as the type of a function's parameter."""


@dataclass(frozen=True, slots=True)
class Block(Node):
    """`{ ... }` or `label: { ... break :label value; }`."""

    label: Name | None
    statements: tuple["Statement", ...]


@dataclass(frozen=True, slots=True)
class If(Node):
    """`if (condition) then else otherwise`."""

    condition: "Expression"
    then: "Body"
    otherwise: "Body | None"


@dataclass(frozen=True, slots=True)
class CaseRange(Node):
    """`first...last` among the values of a prong, both ends included."""

    first: "Expression"
    last: "Expression"


@dataclass(frozen=True, slots=True)
class Prong(Node):
    """`a, b => body` of a switch; no values means `else`."""

    values: tuple["Expression | CaseRange", ...]
    body: "Body"


@dataclass(frozen=True, slots=True)
class Switch(Node):
    """`switch (operand) { prongs }`."""

    operand: "Expression"
    prongs: tuple[Prong, ...]


@dataclass(frozen=True, slots=True)
class For(Node):
    """`label: inline for (iterable) |element, index| body`."""

    label: Name | None
    is_inline: bool
    iterable: "Expression"
    element: Name
    index: Name | None
    body: "Body"


@dataclass(frozen=True, slots=True)
class While(Node):
    """`label: inline while (condition) : (step) body`."""

    label: Name | None
    is_inline: bool
    condition: "Expression"
    step: "Body | None"
    body: "Body"


@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return` or `return value`."""

    value: "Expression | None"


@dataclass(frozen=True, slots=True)
class Break(Node):
    """`break`, `break :label`, `break :label value`."""

    label: Name | None
    value: "Expression | None"


@dataclass(frozen=True, slots=True)
class Continue(Node):
    """`continue` or `continue :label`."""

    label: Name | None


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`target = value`, or `target += value` with that operator."""

    operator: BinaryOperator | None
    target: "Expression"
    value: "Expression"


class Storage(StrEnum):
    """Storage class of a global: whose object file defines it, and who may see it."""

    INTERNAL = ""
    EXPORT = "export"
    EXTERN = "extern"


class VariableKind(StrEnum):
    """The word that opens a variable; `color c;` is the older form of a param of type color."""

    CONST = "const"
    VAR = "var"
    PARAM = "param"
    COLOR = "color"


@dataclass(frozen=True, slots=True)
class Attributes(Node):
    """`align(n)`, `linksection(s)`, `linkname(s)` of a declaration, None where absent.

    `span` covers the declaration.
    """

    align: "Expression | None" = None
    linksection: "Expression | None" = None
    linkname: "Expression | None" = None


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """A global or local: `comptime var name: type align(n) = initializer;`."""

    kind: VariableKind
    storage: Storage
    is_comptime: bool
    name: Name
    type: "Expression | None"
    attributes: Attributes
    initializer: "Expression | None"


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """`comptime name: type` of a function; `name` None where an extern fn left it out."""

    is_comptime: bool
    name: Name | None
    type: "Expression"


@dataclass(frozen=True, slots=True)
class Function(Node):
    """`export inline fn name(parameters) result { ... }`.

    `result` is None where it was left out, `body` where it ends with a semicolon (extern).
    """

    kind: FunctionKind
    storage: Storage
    is_inline: bool
    name: Name
    parameters: tuple[Parameter, ...]
    result: "Expression | None"
    attributes: Attributes
    body: Block | None


@dataclass(frozen=True, slots=True)
class ComptimeBlock(Node):
    """`comptime { ... }` at the top of a file: configuration of the PE before its start."""

    body: Block


@dataclass(frozen=True, slots=True)
class LayoutBlock(Node):
    """`layout { ... }`: which code runs on which PE."""

    body: Block


@dataclass(frozen=True, slots=True)
class Module(Node):
    """One file."""

    declarations: tuple["Declaration", ...]


Literal: TypeAlias = IntLiteral | FloatLiteral | CharLiteral | StringLiteral | BoolLiteral
TypeExpression: TypeAlias = (
    ArrayType | PointerType | FunctionType | AggregateType | EnumType | AnyType
)
ControlFlow: TypeAlias = Block | If | Switch | For | While | Return | Break | Continue
Expression: TypeAlias = (
    Literal
    | EnumLiteral
    | StructInit
    | ArrayInit
    | Identifier
    | BuiltinCall
    | Call
    | Member
    | Index
    | Dereference
    | AddressOf
    | Unary
    | Binary
    | Comptime
    | TensorAccess
    | Asm
    | TypeExpression
    | ControlFlow
)
Body: TypeAlias = Expression | Assign
Statement: TypeAlias = Expression | Assign | Variable
Declaration: TypeAlias = Variable | Function | ComptimeBlock | LayoutBlock
