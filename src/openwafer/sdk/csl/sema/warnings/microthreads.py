"""Operations that receive and send at the same time, and share a microthread."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import KIND_MASK, NO_QUEUE, WORD_KIND, WORD_QUEUE, DsdKind
from openwafer.source import Span

_Point: TypeAlias = tuple[str, int]
"""A block, and an instruction in it."""
_REMEDY: Final = "take queues of different numbers, or on WSE-3 a .ut_id, for what runs together"


@dataclass(frozen=True)
class _Operation:
    """An asynchronous operation whose queue, known from its descriptor, chooses its microthread."""

    queue: int
    is_input: bool
    point: _Point
    place: int


def shared_microthreads(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about an operation that receives and one that sends, of queues of one number.

    Both are begun on one way through a function; what runs in other functions may be known to have
    ended.
    """
    places = state.tables.places
    for function in state.module.functions.values():
        for one, other in _pairs(function):
            file, line, *_ = places[other.place].written
            begun = state.machine.operation_at(*places[one.place].written[:3])
            if begun is not None:
                yield _shared(one, f"the other one is at {file}:{line}", begun)


def _pairs(function: ir.Function) -> Iterator[tuple[_Operation, _Operation]]:
    operations = [
        operation
        for block in function.blocks
        for index, one in enumerate(block.instructions)
        if (operation := _operation(one, (block.label, index))) is not None
    ]
    blocks = {block.label: block for block in function.blocks}
    told: set[int] = set()
    for one in operations:
        for other in operations:
            is_clash = one.queue == other.queue and one.is_input is not other.is_input
            if is_clash and one.queue not in told and _leads_to(blocks, one.point, other.point):
                told.add(one.queue)
                yield other, one


def _operation(one: ir.Instruction, point: _Point) -> _Operation | None:
    if one.op != "vector" or "async" not in one.names[1:] or "microthread" in one.names:
        return None
    descriptors = [arg.value for arg in one.args if isinstance(arg, ir.Constant)]
    for kind in (DsdKind.FABOUT, DsdKind.FABIN):
        for words in descriptors:
            if isinstance(words, tuple) and words[WORD_KIND] & KIND_MASK == kind:
                queue = words[WORD_QUEUE]
                known = _Operation(queue, kind is DsdKind.FABIN, point, one.place)
                return None if queue == NO_QUEUE else known
    return None


def _leads_to(blocks: Mapping[str, ir.Block], start: _Point, end: _Point) -> bool:
    """Whether code that was at one point may come to another later in the same call."""
    label, index = start
    if label == end[0] and index < end[1]:
        return True
    seen: set[str] = set()
    waiting = [label]
    while waiting:
        for name in blocks[waiting.pop()].instructions[-1].names:
            if name in blocks and name not in seen:
                if name == end[0]:
                    return True
                seen.add(name)
                waiting.append(name)
    return False


def _shared(one: _Operation, note: str, span: Span) -> Diagnostic:
    kind, other = ("input", "output") if one.is_input else ("output", "input")
    return Diagnostic(
        Severity.WARNING,
        "csl-microthread-shared",
        f"this operation on {kind}_queue {one.queue} and one on {other}_queue {one.queue} share "
        f"microthread {one.queue}: it begins when the other has ended",
        span,
        (note,),
        _REMEDY,
    )
