"""`@map`: a function applied to elements, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openwafer.sdk.arch.vector_ops import element_words
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine import words
from openwafer.sdk.csl.sema.builtins.machine.arguments import function_argument, wrong_type
from openwafer.sdk.csl.sema.builtins.machine.register_options import note_mapped
from openwafer.sdk.csl.sema.builtins.machine.vector import note_names, operand_value
from openwafer.sdk.csl.sema.builtins.machine.words import (
    WORD_MASK,
    halved,
    times,
    value_of,
    word_of,
)
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand, Runtime, SlotLvalue
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import FABRIC
from openwafer.sdk.program.descriptor import (
    DSD_WORDS,
    MAX_DIMS,
    WORD_BASE,
    WORD_ELEMENT,
    WORD_EXTENT,
    WORD_EXTENTS4,
    WORD_KIND,
    WORD_STRIDE,
    WORD_STRIDES4,
    DsdKind,
    extent_of,
    reach,
)
from openwafer.source import Span

_STREAMED = frozenset((t.MEM1D_DSD, t.MEM4D_DSD, t.FABIN_DSD, t.DSR_SRC1))
"""Inputs that give one element a call; the documentation leaves FIFOs out."""
_WRITTEN = frozenset((t.MEM1D_DSD, t.MEM4D_DSD, t.FABOUT_DSD, t.DSR_DEST))
_ELEMENTS = frozenset((t.I16, t.U16, t.I32, t.U32, t.F16, t.BF16, t.CB16, t.F32))


_MOST_CALLS = (1 << 16) - 1
_WORD_BITS = 16


@dataclass(frozen=True)
class _Dim:
    """One dimension of a mem4d_dsd.

    Attributes:
        left: slot of the number of visits left before the next outer dimension moves.
        extent: visits of a whole turn.
        stride: words that a move of this dimension adds.
    """

    left: SlotLvalue
    extent: ir.Value
    stride: ir.Value


@dataclass(frozen=True)
class _Stream:
    """Elements of one DSD or DSR argument.

    Attributes:
        element: their type.
        left: slot of the number of elements left, of a mem4d_dsd of the turns left of its outermost
            dimension; None for a DSR, which counts itself.
        address: slot of the next element's address of a memory descriptor.
        stride: words between two elements of a mem1d_dsd.
        dims: of a mem4d_dsd, innermost first.
        operand: what the machine moves one element of, of another descriptor.
        descriptor: all of it; None for a DSR.
        is_written: whether it takes results.
    """

    element: t.Type
    left: SlotLvalue | None
    address: SlotLvalue | None
    stride: ir.Value | None
    operand: ir.Value | None
    descriptor: ir.Value | None = None
    is_written: bool = False
    dims: tuple[_Dim, ...] = ()

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
    if len(descriptors) < len(streams):
        return
    if not any(stream.dims for stream in streams):
        sema.emit("show", *descriptors, names=tuple(stream.role for stream in streams))
        return
    known = [one.value for one in descriptors if isinstance(one, ir.Constant)]
    words = [one for one in known if isinstance(one, tuple)]
    if len(words) == len(streams):
        length = min(map(extent_of, words))
        for stream, own in zip(streams, words, strict=True):
            _show_reach(sema, stream, own, length)


def _show_reach(sema: Sema, stream: _Stream, words: Sequence[int], length: int) -> None:
    """Show how far below and above its first element a known descriptor goes."""
    if stream.address is None or not length:
        return
    size = t.num_words(stream.element)
    for offset in reach(words, size, length):
        two = [0] * DSD_WORDS
        two[WORD_KIND], two[WORD_BASE], two[WORD_EXTENT] = int(DsdKind.MEM1D), words[WORD_BASE], 2
        two[WORD_STRIDE], two[WORD_ELEMENT] = offset & WORD_MASK, size
        sema.emit("show", ir.Constant(tuple(two), ir.Type.DSD), names=(stream.role,))


def _input(sema: Sema, node: ast.Expression, parameter: t.Type | None) -> _Stream | Loaded:
    operand = sema.expression(node, parameter)
    if operand.type in t.DSDS | t.DSRS | {t.FIFO} and operand.type not in _STREAMED:
        wrong_type(sema, node, "mem1d_dsd, mem4d_dsd, fabin_dsd, dsr_src1 or a value", operand)
    if operand.type not in _STREAMED:
        return operand
    return _stream(sema, node, operand, parameter)


def _output(sema: Sema, node: ast.Expression, element: t.Type) -> _Stream | Loaded:
    operand = sema.expression(node)
    if operand.type in _WRITTEN:
        return replace(_stream(sema, node, operand, element), is_written=True)
    is_pointer = isinstance(operand.type, t.Pointer) and operand.type.element == element
    if not is_pointer:
        expected = f"mem1d_dsd, mem4d_dsd, fabout_dsd, dsr_dest or *{element}"
        wrong_type(sema, node, expected, operand)
    return operand


def _stream(sema: Sema, node: ast.Expression, operand: Loaded, element: t.Type | None) -> _Stream:
    if element is None or element not in _ELEMENTS:
        message = f"an element of a DSD is a 16-bit or 32-bit number, not '{element}'"
        sema.fail("type-mismatch", message, node.span)
    if operand.type in t.DSRS:
        for register in note_names(sema, [operand], [node]):
            note_mapped(sema, register, node.span)
        return _Stream(element, None, None, None, operand_value(sema, operand, node.span))
    _compare_widths(sema, node, operand, element)
    if operand.type == t.MEM4D_DSD:
        return _several_dims(sema, node.span, operand, element)
    if isinstance(operand, Comptime) and word_of(sema, operand, WORD_EXTENT + 1):
        message = f"@map calls its function {_MOST_CALLS} times at most, the extent is larger"
        sema.fail("extent", message, node.span, help="map parts of the descriptor one by one")
    left = sema.new_slot(t.U16, "map.left")
    _set(sema, left, value_of(word_of(sema, operand, WORD_EXTENT)))
    if operand.type == t.MEM1D_DSD:
        address = _first_address(sema, operand, element)
        stride = _step_words(sema, operand, element, WORD_STRIDE)
        return _Stream(element, left, address, stride, None, sema.lower(operand, node.span))
    one = words.replace(sema, operand, {WORD_EXTENT: 1, WORD_EXTENT + 1: 0})
    moved, whole = sema.lower(one, node.span), sema.lower(operand, node.span)
    return _Stream(element, left, None, None, moved, whole)


def _compare_widths(sema: Sema, node: ast.Expression, dsd: Loaded, element: t.Type) -> None:
    """Warn of elements that are halves or pairs of those of a known descriptor's array."""
    if dsd.type not in (t.MEM1D_DSD, t.MEM4D_DSD) or not isinstance(dsd, Comptime):
        return
    wanted, own = t.num_words(element), word_of(sema, dsd, WORD_ELEMENT)
    if isinstance(own, int) and own not in (0, wanted):
        message = (
            f"the function's '{element}' has {_WORD_BITS * wanted} bits, and the elements of the "
            f"descriptor's array have {_WORD_BITS * own}"
        )
        help = f"write the function for that type, or describe a '[*]{element}' by @ptrcast"
        sema.warn("map-width", message, node.span, help=help)


