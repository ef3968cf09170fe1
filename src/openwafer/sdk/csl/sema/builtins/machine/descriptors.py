"""`@get_dsd`: descriptors of memory and of the fabric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.imports import LIBRARY
from openwafer.sdk.csl.lanes import lanes_of
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.builtins.machine.structs import Options, elements
from openwafer.sdk.csl.sema.builtins.machine.words import (
    WORD_MASK,
    Word,
    as_word,
    descriptor,
    plus,
    times,
)
from openwafer.sdk.csl.sema.coercion import mismatch
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import (
    ACCESS_FIELDS,
    Affine,
    Comptime,
    Loaded,
    Operand,
    Runtime,
    relative_strides,
)
from openwafer.sdk.program.descriptor import (
    DSD4_WORDS,
    DSD_WORDS,
    MAX_DIMS,
    NO_COLOR,
    NO_QUEUE,
    WORD_BASE,
    WORD_COLOR,
    WORD_CONTROL_TRANSFORM,
    WORD_ELEMENT,
    WORD_EXTENT,
    WORD_EXTENTS4,
    WORD_KIND,
    WORD_PRIORITY,
    WORD_QUEUE,
    WORD_STRIDE,
    WORD_STRIDES4,
    WORD_WRAPAROUND,
    DsdFlag,
    DsdKind,
)
from openwafer.source import Span

PRIORITIES: Final = {"low": 0, "medium": 1, "high": 2}
_MAX_EXTENT: Final = (1 << 18) - 1
_MAX_WRAPAROUND: Final = (1 << 16) - 1
SIMD_MODES: Final = {
    "simd_off": 0,
    **dict.fromkeys(("simd_max", "simd_32", "simd_64", "simd_32_or_64"), 1),
}
"""Whether two 16-bit elements share a wavelet, by the words of all releases."""
_ZERO_FLAGS: Final = {
    "first_source": DsdFlag.ZERO_FIRST,
    "second_source": DsdFlag.ZERO_SECOND,
}


@dataclass(frozen=True)
class SignedNumber:
    """A number of a memory descriptor, and what helps where its type is too small."""

    name: str
    type: t.Int
    remedy: str

    def message(self, value: int) -> str:
        """What is said of a value out of its range."""
        bounds = f"{self.type.lowest} to {self.type.highest}"
        return f"the {self.name} is of type '{self.type}', {bounds}, got {value}"


OFFSET: Final = SignedNumber(
    "offset", t.I16, "begin at a later element: .base_address = &array[n], or @set_dsd_base_addr"
)
_STRIDE: Final = SignedNumber("stride", t.I8, "use a mem4d_dsd, whose strides are of type 'i16'")


@builtin("get_dsd")
def _get_dsd(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    kind_node, node = call.arguments
    kind = sema.type_of_node(kind_node)
    options = Options.read(sema, node, call.span)
    if kind == t.MEM1D_DSD:
        dsd = _memory(sema, options)
    elif kind == t.MEM4D_DSD:
        dsd = _memory4(sema, options)
    elif kind == t.CIRCBUF_DSD:
        dsd = _circular(sema, options)
    elif kind in (t.FABIN_DSD, t.FABOUT_DSD):
        dsd = _fabric(sema, options, kind)
    else:
        expected = "mem1d_dsd, mem4d_dsd, circbuf_dsd, fabin_dsd or fabout_dsd"
        message = f"expected type '{expected}', got: '{kind}'"
        sema.fail("type-mismatch", message, kind_node.span)
    options.close()
    return dsd


class _Access:
    """What a memory descriptor visits: fields of the struct, or a tensor access."""

    def __init__(self, sema: Sema, options: Options) -> None:
        self._sema = sema
        self.affine: Affine | None = None
        self._given: dict[str, Loaded] = {}
        self._spans: dict[str, Span] = {}
        access = options.operand("tensor_access")
        self.span = options.span
        if isinstance(access, Comptime) and isinstance(access.value, Affine):
            self.affine = access.value
        elif access is not None:
            self._given = sema.fields(access, self.span)
        for name in ACCESS_FIELDS:
            twice = name in options and access is not None
            if twice and (self.affine is not None or name in self._given):
                message = f"'{name}' is given twice, by itself and by tensor_access"
                sema.fail("tensor-access", message, self.span)
            operand = options.operand(name)
            if operand is not None:
                self._given[name], self._spans[name] = operand, options.span

    def base(self) -> tuple[Word, int]:
        """First word's address with the offset, and words of an element."""
        sema, affine = self._sema, self.affine
        pointer: Operand | None = self._given.get("base_address")
        offset: Operand | None = self._given.get("offset")
        if affine is not None:
            pointer, offset = sema.address_of(affine.array, self.span), affine.offset
        if pointer is None:
            sema.fail("missing-field", "the field 'base_address' is missing", self.span)
        address = address_word(sema, pointer, self.span)
        element_words = t.num_words(_whole_words(sema, pointer, self.span))
        if offset is None:
            return address, element_words
        moved = times(sema, self.signed(offset, OFFSET), element_words)
        return plus(sema, address, moved), element_words

    def signed(self, operand: Operand, number: SignedNumber) -> Word:
        """An offset or a stride; a tensor access may have other strides in programs as they are."""
        value = operand.value if isinstance(operand, Comptime) else None
        if self.affine is not None and isinstance(value, int) and not number.type.holds(value):
            self._sema.forbid("out-of-range", number.message(value), self.span, number.remedy)
            return as_word(self._sema, operand, self.span)
        return signed_word(self._sema, operand, number, self._spans.get(number.name, self.span))

    def strides(self) -> Sequence[Operand] | None:
        """Elements from one visit to the next: of each index, outermost first, of a tensor access;
        else as written."""
        if self.affine is not None:
            return self.affine.strides
        return self._items("stride")

    def extents(self) -> Sequence[Operand]:
        """Visits along each index, outermost first."""
        if self.affine is not None:
            return self.affine.extents
        items = self._items("extent")
        if items is None:
            self._sema.fail("missing-field", "the field 'extent' is missing", self.span)
        return items

    def _items(self, name: str) -> Sequence[Operand] | None:
        operand = self._given.get(name)
        if operand is None:
            return None
        if isinstance(operand.type, t.Struct | t.Array):
            return elements(self._sema, operand, self.span)
        return (operand,)


