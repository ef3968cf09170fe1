"""The vector operations: `@fadds`, `@mov32` and the rest of the table in `arch.vector_ops`."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from openwafer.diagnostics import counted
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.builtins.machine.descriptors import forbid_nameless_queue
from openwafer.sdk.csl.sema.builtins.machine.operand_forms import check_form
from openwafer.sdk.csl.sema.builtins.machine.operation_options import (
    OperationOptions,
    operation_options,
)
from openwafer.sdk.csl.sema.builtins.machine.register_options import without_own
from openwafer.sdk.csl.sema.builtins.machine.words import (
    as_word,
    bit,
    plus,
    replace,
    times,
    word_of,
)
from openwafer.sdk.csl.sema.machine_state import Name, Register
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import Comptime, Loaded, Operand, Runtime
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import FABRIC
from openwafer.sdk.program.descriptor import DSD_WORDS, WORD_BASE, WORD_KIND, DsdFlag
from openwafer.sdk.program.mailbox import DsrFile
from openwafer.source import Span

DSR_FILES: Final[dict[t.Type, DsrFile]] = {
    t.DSR_DEST: DsrFile.DESTINATION,
    t.DSR_FIFO_DEST: DsrFile.DESTINATION,
    t.DSR_SRC0: DsrFile.SOURCE0,
    t.DSR_SRC1: DsrFile.SOURCE1,
    t.DSR_FIFO_SRC1: DsrFile.SOURCE1,
}
_OPERANDS: Final = (t.DSDS - {t.CIRCBUF_DSD}) | DSR_FILES.keys() | {t.FIFO}
_MAY_WAIT: Final = _OPERANDS - {t.MEM1D_DSD, t.MEM4D_DSD}
_NEVER_WRITTEN: Final = frozenset((t.FABIN_DSD, t.DSR_SRC1, t.DSR_FIFO_SRC1))
_NEVER_READ: Final = frozenset((t.FABOUT_DSD, t.DSR_DEST, t.DSR_FIFO_DEST))
_INTS: Final = {
    "any16": (t.U16, t.I16),
    "any32": (t.U32, t.I32),
    "i16": (t.I16, t.U16),
}
_UNKNOWN_OPS: Final = MappingProxyType(
    {
        "addc16": (
            "where its carry comes from, and where it goes",
            "add with @add16, and a carry where a sum is less than what was added",
        ),
        **dict.fromkeys(
            ("fnormh", "fnorms"),
            (
                "what a normal number is",
                "<math> has sig, signbit and fscale, which take a number apart and scale it",
            ),
        ),
    }
)
"""What no page or program says of an operation, and what to do without it."""


@builtin(*VECTOR_OPS)
def _vector(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    op = VECTOR_OPS[call.name.text]
    num_operands = 1 + len(op.sources)
    nodes = _operands(sema, call, num_operands)
    _refuse_options_for_source(sema, call, nodes, num_operands)
    target_node, *source_nodes = nodes[:num_operands]
    target = _destination(sema, target_node, op.destination)
    sources = [
        _source(sema, node, kind) for node, kind in zip(source_nodes, op.sources, strict=True)
    ]
    operands = [target, *sources]
    check_form(sema, call, operands)
    node = nodes[num_operands] if len(nodes) > num_operands else None
    options = operation_options(sema, node, call.span)
    registers = note_names(sema, operands, nodes)
    without_own(sema, operands, registers, options, call.span)
    if options.is_async or registers:
        note_place(sema, call.span)
    if options.is_async:
        for operand, operand_node in zip(operands, nodes, strict=False):
            forbid_nameless_queue(sema, operand, operand_node.span)
    is_fabric = any(_is_machine_operand(operand) for operand in operands)
    _check_operands(sema, call, operands, options)
    if not is_fabric:
        _apply_index(sema, operands, options)
    values = [
        operand_value(sema, operand, node.span)
        for operand, node in zip(operands, nodes, strict=False)
    ]
    names, option_values = options.lowered(sema)
    words = (op.name, *((FABRIC,) if is_fabric else ()), *names)
    done = sema.emit("vector", *values, *option_values, type=ir.Type.BOOL, names=words)
    return Runtime(t.BOOL, done)


@builtin(*_UNKNOWN_OPS)
def _unknown_op(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    unsaid, remedy = _UNKNOWN_OPS[call.name.text]
    message = f"@{call.name.text} is not supported: no documentation says {unsaid}"
    sema.fail("unsupported", message, call.span, help=remedy)


def _operands(sema: Sema, call: ast.BuiltinCall, num_operands: int) -> tuple[ast.Expression, ...]:
    """All operands, and perhaps options."""
    number = len(call.arguments)
    if number not in (num_operands, num_operands + 1):
        sema.fail(
            "wrong-argument-count",
            f"function expects {num_operands} to {num_operands + 1} arguments, {number} provided",
            call.span,
            notes=(f"in a call of @{call.name.text}",),
        )
    return call.arguments


def _refuse_options_for_source(
    sema: Sema, call: ast.BuiltinCall, nodes: tuple[ast.Expression, ...], num_operands: int
) -> None:
    """Report a source that was left out before the options."""
    if len(nodes) != num_operands or not isinstance(nodes[-1], ast.StructInit):
        return
    wanted = num_operands - 1
    sema.fail(
        "wrong-argument-count",
        f"@{call.name.text} takes a destination and {counted(wanted, 'source')}, "
        f"{wanted - 1} given before its options",
        call.span,
    )


def _destination(sema: Sema, node: ast.Expression, kind: str) -> Loaded:
    operand = sema.expression(node)
    if operand.type in _NEVER_WRITTEN:
        wrong_type(sema, node, "a destination", operand)
    if operand.type in _OPERANDS:
        return operand
    accepted = _element_types(sema, kind)
    pointer = operand.type
    is_scalar = isinstance(pointer, t.Pointer) and pointer.element in accepted
    if not is_scalar:
        expected = f"a DSD, a DSR or *{accepted[0]}"
        wrong_type(sema, node, expected, operand)
    if isinstance(pointer, t.Pointer) and pointer.is_const:
        wrong_type(sema, node, f"*{accepted[0]}", operand, "a const cannot be written")
    return operand


def _source(sema: Sema, node: ast.Expression, kind: str) -> Loaded:
    accepted = _element_types(sema, kind)
    operand = sema.expression(node, accepted[0])
    if operand.type in _NEVER_READ:
        wrong_type(sema, node, "a source", operand)
    if operand.type in _OPERANDS:
        return operand
    if operand.type in accepted:
        return operand
    if not isinstance(operand, Comptime) or not t.is_number(operand.type):
        wrong_type(sema, node, f"a DSD, a DSR or {' or '.join(map(str, accepted))}", operand)
    is_negative = isinstance(operand.value, int) and operand.value < 0
    return sema.coerce(operand, accepted[-1 if is_negative else 0], node.span)


def _element_types(sema: Sema, kind: str) -> tuple[t.Type, ...]:
    if kind == "f16":
        return (t.NAMED_TYPES[sema.options.fp16_format],)
    return _INTS.get(kind) or (t.NAMED_TYPES[kind],)


@dataclass(frozen=True, slots=True)
class _Place(Question):
    """The question for the place of an operation."""

    span: Span
    name: Name

    def answer(self, sema: Sema) -> None:
        """None: what operations share is known at the end."""
        sema.image.machine.operations.setdefault(self.span, self.name)


def note_place(sema: Sema, span: Span, register: ast.Expression | None = None) -> None:
    """A warning may be about what is at a place: an operation, or the load of a register."""
    sema.ask(_Place(span, ("", "") if register is None else _name_of(register)))


def _name_of(register: ast.Expression) -> Name:
    return register.span.source.name, register.span.text


@dataclass(frozen=True, slots=True)
class _Names(Question):
    """The question for registers by the names that an operation has for them."""

    names: tuple[tuple[Register, Name], ...]

    def answer(self, sema: Sema) -> None:
        """None: whether another name is meant is known at the end."""
        for register, name in self.names:
            sema.image.machine.register_names.setdefault(register, set()).add(name)


def note_names(
    sema: Sema, operands: Sequence[Loaded], nodes: Sequence[ast.Expression]
) -> list[Register]:
    """The registers among operands; what code calls them is kept."""
    names = tuple(
        (register, _name_of(node))
        for operand, node in zip(operands, nodes, strict=False)
        for register in registers_of([operand])
    )
    if names:
        sema.ask(_Names(names))
    return [register for register, _ in names]


def registers_of(operands: Sequence[Loaded]) -> list[Register]:
    """File and number of each register among operands."""
    return [
        (int(DSR_FILES[operand.type]), operand.value)
        for operand in operands
        if operand.type in DSR_FILES
        and isinstance(operand, Comptime)
        and isinstance(operand.value, int)
    ]


def _is_machine_operand(operand: Operand) -> bool:
    """Whether only the machine can move its elements."""
    return operand.type in _OPERANDS - {t.MEM1D_DSD}


def operand_value(sema: Sema, operand: Operand, span: Span) -> ir.Value:
    """An operand of `vector`."""
    if operand.type == t.FIFO and isinstance(operand, Comptime) and isinstance(operand.value, int):
        return ir.Resource("fifo", operand.value)
    if operand.type in DSR_FILES and isinstance(operand, Comptime):
        assert isinstance(operand.value, int)
        return ir.Resource("dsr", DSR_FILES[operand.type] << 8 | operand.value)
    return sema.lower(operand, span)


def _apply_index(sema: Sema, operands: list[Loaded], options: OperationOptions) -> None:
    """Move the bases of the memory that takes an index, as code that runs inline does itself."""
    if "index" not in options.values:
        return
    index, span = options.values.pop("index")
    for number, dsd in enumerate(operands):
        if dsd.type == t.MEM1D_DSD:
            flag = DsdFlag.WAVELET_INDEX.bit_length() - 1
            takes_index = bit(sema, word_of(sema, dsd, WORD_KIND), flag)
            moved = times(sema, as_word(sema, index, span), takes_index)
            base = plus(sema, word_of(sema, dsd, WORD_BASE), moved)
            operands[number] = replace(sema, dsd, {WORD_BASE: base})


def _check_operands(
    sema: Sema, call: ast.BuiltinCall, operands: list[Loaded], options: OperationOptions
) -> None:
    kinds = [operand.type for operand in operands]
    if options.is_async and not any(kind in _MAY_WAIT for kind in kinds):
        message = "an asynchronous operation needs a fabric, FIFO or DSR operand"
        sema.fail("needs-fabric", message, call.span, help="remove .async")
    if sema.arch is Arch.WSE3 and kinds.count(t.FABIN_DSD) > 1:
        message = "an operation has one fabin_dsd at most on wse3"
        sema.fail("two-inputs", message, call.span, help="receive one of them into memory first")
    if "index" in options.values and not any(_may_take_index(sema, one) for one in operands):
        message = f"no descriptor of this @{call.name.text} takes the index"
        help = "give one of them .wavelet_index_offset = true, or leave out .index"
        sema.warn("index-unused", message, call.span, help)
    sources = kinds[1:]
    if sources.count(t.FIFO) > 1 or (len(sources) > 1 and sources[0] == t.FIFO):
        message = "a FIFO is the only or the last of the sources"
        help = "give it last; where the order counts, or both are FIFOs, move one to memory first"
        sema.fail("fifo-place", message, call.span, help=help)


def _may_take_index(sema: Sema, operand: Loaded) -> bool:
    """Whether a descriptor takes an index, as far as it is known."""
    if operand.type not in t.DSDS:
        return operand.type in _OPERANDS
    word = word_of(sema, operand, WORD_KIND) if isinstance(operand, Comptime) else None
    return not isinstance(word, int) or bool(word & DsdFlag.WAVELET_INDEX)


@builtin("dfilt")
def _dfilt(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, options_node = call.arguments
    operand = sema.expression(node)
    if operand.type not in (t.FABIN_DSD, t.DSR_SRC1):
        wrong_type(sema, node, "fabin_dsd or dsr_src1", operand)
    options = operation_options(sema, options_node, call.span)
    if not options.is_async:
        message = "@dfilt runs asynchronously only"
        sema.fail("needs-async", message, call.span, help="pass .{ .async = true }")
    names, values = options.lowered(sema)
    nowhere = ir.Constant((0,) * DSD_WORDS, ir.Type.DSD)
    note_names(sema, [operand], [node])
    source = operand_value(sema, operand, node.span)
    words = ("mov32", FABRIC, *names, "filter")
    done = sema.emit("vector", nowhere, source, *values, type=ir.Type.BOOL, names=words)
    return Runtime(t.BOOL, done)
