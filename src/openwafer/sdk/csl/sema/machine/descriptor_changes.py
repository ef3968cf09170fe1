"""Builtins that give a DSD like another one but for one property."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.engine import Sema, builtin
from openwafer.sdk.csl.sema.machine.arguments import take
from openwafer.sdk.csl.sema.machine.descriptors import (
    address_word,
    element_of,
    memory_dsd,
)
from openwafer.sdk.csl.sema.machine.words import (
    WORD_MASK,
    Word,
    as_word,
    plus,
    replace,
    shifted,
    times,
    word_of,
)
from openwafer.sdk.csl.values import Comptime, Operand, Runtime
from openwafer.sdk.program.descriptor import (
    WORD_BASE,
    WORD_ELEMENT,
    WORD_EXTENT,
    WORD_STRIDE,
    WORD_STRIDES4,
)

_WIDEST = 2
_MEMORY = (t.MEM1D_DSD, t.MEM4D_DSD)


@builtin("set_dsd_base_addr")
def _set_base_address(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = take(sema, call, 2)
    dsd = memory_dsd(sema, dsd_node, _MEMORY)
    place = sema.place(node)
    is_array = isinstance(place.type, t.Array)
    pointer = sema.address_of(place, node.span) if is_array else sema.load(place, node.span)
    if not isinstance(pointer.type, t.Pointer):
        message = f"expected type 'an array or a pointer', got: '{pointer.type}'"
        sema.fail("type-mismatch", message, node.span)
    words = {WORD_BASE: address_word(sema, pointer, node.span)}
    element_words = t.num_words(element_of(sema, pointer, node.span))
    if word_of(sema, dsd, WORD_ELEMENT) != element_words:
        words |= _rescaled(sema, dsd, element_words)
    return replace(sema, dsd, words)


def _rescaled(sema: Sema, dsd: Comptime | Runtime, element_words: int) -> dict[int, Word]:
    """Strides count elements of what the DSD visits, so they follow the new array's type."""
    places = (WORD_STRIDE,)
    if dsd.type == t.MEM4D_DSD:
        places = tuple(range(WORD_STRIDES4, WORD_STRIDES4 + 4))
    is_wide = element_words == _WIDEST
    old = word_of(sema, dsd, WORD_ELEMENT)
    if is_wide:
        amount = plus(sema, _WIDEST, times(sema, old, WORD_MASK))
    else:
        amount = plus(sema, old, WORD_MASK)
    strides: dict[int, Word] = {
        place: shifted(sema, word_of(sema, dsd, place), amount, is_left=is_wide) for place in places
    }
    return strides | {WORD_ELEMENT: element_words}


@builtin("increment_dsd_offset")
def _increment_offset(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node, kind_node = take(sema, call, 3)
    dsd = memory_dsd(sema, dsd_node, _MEMORY)
    kind = sema.type_of_node(kind_node)
    if not t.is_number(kind) or t.is_comptime_only(kind):
        message = f"expected type 'a 16-bit or 32-bit number', got: '{kind}'"
        sema.fail("type-mismatch", message, kind_node.span)
    offset = sema.expression(node)
    # A known offset may have any integer type, as it does in public programs.
    if not isinstance(offset, Comptime):
        offset = sema.coerce(offset, t.I16, node.span)
    moved = times(sema, as_word(sema, offset, node.span), t.num_words(kind))
    return replace(sema, dsd, {WORD_BASE: plus(sema, word_of(sema, dsd, WORD_BASE), moved)})


@builtin("set_dsd_length")
def _set_length(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = take(sema, call, 2)
    dsd = memory_dsd(sema, dsd_node, (t.MEM1D_DSD, t.FABIN_DSD, t.FABOUT_DSD))
    length = as_word(sema, sema.typed(node, t.U16), node.span)
    return replace(sema, dsd, {WORD_EXTENT: length, WORD_EXTENT + 1: 0})


@builtin("set_dsd_stride")
def _set_stride(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    dsd_node, node = take(sema, call, 2)
    dsd = memory_dsd(sema, dsd_node, (t.MEM1D_DSD,))
    stride = as_word(sema, sema.typed(node, t.I8), node.span)
    words = times(sema, stride, word_of(sema, dsd, WORD_ELEMENT))
    return replace(sema, dsd, {WORD_STRIDE: words})
