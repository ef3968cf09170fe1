"""`@map`: a function applied to elements, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openwafer.sdk.arch.vector_ops import element_words
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.engine import Sema, builtin
from openwafer.sdk.csl.sema.machine import words
from openwafer.sdk.csl.sema.machine.arguments import function_argument, wrong_type
from openwafer.sdk.csl.sema.machine.vector import operand_value
from openwafer.sdk.csl.sema.machine.words import halved, times, value_of, word_of
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand, Runtime, SlotPlace
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import FABRIC
from openwafer.sdk.program.descriptor import WORD_BASE, WORD_ELEMENT, WORD_EXTENT, WORD_STRIDE
from openwafer.source import Span

_STREAMED = frozenset((t.MEM1D_DSD, t.FABIN_DSD, t.DSR_SRC1))
"""Inputs that give one element a call; the documentation leaves FIFOs out."""
_ELEMENTS = frozenset((t.I16, t.U16, t.I32, t.U32, t.F16, t.BF16, t.CB16, t.F32))


_MOST_CALLS = (1 << 16) - 1


@dataclass(frozen=True)
class _Stream:
    """Elements of one DSD or DSR argument.

    Attributes:
        element: their type.
        left: slot of the number of elements left; None for a DSR, which counts itself.
        address: slot of the next element's address, and words between two, of a mem1d_dsd.
        operand: what the machine moves one element of, of another descriptor.
        descriptor: all of it; None for a DSR.
        is_written: whether it takes results.
    """

    element: t.Type
    left: SlotPlace | None
    address: SlotPlace | None
    stride: ir.Value | None
    operand: ir.Value | None
    descriptor: ir.Value | None = None
    is_written: bool = False

    @property
    def role(self) -> str:
        """What the loop does with it, for the instruction `show`."""
        if self.address is None:
            return "n"
        return f"{'w' if self.is_written else 'r'}{t.num_words(self.element)}"


@builtin("map")
def _map(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    if len(call.arguments) < 2:
        sema.fail("wrong-argument-count", "@map takes a function and arguments", call.span)
    callback_node, *nodes = call.arguments
    callback = function_argument(sema, callback_node)
    kind = sema.expression(callback_node).type
    assert isinstance(kind, t.Function)
    has_result = kind.result != t.VOID
    if len(nodes) != len(kind.parameters) + has_result:
        message = f"@map of '{kind}' takes {len(kind.parameters) + has_result} arguments"
        sema.fail("wrong-argument-count", f"{message}, {len(nodes)} provided", call.span)
    inputs = [
        _input(sema, node, parameter)
        for node, parameter in zip(nodes[: len(kind.parameters)], kind.parameters, strict=True)
    ]
    output = _output(sema, nodes[-1], kind.result) if has_result else None
    if not any(isinstance(item, _Stream) for item in (*inputs, output)):
        sema.fail("needs-dsd", "@map needs a DSD or DSR among its arguments", call.span)
    _show(sema, [*inputs, output])
    head, body, end = (sema.new_block(f"map.{name}") for name in ("head", "body", "end"))
    head.is_stepped = True
    sema.jump(head)
    sema.enter(head)
    arguments: list[Operand] = [
        _next(sema, item, end) if isinstance(item, _Stream) else item for item in inputs
    ]
    sema.jump(body)
    sema.enter(body)
    result = sema.call(callback, arguments, call.span)
    if output is not None:
        _write(sema, output, sema.coerce(result, kind.result, call.span), end, call.span)
    sema.builder.close_loop(head)
    sema.enter(end)
    return NOTHING


def _show(sema: Sema, items: Sequence[_Stream | Loaded | None]) -> None:
    """Show the simulator what the loop is to touch, where that is known before it."""
    streams = [item for item in items if isinstance(item, _Stream)]
    descriptors = [stream.descriptor for stream in streams if stream.descriptor is not None]
    if len(descriptors) == len(streams):
        sema.emit("show", *descriptors, names=tuple(stream.role for stream in streams))


def _input(sema: Sema, node: ast.Expression, parameter: t.Type | None) -> _Stream | Loaded:
    operand = sema.expression(node, parameter)
    if operand.type in t.DSDS | t.DSRS | {t.FIFO} and operand.type not in _STREAMED:
        wrong_type(sema, node, "mem1d_dsd, fabin_dsd, dsr_src1 or a value", operand)
    if operand.type not in _STREAMED:
        return operand
    return _stream(sema, node, operand, parameter)


def _output(sema: Sema, node: ast.Expression, element: t.Type) -> _Stream | Loaded:
    operand = sema.expression(node)
    if operand.type in (t.MEM1D_DSD, t.FABOUT_DSD, t.DSR_DEST):
        return replace(_stream(sema, node, operand, element), is_written=True)
    is_pointer = isinstance(operand.type, t.Pointer) and operand.type.element == element
    if not is_pointer:
        wrong_type(sema, node, f"mem1d_dsd, fabout_dsd, dsr_dest or *{element}", operand)
    return operand


def _stream(sema: Sema, node: ast.Expression, operand: Loaded, element: t.Type | None) -> _Stream:
    if element is None or element not in _ELEMENTS:
        message = f"an element of a DSD is a 16-bit or 32-bit number, not '{element}'"
        sema.fail("type-mismatch", message, node.span)
    if operand.type in t.DSRS:
        return _Stream(element, None, None, None, operand_value(sema, operand, node.span))
    if isinstance(operand, Comptime) and word_of(sema, operand, WORD_EXTENT + 1):
        message = f"@map calls its function {_MOST_CALLS} times at most, the extent is larger"
        sema.fail("extent", message, node.span, help="map parts of the descriptor one by one")
    left = sema.new_slot(t.U16, "map.left")
    _set(sema, left, value_of(word_of(sema, operand, WORD_EXTENT)))
    if operand.type == t.MEM1D_DSD:
        address = sema.new_slot(t.Pointer(element), "map.address")
        base = value_of(word_of(sema, operand, WORD_BASE))
        _set(sema, address, sema.emit("at_word", base, type=ir.Type.PTR))
        stride = _step_words(sema, operand, element)
        return _Stream(element, left, address, stride, None, sema.lower(operand, node.span))
    one = words.replace(sema, operand, {WORD_EXTENT: 1, WORD_EXTENT + 1: 0})
    moved, whole = sema.lower(one, node.span), sema.lower(operand, node.span)
    return _Stream(element, left, None, None, moved, whole)


def _step_words(sema: Sema, dsd: Loaded, element: t.Type) -> ir.Value:
    """Words from one element to the next: strides count elements of what uses the DSD."""
    moved = times(sema, word_of(sema, dsd, WORD_STRIDE), t.num_words(element))
    # The words of an array's element are 1, 2 or 4, so half of them is the shift that divides.
    return value_of(halved(sema, moved, word_of(sema, dsd, WORD_ELEMENT)))


def _set(sema: Sema, slot: SlotPlace, value: ir.Value) -> None:
    sema.emit("set", value, names=(slot.slot,))


def _get(sema: Sema, slot: SlotPlace) -> ir.Register:
    return sema.emit("get", type=t.ir_type(slot.type), names=(slot.slot,))


def _count(sema: Sema, stream: _Stream, end: ir.Block) -> None:
    """Leave the loop when no element is left, or take one off."""
    if stream.left is None:
        return
    left = _get(sema, stream.left)
    is_more = sema.emit("ne", left, ir.Constant(0, ir.Type.U16), type=ir.Type.BOOL)
    _leave_unless(sema, is_more, end)
    one = ir.Constant(1, ir.Type.U16)
    _set(sema, stream.left, sema.emit("sub", left, one, type=ir.Type.U16))


def _leave_unless(sema: Sema, condition: ir.Value, end: ir.Block) -> None:
    going_on = sema.new_block("map.more")
    going_on.is_stepped = True
    sema.branch(condition, going_on, end)
    sema.enter(going_on)


def _step(sema: Sema, stream: _Stream) -> ir.Register:
    """The present element's address; the next one's is left in the slot."""
    assert stream.address is not None
    assert stream.stride is not None
    address = _get(sema, stream.address)
    stride = sema.emit("bitcast", stream.stride, type=ir.Type.I16)
    _set(sema, stream.address, sema.emit("ptr_add", address, stride, type=ir.Type.PTR))
    return address


def _move(element: t.Type) -> tuple[str, str]:
    wide = element_words(str(element)) == 2
    return ("mov32" if wide else "mov16"), FABRIC


def _next(sema: Sema, stream: _Stream, end: ir.Block) -> Loaded:
    _count(sema, stream, end)
    if stream.operand is None:
        address: ir.Value = _step(sema, stream)
    else:
        address = sema.new_memory(stream.element, "map.element").address
        names = _move(stream.element)
        done = sema.emit("vector", address, stream.operand, type=ir.Type.BOOL, names=names)
        if stream.left is None:
            _leave_unless(sema, done, end)
    value = sema.emit("load", address, type=t.ir_type(stream.element))
    return Runtime(stream.element, value)


def _write(sema: Sema, output: _Stream | Loaded, value: Loaded, end: ir.Block, span: Span) -> None:
    lowered = sema.lower(value, span)
    if not isinstance(output, _Stream):
        sema.emit("store", sema.lower(output, span), lowered)
        return
    _count(sema, output, end)
    if output.operand is None:
        sema.emit("store", _step(sema, output), lowered)
        return
    names = _move(output.element)
    done = sema.emit("vector", output.operand, lowered, type=ir.Type.BOOL, names=names)
    if output.left is None:
        _leave_unless(sema, done, end)
