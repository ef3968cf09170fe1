"""What a PE's program asks of the machine, gathered while its code is analysed.

Tasks may be named before the block that binds them to an id was evaluated, so ids of completed
operations stay symbolic (:data:`TargetId`) until :func:`finish`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from openwafer.sdk.arch.generation import NUM_COLORS, Arch
from openwafer.sdk.csl.values import FunctionValue
from openwafer.sdk.program.image import (
    DsrLoad,
    Fifo,
    QueueBinding,
    RegisterWrite,
    Start,
    TaskBinding,
    TaskKind,
    TaskRotation,
)
from openwafer.sdk.program.input_queues import NUM_INPUT_QUEUES, Allocation, allocated
from openwafer.sdk.program.mailbox import BlockKind
from openwafer.sdk.program.routing import ColorConfig
from openwafer.source import Span

TargetId: TypeAlias = int | FunctionValue
"""A number as the image wants it, or a task whose id is not known yet."""


Register: TypeAlias = tuple[int, int]
"""A DSR: its file and number."""
Name: TypeAlias = tuple[str, str]
"""A file, and what stands there for a register."""
RegisterOptions: TypeAlias = tuple[tuple[str, str], ...]
"""Names of options, each with what it names; nothing for a flag and for what run time knows."""


@dataclass(frozen=True, slots=True)
class Named:
    """A record of the image, and targets by the names of its fields, each with its place."""

    record: DsrLoad | Fifo
    targets: tuple[tuple[str, TargetId, Span], ...]


@dataclass(frozen=True, slots=True)
class BoundTask:
    """A task's id.

    Attributes:
        num_bits: that its arguments take.
    """

    kind: TaskKind
    task_id: int
    entry: int
    function: FunctionValue | None
    span: Span
    num_bits: int


@dataclass
class MachineState:
    """See the module.

    Attributes:
        tasks: in the order of their binding.
        queues: bindings that the program asked for, by direction and number.
        used_queues: colors that descriptors use each input queue with.
        queueless_colors: colors of fabric inputs that name no queue, as WSE-2 programs may, each
            with its first place.
        queueless_outputs: colors of fabric outputs that name no queue, as WSE-2 programs may.
        input_queue_places: first place of each input queue that the program names.
        operations: places of asynchronous operations, of those on registers, and of loads, each
            with the name of the register that it loads.
        register_names: what operations call a register.
        sent_colors: colors of fabric outputs of WSE-2, each with its first place.
        has_open_color: run time chooses the color of some fabric input or output of WSE-2.
        named_queues: those that descriptors and data tasks name, by direction and number, with the
            first place.
        queue_colors: colors that descriptors of WSE-3 name beside a queue, by direction, queue and
            color, with the first place.
        loaded_options: what loads give a register.
        mapped_registers: those that `@map` takes elements of, each with the first place.
        vain_options: what operations on registers say themselves, by the operation's place.
        blocked: last word on each target of block and unblock: kind and id to is blocked.
        blocked_ids: of local tasks that code blocks or unblocks, each with the builtin and place
            that name it first.
        registers: word address to value.
        teardown_handlers: color to entry.
        empty_queue_handlers: queue, output queues from 8 on, to entry.
        filters: color to the number of its filter.
        rotations: pairs of tasks that take turns.
        control_tables: input queue to the number of its table of control tasks.
        control_table_stride: ids between the beginnings of two tables.
    """

    tasks: list[BoundTask] = field(default_factory=list)
    queues: dict[tuple[bool, int], QueueBinding | None] = field(default_factory=dict)
    used_queues: dict[int, set[int]] = field(default_factory=dict)
    queueless_colors: dict[int, Span] = field(default_factory=dict)
    queueless_outputs: set[int] = field(default_factory=set)
    input_queue_places: dict[int, Span] = field(default_factory=dict)
    operations: dict[Span, Name] = field(default_factory=dict)
    register_names: dict[Register, set[Name]] = field(default_factory=dict)
    sent_colors: dict[int, Span] = field(default_factory=dict)
    has_open_color: bool = False
    named_queues: dict[tuple[bool, int], Span] = field(default_factory=dict)
    queue_colors: dict[tuple[bool, int, int], Span] = field(default_factory=dict)
    loaded_options: dict[Register, set[tuple[str, str]]] = field(default_factory=dict)
    mapped_registers: dict[Register, Span] = field(default_factory=dict)
    vain_options: dict[Span, tuple[tuple[Register, ...], RegisterOptions]] = field(
        default_factory=dict
    )
    blocked: dict[tuple[BlockKind, int], bool] = field(default_factory=dict)
    blocked_ids: dict[int, tuple[str, Span]] = field(default_factory=dict)
    dsr_loads: list[Named] = field(default_factory=list)
    fifos: list[Named] = field(default_factory=list)
    registers: dict[int, int] = field(default_factory=dict)
    activated: list[tuple[TargetId, Span]] = field(default_factory=list)
    teardown_handlers: dict[int, int] = field(default_factory=dict)
    empty_queue_handlers: dict[int, int] = field(default_factory=dict)
    colors: dict[int, ColorConfig] = field(default_factory=dict)
    has_separate_control_table: bool = False
    has_rpc_server: bool = False
    rotations: list[TaskRotation] = field(default_factory=list)
    control_tables: dict[int, int] = field(default_factory=dict)
    control_table_stride: int = 1

    def operation_at(self, file: str, line: int, column: int) -> Span | None:
        """The operation that a place is in."""
        own = (span for span in self.operations if span.source.name == file)
        starts = ((span.source.position(span.start), span) for span in own)
        before = [
            (at.column, span) for at, span in starts if at.line == line and at.column <= column
        ]
        return max(before, key=lambda pair: pair[0])[1] if before else None

    def binding_of(self, function: FunctionValue) -> BoundTask | None:
        """The first id that a task was bound to."""
        return next((bound for bound in self.tasks if bound.function == function), None)


@dataclass(frozen=True)
class MachineRecords:
    """The fields of :class:`~openwafer.sdk.program.image.Image` of these names."""

    tasks: tuple[TaskBinding, ...]
    queues: tuple[QueueBinding, ...]
    fifos: tuple[Fifo, ...]
    dsrs: tuple[DsrLoad, ...]
    registers: tuple[RegisterWrite, ...]
    start: Start
    teardown_handlers: tuple[tuple[int, int], ...]
    empty_queue_handlers: tuple[tuple[int, int], ...]
    colors: tuple[tuple[int, ColorConfig], ...]
    has_separate_control_table: bool
    rotations: tuple[TaskRotation, ...]
    control_offsets: tuple[tuple[int, int], ...]


Report: TypeAlias = Callable[[str, Span, str], None]
"""Takes a message, its place, and the remedy."""


def block_kind(arch: Arch, kind: TaskKind) -> BlockKind:
    """What blocks a task of that kind: WSE-3 has data tasks by input queue."""
    is_queue = kind is TaskKind.DATA and arch is Arch.WSE3
    return BlockKind.INPUT_QUEUE if is_queue else BlockKind.TASK


def number_of_task(
    arch: Arch,
    task: FunctionValue,
    bound: BoundTask | None,
    report: Callable[[str, str], None],
    *,
    is_block: bool,
) -> int:
    """The number that an image has for a task.

    Args:
        bound: the task's id; None where it has none.
        report: called with message and remedy where it cannot be that target.
        is_block: it is blocked or unblocked, not activated; the number is ``kind << 8 | id``.
    """
    if bound is None:
        remedy = "bind it in a comptime block, for instance with @bind_local_task"
        report(f"'{task}' is bound to no task id", remedy)
        return -1
    if not is_block and bound.kind is not TaskKind.LOCAL:
        report(f"'{task}' is a {bound.kind} task, only local tasks can be activated", "")
    if is_block and bound.kind is TaskKind.CONTROL:
        channel = "the color" if arch is Arch.WSE2 else "the input queue"
        message = f"'{task}' is a control task, only data and local tasks can be unblocked"
        report(message, f"unblock {channel} that its wavelets come by")
    return (block_kind(arch, bound.kind) if is_block else 0) << 8 | bound.task_id


def finish(state: MachineState, arch: Arch, report: Report) -> MachineRecords:
    """The records of the image, once everything was analysed.

    Args:
        report: called for a task that is used as a target, and cannot be one.
    """

    def number(target: TargetId, span: Span, *, is_block: bool) -> int:
        if isinstance(target, int):
            return target

        def refuse(message: str, remedy: str) -> None:
            report(message, span, remedy)

        return number_of_task(arch, target, state.binding_of(target), refuse, is_block=is_block)

    def resolve(named: Named) -> DsrLoad | Fifo:
        numbers: dict[str, Any] = {
            name: number(target, span, is_block="unblock" in name)
            for name, target, span in named.targets
        }
        if isinstance(named.record, Fifo):
            return replace(named.record, **numbers)
        return replace(named.record, **numbers)

    active = 0
    for target, span in state.activated:
        active |= 1 << number(target, span, is_block=False)
    fifos = tuple(fifo for fifo in map(resolve, state.fifos) if isinstance(fifo, Fifo))
    loads = tuple(load for load in map(resolve, state.dsr_loads) if isinstance(load, DsrLoad))
    return MachineRecords(
        tasks=tuple(_tasks(state)),
        queues=queues_of(state, arch).bindings,
        fifos=fifos,
        dsrs=loads,
        registers=tuple(RegisterWrite(*pair) for pair in sorted(state.registers.items())),
        start=_start(state, arch, active),
        teardown_handlers=tuple(sorted(state.teardown_handlers.items())),
        empty_queue_handlers=tuple(sorted(state.empty_queue_handlers.items())),
        colors=tuple(sorted(state.colors.items())),
        has_separate_control_table=state.has_separate_control_table,
        rotations=tuple(state.rotations),
        control_offsets=tuple(sorted(_control_offsets(state).items())),
    )


def _tasks(state: MachineState) -> Iterator[TaskBinding]:
    """Bindings, and those of rotating tasks: the first id of their queue's table."""
    yield from (TaskBinding(bound.kind, bound.task_id, bound.entry) for bound in state.tasks)
    offsets = _control_offsets(state)
    for rotation in state.rotations:
        yield TaskBinding(TaskKind.CONTROL, offsets.get(rotation.queue, 0), rotation.entry)