def _several_dims(sema: Sema, span: Span, dsd: Loaded, element: t.Type) -> _Stream:
    """A mem4d_dsd: dimensions turn like the digits of a counter, the outermost one once."""
    extents = [word_of(sema, dsd, WORD_EXTENTS4 + dim) for dim in range(MAX_DIMS)]
    *inner, outermost = map(value_of, extents)
    turns: ir.Value = outermost
    for extent in inner:
        is_some = sema.emit("ne", extent, ir.Constant(0, ir.Type.U16), type=ir.Type.BOOL)
        factor = sema.emit("cast", is_some, type=ir.Type.U16)
        turns = sema.emit("mul", turns, factor, type=ir.Type.U16)
    dims = []
    for dim, first in enumerate((*inner, turns)):
        left = sema.new_slot(t.U16, "map.left")
        _set(sema, left, first)
        stride = _step_words(sema, dsd, element, WORD_STRIDES4 + dim)
        dims.append(_Dim(left, value_of(extents[dim]), stride))
    address = _first_address(sema, dsd, element)
    whole = sema.lower(dsd, span)
    return _Stream(element, dims[-1].left, address, None, None, whole, dims=tuple(dims))


def _first_address(sema: Sema, dsd: Loaded, element: t.Type) -> SlotLvalue:
    address = sema.new_slot(t.Pointer(element), "map.address")
    base = value_of(word_of(sema, dsd, WORD_BASE))
    _set(sema, address, sema.emit("at_word", base, type=ir.Type.PTR))
    return address


