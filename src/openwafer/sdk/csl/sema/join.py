"""Where control of several ways meets: the value that it brings."""

from collections.abc import Callable

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.analysis import Result, Target
from openwafer.sdk.csl.sema.coercion import peer_type
from openwafer.sdk.csl.sema.lvalues import store
from openwafer.sdk.csl.sema.registers import FIRST_BYTE
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import (
    NOTHING,
    UNDEFINED,
    Comptime,
    MemoryLvalue,
    Operand,
    PointerValue,
    Runtime,
    SlotLvalue,
)
from openwafer.sdk.ir import function as ir
from openwafer.source import Span

NEVER = Comptime(types.NORETURN, UNDEFINED)
"""The value of what control never leaves."""


class Leaving(Exception):  # noqa: N818 - control flow, no error
    """A `break` out of `target` at compile time."""

    def __init__(self, target: Target, operand: Operand) -> None:
        super().__init__(target.label)
        self.target = target
        self.operand = operand


class Continuing(Exception):  # noqa: N818 - control flow, no error
    """A `continue` of the loop `target` at compile time."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.label)
        self.target = target


class Returning(Exception):  # noqa: N818 - control flow, no error
    """A `return` from a function that runs at compile time."""

    def __init__(self, operand: Operand) -> None:
        super().__init__("return")
        self.operand = operand


def arrive(sema: Sema, results: list[Result], operand: Operand, span: Span) -> None:
    """Note that control leaves the current block with a value, and stop emitting there."""
    block = sema.builder.leave()
    if block is not None and operand.type != types.NORETURN:
        results.append(Result(operand, block, span))


def join(sema: Sema, results: list[Result], expected: Type | None, span: Span) -> Operand:
    """Go on where all results meet, with their common value; `void` discards them."""
    if not results:
        sema.builder.leave()
        return NEVER
    if len(results) == 1:
        assert results[0].block is not None
        sema.enter(results[0].block)
        return results[0].operand
    sema.set_place(span)
    kind = expected or peer_type(sema, [result.operand.type for result in results], span)
    if kind == types.VOID:
        _meet(sema, results, lambda _: None)
        return NOTHING
    _check_kind(sema, kind, results, span)
    if types.is_aggregate(kind):
        return _meet_in_memory(sema, results, kind)
    lvalue = SlotLvalue(kind, sema.builder.new_slot("join", types.ir_type(kind)), is_const=False)

    def bring(result: Result) -> None:
        store(sema, lvalue, sema.coerce(result.operand, kind, result.span), result.span)

    _meet(sema, results, bring)
    met = sema.load(lvalue, span)
    if isinstance(met, Runtime) and any(_is_register(result.operand) for result in results):
        sema.builder.note_from_integer(met.value)
    return met


def _is_register(operand: Operand) -> bool:
    """Whether a known pointer is that of a config register."""
    match operand:
        case Comptime(types.Pointer(), PointerValue(target=None, offset=offset)):
            return offset >= FIRST_BYTE
        case _:
            return False


def _check_kind(sema: Sema, kind: Type, results: list[Result], span: Span) -> None:
    if types.is_comptime_only(kind):
        sema.fail(
            "runtime-choice",
            f"a value of type '{kind}' cannot depend on run-time control flow",
            span,
            help="convert the values with @as, or make the condition comptime-known",
        )
    for result in results:
        if result.operand.type == types.VOID:
            sema.coerce(NOTHING, kind, result.span)


def _meet(sema: Sema, results: list[Result], bring: Callable[[Result], None]) -> None:
    end = sema.new_block("end")
    for result in results:
        assert result.block is not None
        sema.enter(result.block)
        bring(result)
        sema.jump(end)
    sema.enter(end)


def _meet_in_memory(sema: Sema, results: list[Result], kind: Type) -> Operand:
    slot = sema.builder.new_slot("join", ir.Type.VOID, types.num_words(kind))

    def memory() -> MemoryLvalue:
        address = sema.emit("slot_address", type=ir.Type.PTR, names=(slot,))
        return MemoryLvalue(kind, address, is_const=False)

    def bring(result: Result) -> None:
        store(sema, memory(), sema.coerce(result.operand, kind, result.span), result.span)

    _meet(sema, results, bring)
    return memory()