def _control_offsets(state: MachineState) -> dict[int, int]:
    """What is added to the control task ids that arrive through an input queue."""
    stride = state.control_table_stride
    return {queue: table * stride for queue, table in state.control_tables.items()}


def _given_queues(state: MachineState) -> Iterator[QueueBinding]:
    yield from (binding for binding in state.queues.values() if binding is not None)
    for queue, colors in sorted(state.used_queues.items()):
        # A queue that descriptors use with several colors is bound anew by each operation.
        if (True, queue) not in state.queues and len(colors) == 1:
            yield QueueBinding(True, queue, min(colors))


def queues_of(state: MachineState, arch: Arch) -> Allocation:
    """The queues of an image, those that WSE-2 programs leave to the compiler among them."""
    given = tuple(_given_queues(state))
    if arch is not Arch.WSE2:
        return Allocation(given)
    taken = {queue for is_input, queue in state.queues if is_input} | set(state.used_queues)
    sending = sorted(state.queueless_outputs)
    return allocated(given, tuple(_tasks(state)), taken, _wanting(state), sending)


def _wanting(state: MachineState) -> set[int]:
    """Colors that WSE-2 programs read, or unblock for control tasks, and name no queue for."""
    bound = {binding.color for binding in state.queues.values() if binding is not None}
    bound |= {color for colors in state.used_queues.values() for color in colors}
    bound |= {task.task_id for task in state.tasks if task.kind is TaskKind.DATA}
    local = {task.task_id for task in state.tasks if task.kind is TaskKind.LOCAL}
    unblocked = {
        color
        for (kind, color), is_blocked in state.blocked.items()
        if kind is BlockKind.TASK and not is_blocked and color < NUM_COLORS
    }
    return (unblocked - local | state.queueless_colors.keys()) - bound


def _start(state: MachineState, arch: Arch, active: int) -> Start:
    by_wavelet = {bound.task_id for bound in state.tasks if bound.kind is TaskKind.DATA}
    local = {bound.task_id for bound in state.tasks if bound.kind is TaskKind.LOCAL}
    blocked = {BlockKind.TASK: 0, BlockKind.INPUT_QUEUE: 0, BlockKind.MICROTHREAD: 0}
    if arch is Arch.WSE3:
        channels, kind = set(range(NUM_INPUT_QUEUES)), BlockKind.INPUT_QUEUE
    else:
        # Colors and local tasks share the numbers: a local task's id is not blocked for a color.
        channels, kind = set(range(NUM_COLORS)) - local, BlockKind.TASK
    for channel in channels - by_wavelet:
        blocked[kind] |= 1 << channel
    for (target_kind, target), is_blocked in state.blocked.items():
        blocked[target_kind] &= ~(1 << target)
        blocked[target_kind] |= is_blocked << target
    queues = blocked[BlockKind.INPUT_QUEUE] | blocked[BlockKind.MICROTHREAD] << 8
    return Start(active, blocked[BlockKind.TASK], queues)