def signed_word(sema: Sema, operand: Operand, number: SignedNumber, span: Span) -> Word:
    """A known integer of any type in the number's range, or one of its type of run time."""
    value = operand.value if isinstance(operand, Comptime) else None
    if not isinstance(value, int):
        operand = sema.coerce(operand, number.type, span)
    elif not number.type.holds(value):
        sema.fail("out-of-range", number.message(value), span, help=number.remedy)
    return as_word(sema, operand, span)


def address_word(sema: Sema, pointer: Operand, span: Span) -> Word:
    """A pointer as a word."""
    if isinstance(pointer, Comptime):
        return sema.word_address(pointer, span)
    return as_word(sema, pointer, span)


def _whole_words(sema: Sema, pointer: Operand, span: Span) -> t.Type:
    """What a pointer's memory holds in a row, for the machine that counts in words."""
    kind = pointer.type
    if not isinstance(kind, t.Pointer):
        sema.fail("type-mismatch", f"expected type 'a pointer', got: '{kind}'", span)
    element = kind.element.element if isinstance(kind.element, t.Array) else kind.element
    if t.is_byte(element):
        message = f"a DSD's elements have 16 or 32 bits, '{element}' takes a byte"
        sema.fail("dsd-element", message, span, help="make it an array of i16 or u16")
    return element


def _index_flag(options: Options) -> int:
    return DsdFlag.WAVELET_INDEX if options.flag("wavelet_index_offset") else 0


