"""Operations in flight that share a microthread, or take the wavelets that start a data task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.lint.checked import (
    CheckedImage,
    Point,
    Words,
    known,
    leads_to,
    loaded_register,
    warning,
)
from openwafer.sdk.csl.sema.machine_state import BoundTask, MachineState, Register, block_kind
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import NO_COLOR, NO_QUEUE, WORD_COLOR, WORD_QUEUE, DsdKind
from openwafer.sdk.program.image import DsrLoad, TaskKind
from openwafer.sdk.program.mailbox import Option

_REMEDY: Final = "take queues of different numbers, or on WSE-3 a .ut_id, for what runs together"


def shared_inputs(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about asynchronous operations on what a data task takes, which nothing blocks."""
    machine, operations = image.state.machine, image.code.get("vector", ())
    tasks = _open_tasks(machine, image.arch, image.code.get("block", ())) if operations else {}
    if not tasks:
        return
    loaded, told = _loaded(machine, image.code.get("load_dsr", ())), set[int]()
    for one in operations:
        for words in _inputs(one, loaded):
            number = words[WORD_QUEUE] if image.arch is Arch.WSE3 else _color(machine, words)
            if number in tasks and number not in told:
                told.add(number)
                yield _shared(image, tasks[number], one)


def _open_tasks(
    machine: MachineState, arch: Arch, blocks: Sequence[ir.Instruction]
) -> Mapping[int, BoundTask]:
    """Data tasks that are never blocked, as far as is known, by queue or color."""
    targets = [one.args[0] for one in blocks]
    if not all(isinstance(target, ir.Constant) for target in targets):
        return {}
    blocked = {target.value for target in targets if isinstance(target, ir.Constant)}
    kind = block_kind(arch, TaskKind.DATA)
    blocked |= {kind << 8 | target for (_, target), is_it in machine.blocked.items() if is_it}
    own = (bound for bound in machine.tasks if bound.kind is TaskKind.DATA)
    return {bound.task_id: bound for bound in own if kind << 8 | bound.task_id not in blocked}


def _loaded(machine: MachineState, loads: Sequence[ir.Instruction]) -> dict[Register, list[Words]]:
    """Fabric inputs that registers are loaded with for asynchronous operations."""
    loaded: dict[Register, list[Words]] = {}
    for record in (named.record for named in machine.dsr_loads):
        if isinstance(record, DsrLoad) and record.options & Option.ASYNC:
            constant = ir.Constant(record.words, ir.Type.DSD)
            own = loaded.setdefault((record.file, record.number), [])
            own += known([constant], DsdKind.FABIN)
    for one in loads:
        if "async" in one.names:
            loaded.setdefault(loaded_register(one), []).extend(known(one.args, DsdKind.FABIN))
    return loaded


def _inputs(one: ir.Instruction, loaded: Mapping[Register, list[Words]]) -> Iterator[Words]:
    """Known descriptors of the fabric inputs of an asynchronous operation."""
    if "async" in one.names[1:]:
        yield from known(one.args, DsdKind.FABIN)
    for arg in one.args:
        if isinstance(arg, ir.Resource) and arg.kind == "dsr":
            yield from loaded.get((arg.number >> 8, arg.number & 0xFF), ())


def _color(machine: MachineState, words: Words) -> int:
    """Of a descriptor of WSE-2, or of its queue."""
    bound = machine.queues.get((True, words[WORD_QUEUE]))
    is_open = words[WORD_COLOR] == NO_COLOR
    return bound.color if is_open and bound is not None else words[WORD_COLOR]


def _shared(image: CheckedImage, task: BoundTask, one: ir.Instruction) -> Diagnostic:
    position = task.span.source.position(task.span.start)
    return warning(
        "input-shared",
        f"data task '{task.function}' and this operation take wavelets of one queue: each of them "
        "comes to one of the two",
        image.operation_of(one),
        "block the task before the operation begins, and let the operation .unblock it",
        f"the task is bound at {task.span.source.name}:{position.line}, and never blocked",
    )


@dataclass(frozen=True)
class _Operation:
    """An asynchronous operation whose queue, known from its descriptor, chooses its microthread."""

    queue: int
    is_input: bool
    point: Point
    instruction: ir.Instruction


def shared_microthreads(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about an operation that receives and one that sends, of queues of one number.

    Both are begun on one way through a function; what runs in other functions may be known to have
    ended.
    """
    for function in image.functions():
        for one, other in function.once(shared_microthreads, lambda it: tuple(_pairs(it))):
            begun = image.operation_of(one.instruction)
            if begun is not None:
                kind, across = ("input", "output") if one.is_input else ("output", "input")
                yield warning(
                    "microthread-shared",
                    f"this operation on {kind}_queue {one.queue} and one on {across}_queue "
                    f"{one.queue} share microthread {one.queue}: it begins when the other has "
                    "ended",
                    begun,
                    _REMEDY,
                    f"the other one is at {image.line_of(other.instruction)}",
                )


def _pairs(function: ir.Function) -> Iterator[tuple[_Operation, _Operation]]:
    operations = [
        operation
        for block in function.blocks
        for index, one in enumerate(block.instructions)
        if (operation := _operation(one, (block.label, index))) is not None
    ]
    told: set[int] = set()
    for one in operations:
        for other in operations:
            is_clash = one.queue == other.queue and one.is_input is not other.is_input
            if is_clash and one.queue not in told and leads_to(function, one.point, other.point):
                told.add(one.queue)
                yield other, one


def _operation(one: ir.Instruction, point: Point) -> _Operation | None:
    if one.op != "vector" or "async" not in one.names[1:] or "microthread" in one.names:
        return None
    for kind in (DsdKind.FABOUT, DsdKind.FABIN):
        for words in known(one.args, kind):
            operation = _Operation(words[WORD_QUEUE], kind is DsdKind.FABIN, point, one)
            return None if operation.queue == NO_QUEUE else operation
    return None