def _step_words(sema: Sema, dsd: Loaded, element: t.Type, word: int) -> ir.Value:
    """Words from one element to the next: strides count elements of what uses the DSD."""
    moved = times(sema, word_of(sema, dsd, word), t.num_words(element))
    # The words of an array's element are 1, 2 or 4, so half of them is the shift that divides.
    return value_of(halved(sema, moved, word_of(sema, dsd, WORD_ELEMENT)))


def _set(sema: Sema, slot: SlotLvalue, value: ir.Value) -> None:
    sema.emit("set", value, names=(slot.slot,))


def _get(sema: Sema, slot: SlotLvalue) -> ir.Register:
    return sema.emit("get", type=t.ir_type(slot.type), names=(slot.slot,))


def _count(sema: Sema, stream: _Stream, end: ir.Block) -> None:
    """Leave the loop when no element is left, or take one off."""
    if stream.left is None:
        return
    left = _get(sema, stream.left)
    is_more = sema.emit("ne", left, ir.Constant(0, ir.Type.U16), type=ir.Type.BOOL)
    _leave_unless(sema, is_more, end)
    if not stream.dims:
        _take_off(sema, stream.left, left)


def _take_off(sema: Sema, left: SlotLvalue, number: ir.Value) -> ir.Register:
    """One less in a slot."""
    fewer = sema.emit("sub", number, ir.Constant(1, ir.Type.U16), type=ir.Type.U16)
    _set(sema, left, fewer)
    return fewer


def _leave_unless(sema: Sema, condition: ir.Value, end: ir.Block) -> None:
    going_on = _stepped_block(sema, "map.more")
    sema.branch(condition, going_on, end)
    sema.enter(going_on)


def _stepped_block(sema: Sema, hint: str) -> ir.Block:
    block = sema.new_block(hint)
    block.is_stepped = True
    return block


def _step(sema: Sema, stream: _Stream) -> ir.Register:
    """The present element's address; the next one's is left in the slot."""
    assert stream.address is not None
    address = _get(sema, stream.address)
    if stream.stride is not None:
        _go(sema, stream.address, stream.stride)
        return address
    done = _stepped_block(sema, "map.stepped")
    for dim in stream.dims:
        fewer = _take_off(sema, dim.left, _get(sema, dim.left))
        within, around = (_stepped_block(sema, f"map.{name}") for name in ("within", "around"))
        is_within = sema.emit("ne", fewer, ir.Constant(0, ir.Type.U16), type=ir.Type.BOOL)
        is_outermost = dim is stream.dims[-1]
        sema.branch(is_within, within, done if is_outermost else around)
        sema.enter(within)
        _go(sema, stream.address, dim.stride)
        sema.jump(done)
        if not is_outermost:
            sema.enter(around)
            _set(sema, dim.left, dim.extent)
    sema.enter(done)
    return address


def _go(sema: Sema, address: SlotLvalue, num_words: ir.Value) -> None:
    stride = sema.emit("bitcast", num_words, type=ir.Type.I16)
    _set(sema, address, sema.emit("ptr_add", _get(sema, address), stride, type=ir.Type.PTR))


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
