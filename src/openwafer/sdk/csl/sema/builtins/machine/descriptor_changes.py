"""Builtins that give a DSD like another one but for one property."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.descriptors import (
    OFFSET,
    address_word,
    memory_dsd,
    signed_word,
)
from openwafer.sdk.csl.sema.builtins.machine.words import as_word, plus, replace, times, word_of
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import Comptime, Operand
from openwafer.sdk.program.descriptor import (
    WORD_BASE,
    WORD_ELEMENT,
    WORD_EXTENT,
    WORD_STRIDE,
)

_MEMORY = (t.MEM1D_DSD, t.MEM4D_DSD)


@builtin("set_dsd_base_addr")
def _set_base_address(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = call.arguments
    dsd = memory_dsd(sema, dsd_node, _MEMORY)
    lvalue = sema.lvalue(node)
    is_array = isinstance(lvalue.type, t.Array)
    pointer = sema.address_of(lvalue, node.span) if is_array else sema.load(lvalue, node.span)
    if not isinstance(pointer.type, t.Pointer):
        message = f"expected type 'an array or a pointer', got: '{pointer.type}'"
        sema.fail("type-mismatch", message, node.span)
    return replace(sema, dsd, {WORD_BASE: address_word(sema, pointer, node.span)})


@builtin("increment_dsd_offset")
def _increment_offset(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node, kind_node = call.arguments
    dsd = memory_dsd(sema, dsd_node, _MEMORY)
    kind = sema.type_of_node(kind_node)
    if not t.is_number(kind) or t.is_comptime_only(kind):
        message = f"expected type 'a 16-bit or 32-bit number', got: '{kind}'"
        sema.fail("type-mismatch", message, kind_node.span)
    element = word_of(sema, dsd, WORD_ELEMENT) if isinstance(dsd, Comptime) else None
    if isinstance(element, int) and element not in (0, t.num_words(kind)):
        sema.warn(
            "offset-type",
            f"the offset counts elements of '{kind}', the descriptor's have {16 * element} bits",
            kind_node.span,
            help="give the type of the array's elements",
        )
    # A known offset may have any integer type, as it does in public programs.
    offset = signed_word(sema, sema.expression(node), OFFSET, node.span)
    moved = times(sema, offset, t.num_words(kind))
    return replace(sema, dsd, {WORD_BASE: plus(sema, word_of(sema, dsd, WORD_BASE), moved)})


@builtin("set_dsd_length")
def _set_length(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = call.arguments
    dsd = memory_dsd(sema, dsd_node, (t.MEM1D_DSD, t.FABIN_DSD, t.FABOUT_DSD))
    length = as_word(sema, sema.typed(node, t.U16), node.span)
    return replace(sema, dsd, {WORD_EXTENT: length, WORD_EXTENT + 1: 0})


@builtin("set_dsd_stride")
def _set_stride(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = call.arguments
    dsd = memory_dsd(sema, dsd_node, (t.MEM1D_DSD,))
    stride = as_word(sema, sema.typed(node, t.I8), node.span)
    words = times(sema, stride, word_of(sema, dsd, WORD_ELEMENT))
    return replace(sema, dsd, {WORD_STRIDE: words})