def _memory(sema: Sema, options: Options) -> Operand:
    access = _Access(sema, options)
    base, element_words = access.base()
    strides, extents = access.strides(), access.extents()
    if len(extents) != 1 or (strides is not None and len(strides) != 1):
        message = f"a mem1d_dsd has one dimension, {len(extents)} given"
        sema.fail("tensor-access", message, access.span, help="use mem4d_dsd")
    words: list[Word] = [0] * DSD_WORDS
    words[WORD_KIND] = DsdKind.MEM1D | _index_flag(options)
    words[WORD_BASE] = base
    words[WORD_EXTENT : WORD_EXTENT + 2] = _extent(sema, extents[0], access.span)
    stride: Word = 1 if strides is None else access.signed(strides[0], _STRIDE)
    words[WORD_STRIDE] = times(sema, stride, element_words)
    words[WORD_ELEMENT] = element_words
    return descriptor(sema, t.MEM1D_DSD, words)


def _circular(sema: Sema, options: Options) -> Operand:
    pointer = options.needed("base_address")
    words: list[Word] = [0] * DSD_WORDS
    words[WORD_KIND] = int(DsdKind.CIRCULAR)
    words[WORD_BASE] = address_word(sema, pointer, options.span)
    element_words = t.num_words(_whole_words(sema, pointer, options.span))
    words[WORD_STRIDE] = words[WORD_ELEMENT] = element_words
    words[WORD_EXTENT : WORD_EXTENT + 2] = _extent(sema, options.needed("extent"), options.span)
    words[WORD_WRAPAROUND] = _wraparound(sema, options, pointer.type)
    return descriptor(sema, t.CIRCBUF_DSD, words)


def _wraparound(sema: Sema, options: Options, pointer: t.Type) -> int:
    """Elements behind which a circular buffer begins again: at most as many as its array has."""
    array = pointer.element if isinstance(pointer, t.Pointer) else pointer
    size = array.num_elements if isinstance(array, t.Array) else _MAX_WRAPAROUND
    is_given = "wraparound" in options
    number = options.number("wraparound", size)
    if not is_given and not isinstance(array, t.Array):
        help_text = "give it, or a pointer to the whole array as base_address"
        sema.fail("missing-field", "the field 'wraparound' is missing", options.span, (), help_text)
    if not 1 <= number <= size:
        sema.fail("wraparound", f"wraparound is 1 to {size}, got {number}", options.span)
    return number


def _extent(sema: Sema, extent: Operand, span: Span) -> tuple[Word, Word]:
    if not isinstance(extent, Comptime):
        return as_word(sema, sema.coerce(extent, t.U16, span), span), 0
    number = extent.value
    if not isinstance(number, int) or not 0 <= number <= _MAX_EXTENT:
        message = f"an extent is 0 to {_MAX_EXTENT}, got {number} of type '{extent.type}'"
        sema.fail("extent", message, span)
    return number & WORD_MASK, number >> 16


def _memory4(sema: Sema, options: Options) -> Operand:
    access = _Access(sema, options)
    base, element_words = access.base()
    extents = [_number(sema, extent, t.U16, access.span) for extent in access.extents()]
    strides = _relative_strides(sema, access, extents)
    if not 1 <= len(extents) <= MAX_DIMS or len(strides) != len(extents):
        message = f"a mem4d_dsd has 1 to 4 dimensions: {len(extents)} extents, {len(strides)} given"
        sema.fail("tensor-access", message, access.span)
    words: list[Word] = [0] * DSD4_WORDS
    words[WORD_KIND] = DsdKind.MEM4D | _index_flag(options)
    words[WORD_BASE] = base
    words[WORD_EXTENT] = len(extents)
    words[WORD_ELEMENT] = element_words
    words[WORD_EXTENTS4:WORD_STRIDES4] = [1] * MAX_DIMS
    for index, extent in enumerate(reversed(extents)):
        words[WORD_EXTENTS4 + index] = extent
    for index, stride in enumerate(strides):
        words[WORD_STRIDES4 + index] = stride * element_words & WORD_MASK
    return descriptor(sema, t.MEM4D_DSD, words)


