"""Wavelets that start a data task, and that an operation in flight waits for as well."""

from collections.abc import Iterator, Mapping, Sequence

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.machine_state import BoundTask, MachineState, Register, block_kind
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.debug_info import Place
from openwafer.sdk.program.descriptor import (
    KIND_MASK,
    NO_COLOR,
    WORD_COLOR,
    WORD_KIND,
    WORD_QUEUE,
    DsdKind,
)
from openwafer.sdk.program.image import DsrLoad, TaskKind
from openwafer.sdk.program.mailbox import Option

_Words = Sequence[int]
"""Of a descriptor."""


def shared_inputs(state: ImageState, arch: Arch) -> Iterator[Diagnostic]:
    """Warnings about asynchronous operations on what a data task takes, which nothing blocks."""
    code = [one for every in state.module.functions.values() for one in every.instructions]
    tasks = _open_tasks(state.machine, arch, [one for one in code if one.op == "block"])
    if not tasks:
        return
    places, loaded, told = state.tables.places, _loaded(state.machine, code), set[int]()
    for one in code:
        for words in _inputs(one, loaded):
            number = words[WORD_QUEUE] if arch is Arch.WSE3 else _color(state.machine, words)
            if number in tasks and number not in told:
                told.add(number)
                yield _shared(state, tasks[number], places[one.place])


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


def _loaded(machine: MachineState, code: Sequence[ir.Instruction]) -> dict[Register, list[_Words]]:
    """Fabric inputs that registers are loaded with for asynchronous operations."""
    loaded: dict[Register, list[_Words]] = {}
    for record in (named.record for named in machine.dsr_loads):
        if isinstance(record, DsrLoad) and record.options & Option.ASYNC:
            loaded.setdefault((record.file, record.number), []).append(record.words)
    for one in code:
        if one.op == "load_dsr" and "async" in one.names:
            register = int(one.names[0]), int(one.names[1])
            loaded.setdefault(register, []).extend(_known(one))
    return loaded


def _inputs(one: ir.Instruction, loaded: Mapping[Register, list[_Words]]) -> Iterator[_Words]:
    """Known descriptors of the fabric inputs of an asynchronous operation."""
    if one.op != "vector":
        return
    found = [*_known(one)] if "async" in one.names[1:] else []
    for arg in one.args:
        if isinstance(arg, ir.Resource) and arg.kind == "dsr":
            found += loaded.get((arg.number >> 8, arg.number & 0xFF), ())
    yield from (words for words in found if words[WORD_KIND] & KIND_MASK == DsdKind.FABIN)


def _known(one: ir.Instruction) -> Iterator[_Words]:
    for arg in one.args:
        if isinstance(arg, ir.Constant) and isinstance(arg.value, tuple):
            yield arg.value


def _color(machine: MachineState, words: _Words) -> int:
    """Of a descriptor of WSE-2, or of its queue."""
    bound = machine.queues.get((True, words[WORD_QUEUE]))
    is_open = words[WORD_COLOR] == NO_COLOR
    return bound.color if is_open and bound is not None else words[WORD_COLOR]


def _shared(state: ImageState, task: BoundTask, place: Place) -> Diagnostic:
    position = task.span.source.position(task.span.start)
    return Diagnostic(
        Severity.WARNING,
        "csl-input-shared",
        f"data task '{task.function}' and this operation take wavelets of one queue: each of them "
        "comes to one of the two",
        state.machine.operation_at(*place.written[:3]),
        (f"the task is bound at {task.span.source.name}:{position.line}, and never blocked",),
        "block the task before the operation begins, and let the operation .unblock it",
    )