def _relative_strides(sema: Sema, access: _Access, extents: list[int]) -> list[int]:
    """Innermost first, each from the last element of the inner dimensions."""
    if access.affine is not None:
        return relative_strides(access.affine)
    given = access.strides()
    if given is None:
        return [1] * len(extents)
    return [_number(sema, stride, t.I16, access.span) for stride in given]


def _number(sema: Sema, operand: Operand, kind: t.Type, span: Span) -> int:
    if not isinstance(operand, Comptime) or not isinstance(operand.value, int):
        sema.fail("not-comptime", f"expected a known integer, got: '{operand.type}'", span)
    fitted = sema.coerce(operand, kind, span)
    assert isinstance(fitted, Comptime)
    assert isinstance(fitted.value, int)
    return fitted.value


def _fabric(sema: Sema, options: Options, kind: t.Type) -> Operand:
    is_input = kind == t.FABIN_DSD
    words: list[Word] = [0] * DSD_WORDS
    words[WORD_COLOR] = _color(sema, options)
    extent = options.needed("extent")
    words[WORD_EXTENT : WORD_EXTENT + 2] = _extent(sema, extent, options.span)
    words[WORD_QUEUE] = _queue(sema, options, is_input=is_input)
    _note_queue(sema, words[WORD_COLOR], words[WORD_QUEUE], options.span, is_input=is_input)
    flags = DsdKind.FABIN if is_input else DsdKind.FABOUT | _output_flags(options)
    mode = options.choice("simd_mode", SIMD_MODES)
    if mode or (mode is None and _is_simd_by_default(sema)):
        flags |= DsdFlag.SIMD
    if options.flag("control_transform"):
        flags |= DsdFlag.HAS_CONTROL_TRANSFORM
        words[WORD_CONTROL_TRANSFORM] = 1
    words[WORD_KIND] = int(flags)
    priority = options.choice("priority", PRIORITIES)
    if priority is not None and sema.arch is not Arch.WSE3:
        help_text = "give it to the operation: .{ .async = true, .priority = ... }"
        sema.fail(
            "wrong-architecture", "'priority' of a DSD needs WSE-3", options.span, (), help_text
        )
    words[WORD_PRIORITY] = priority or 0
    return descriptor(sema, kind, words)


def forbid_nameless_queue(sema: Sema, dsd: Operand, span: Span) -> None:
    """Say that an asynchronous operation has to name its queue, where the operand does not."""
    # Descriptors of WSE-3 were told of where they were made.
    is_fabric = dsd.type in (t.FABIN_DSD, t.FABOUT_DSD) and sema.arch is Arch.WSE2
    words = dsd.value if is_fabric and isinstance(dsd, Comptime) else None
    if isinstance(words, tuple) and words[WORD_QUEUE] == NO_QUEUE:
        _forbid_nameless(sema, f"a {dsd.type} of an asynchronous operation", dsd.type, span)


def _forbid_nameless(sema: Sema, what: str, kind: t.Type, span: Span) -> None:
    name = "input_queue" if kind == t.FABIN_DSD else "output_queue"
    message = f"{what} needs an '{name}', and names none"
    sema.forbid("queue-unnamed", message, span, f".{name} = @get_{name}(...) in its @get_dsd")


def _is_simd_by_default(sema: Sema) -> bool:
    """Whether the program is for a release with that default; the library here does without."""
    return sema.is_simd and not sema.module.path.is_relative_to(LIBRARY)


def _note_queue(sema: Sema, color: Word, queue: Word, span: Span, *, is_input: bool) -> None:
    """The compiler of WSE-2 programs binds input queues to the colors that descriptors name."""
    if not isinstance(queue, int):
        sema.ask(_Color(None, span))
        return
    if sema.arch is Arch.WSE3:
        if queue != NO_QUEUE:
            own = int(color) if isinstance(color, int) and lanes_of(color) is None else NO_COLOR
            sema.ask(_UseOfQueue(is_input, int(queue), own, span))
        else:
            kind = t.FABIN_DSD if is_input else t.FABOUT_DSD
            _forbid_nameless(sema, f"a {kind} of wse3", kind, span)
    elif is_input and isinstance(color, int) and color != NO_COLOR:
        sema.ask(_QueueOf(int(color), int(queue), span))
    elif not isinstance(color, int) or lanes_of(color) is not None:
        sema.ask(_Color(None, span))
    elif color != NO_COLOR:
        sema.ask(_Color(color, span, is_queueless=queue == NO_QUEUE))


@dataclass(frozen=True, slots=True)
class _QueueOf(Question):
    """The question for a queue that brings a color."""

    color: int
    queue: int
    span: Span

    def answer(self, sema: Sema) -> None:
        """None: queues are bound when all colors are known."""
        machine = sema.image.machine
        if self.queue == NO_QUEUE:
            machine.queueless_colors.setdefault(self.color, self.span)
        else:
            machine.used_queues.setdefault(self.queue, set()).add(self.color)
            machine.input_queue_places.setdefault(self.queue, self.span)


@dataclass(frozen=True, slots=True)
class _Color(Question):
    """The question for the color that wavelets leave with; None is for one of run time."""

    color: int | None
    span: Span
    is_queueless: bool = False

    def answer(self, sema: Sema) -> None:
        """None: who sends what is known at the end."""
        if self.color is None:
            sema.image.machine.has_open_color = True
        else:
            sema.image.machine.sent_colors.setdefault(self.color, self.span)
            if self.is_queueless:
                sema.image.machine.queueless_outputs.add(self.color)


@dataclass(frozen=True, slots=True)
class _UseOfQueue(Question):
    """The question for a queue of WSE-3, which the program has to bind."""

    is_input: bool
    queue: int
    color: int
    span: Span

    def answer(self, sema: Sema) -> None:
        """None: whether it was bound is known at the end."""
        machine = sema.image.machine
        machine.named_queues.setdefault((self.is_input, self.queue), self.span)
        if self.color != NO_COLOR:
            key = self.is_input, self.queue, self.color
            machine.queue_colors.setdefault(key, self.span)
        if self.is_input:
            machine.input_queue_places.setdefault(self.queue, self.span)


def _output_flags(options: Options) -> int:
    flags = _index_flag(options)
    if options.flag("control"):
        flags |= DsdFlag.CONTROL
    if options.flag("advance_switch"):
        flags |= DsdFlag.ADVANCE_SWITCH
    return flags | (options.choice("zero", _ZERO_FLAGS) or 0)


def _color(sema: Sema, options: Options) -> Word:
    operand = options.operand("fabric_color")
    if operand is None:
        return NO_COLOR
    # Numbers stand for colors in programs of the first releases.
    is_number = isinstance(operand, Comptime) and t.is_int(operand.type)
    if not is_number and operand.type != t.COLOR:
        mismatch(sema, operand.type, t.COLOR, options.span)
    return as_word(sema, operand, options.span)


def _queue(sema: Sema, options: Options, *, is_input: bool) -> Word:
    name, kind = ("input_queue", t.INPUT_QUEUE) if is_input else ("output_queue", t.OUTPUT_QUEUE)
    operand = options.operand(name)
    if operand is None:
        return NO_QUEUE
    is_number = isinstance(operand, Comptime) and t.is_int(operand.type)
    if not is_number and operand.type != kind:
        mismatch(sema, operand.type, kind, options.span)
    return as_word(sema, operand, options.span)


def memory_dsd(sema: Sema, node: ast.Expression, kinds: Sequence[t.Type]) -> Comptime | Runtime:
    """An argument that must be a DSD of one of some types."""
    operand = sema.expression(node)
    if operand.type not in kinds or not isinstance(operand, Comptime | Runtime):
        wrong_type(sema, node, " or ".join(map(str, kinds)), operand)
    return operand
