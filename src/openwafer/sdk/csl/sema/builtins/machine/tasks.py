"""Builtins that bind tasks to ids, activate, block and unblock them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import function_argument, wrong_type
from openwafer.sdk.csl.sema.builtins.machine.structs import Options
from openwafer.sdk.csl.sema.builtins.machine.targets import known_target, target_id, target_value
from openwafer.sdk.csl.sema.functions import function_entry, function_type
from openwafer.sdk.csl.sema.linking import check_abi
from openwafer.sdk.csl.sema.machine_state import BoundTask
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, FunctionValue, Operand
from openwafer.sdk.program.image import TaskKind, TaskRotation
from openwafer.sdk.program.mailbox import BlockKind
from openwafer.source import Span

_MOST_ROTATIONS: Final = 2
_WAVELET_BITS: Final = 32
_CONTROL_BITS: Final = 16
_BINDINGS: Final = {
    "bind_local_task": (TaskKind.LOCAL, t.LOCAL_TASK_ID),
    "bind_data_task": (TaskKind.DATA, t.DATA_TASK_ID),
    "bind_control_task": (TaskKind.CONTROL, t.CONTROL_TASK_ID),
}


@builtin(*_BINDINGS)
def _bind(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, id_node = call.arguments
    kind, id_type = _BINDINGS[call.name.text]
    task = function_argument(sema, node)
    operand = sema.comptime_value(id_node)
    # The first releases used colors for every id.
    if operand.type not in (id_type, t.COLOR) or not isinstance(operand.value, int):
        wrong_type(sema, id_node, str(id_type), operand)
    _check_parameters(sema, kind, task, node.span)
    bind(sema, kind, task, operand.value, call.span)
    return NOTHING


@builtin("bind_task")
def _bind_task(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, id_node = call.arguments
    task = function_argument(sema, node)
    kind = TaskKind.DATA if task.declaration.parameters else TaskKind.LOCAL
    bind(sema, kind, task, sema.integer(id_node), call.span)
    return NOTHING


def _check_parameters(sema: Sema, kind: TaskKind, task: FunctionValue, span: Span) -> None:
    if not task.is_task:
        message = f"'{task}' is a function, not a task"
        sema.fail("not-a-task", message, span, help="declare it with 'task'")
    result = function_type(sema, task).result
    if result != t.VOID:
        message = f"task '{task}' returns a value of type '{result}', which nothing takes"
        sema.forbid("task-result", message, span, "make its result void")
    num_parameters = len(task.declaration.parameters)
    kinds = [kind for kind in function_type(sema, task).parameters if kind is not None]
    for parameter in kinds:
        check_abi(sema, parameter, "an argument of a task", span)
        if parameter == t.VOID or t.is_comptime_only(parameter) or t.is_aggregate(parameter):
            message = f"a wavelet brings no value of type '{parameter}', which '{task}' takes"
            help_text = "take a number of 32 bits, or two of 16"
            sema.fail("task-arguments", message, span, help=help_text)
    if kind is TaskKind.LOCAL and num_parameters:
        message = f"a local task takes no arguments, '{task}' takes {num_parameters}"
        sema.fail("task-arguments", message, span)
    if kind is TaskKind.DATA and not num_parameters:
        message = f"a data task takes the wavelet as an argument, '{task}' takes none"
        sema.fail("task-arguments", message, span)
    num_bits = sum(map(t.num_bits, kinds))
    if kind is TaskKind.DATA and num_bits > _WAVELET_BITS:
        message = f"the arguments of data task '{task}' take {num_bits} of a wavelet's 32 bits"
        sema.fail("task-arguments", message, span, help="take one of 32 bits, or two of 16")
    if kind is TaskKind.CONTROL and num_bits > _CONTROL_BITS:
        message = f"control task '{task}' takes {num_bits} bits, a control wavelet brings it 16"
        sema.forbid("task-arguments", message, span, "take one argument of 16 bits, or none")


def bind(sema: Sema, kind: TaskKind, task: FunctionValue, task_id: int, span: Span) -> None:
    """Give a task an id that no other task has."""
    machine = sema.unrecorded().machine
    for other in machine.tasks:
        if other.task_id == task_id and not _is_apart(sema, kind, other.kind):
            sema.fail(
                "task-id-taken",
                f"task id {task_id} is bound already, to {other.kind} task '{other.function}'",
                span,
                notes=("control, data and local tasks share one table of ids",),
                help="use another id",
            )
    if kind is TaskKind.DATA and sema.arch is Arch.WSE3:
        machine.named_queues.setdefault((True, task_id), span)
    entry = function_entry(sema, task, span)
    kinds = (one for one in function_type(sema, task).parameters if one is not None)
    machine.tasks.append(BoundTask(kind, task_id, entry, task, span, sum(map(t.num_bits, kinds))))


def _is_apart(sema: Sema, kind: TaskKind, other: TaskKind) -> bool:
    is_separate = sema.unrecorded().machine.has_separate_control_table
    return is_separate and (kind is TaskKind.CONTROL) is not (other is TaskKind.CONTROL)


@builtin("bind_rotating_tasks")
def _bind_rotating(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, other_node, id_node, options_node = call.arguments
    if sema.arch is not Arch.WSE3:
        sema.fail("wrong-architecture", "@bind_rotating_tasks needs WSE-3", call.span)
    task, other = function_argument(sema, node), function_argument(sema, other_node)
    _check_parameters(sema, TaskKind.DATA, task, node.span)
    _check_parameters(sema, TaskKind.CONTROL, other, other_node.span)
    queue = sema.comptime_value(id_node, t.DATA_TASK_ID).value
    assert isinstance(queue, int)
    options = Options.read(sema, options_node, call.span)
    options.required("limit")
    limit, first = options.number("limit"), options.number("init")
    options.close()
    if not 0 <= first <= limit:
        message = f"init is 0 to the limit {limit}, got {first}"
        sema.fail("rotation", message, options_node.span)
    rotations = sema.unrecorded().machine.rotations
    if len(rotations) == _MOST_ROTATIONS:
        message = f"a PE has {_MOST_ROTATIONS} pairs of rotating tasks at most"
        sema.fail("rotation", message, call.span)
    bind(sema, TaskKind.DATA, task, queue, call.span)
    entry = function_entry(sema, other, other_node.span)
    rotations.append(TaskRotation(queue, entry, first, limit))
    return NOTHING


@builtin("set_control_task_table")
def _set_control_task_table(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    machine = sema.unrecorded().machine
    if machine.has_separate_control_table:
        message = "@set_control_task_table was called already for this code"
        sema.fail("table-twice", message, call.span)
    options = Options.read(sema, nodes[0] if nodes else None, call.span)
    _check_choice(sema, options, "instructions", options.number("instructions", 4), (2, 4, 8))
    machine.control_table_stride = options.number("stride", 1)
    _check_choice(sema, options, "stride", machine.control_table_stride, range(1, 8))
    options.close()
    machine.has_separate_control_table = True
    return NOTHING


def _check_choice(
    sema: Sema, options: Options, name: str, number: int, choices: Collection[int]
) -> None:
    if number not in choices:
        known = ", ".join(map(str, choices))
        sema.fail("wrong-field", f"'{name}' is one of {known}, got {number}", options.span)


@builtin("activate")
def _activate(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    operand = target_id(sema, node, call.name.text)
    if sema.is_comptime:
        target = known_target(sema, operand, node.span, is_block=False)
        sema.unrecorded().machine.activated.append((target, node.span))
    else:
        sema.emit("activate", target_value(sema, operand, node.span, is_block=False))
    return NOTHING


@dataclass(frozen=True, slots=True)
class _Blocked(Question):
    """The id of a local task that is blocked or unblocked, which some task should have."""

    number: int
    call: str
    span: Span

    def answer(self, sema: Sema) -> None:
        """None: which ids have a task is known at the end."""
        sema.image.machine.blocked_ids.setdefault(self.number, (self.call, self.span))


@builtin("block", "unblock")
def _block(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    operand = target_id(sema, node, call.name.text)
    if isinstance(operand, Comptime) and operand.type == t.LOCAL_TASK_ID:
        assert isinstance(operand.value, int)
        sema.ask(_Blocked(operand.value, call.name.text, node.span))
    if not sema.is_comptime:
        sema.emit(call.name.text, target_value(sema, operand, node.span, is_block=True))
        return NOTHING
    target = known_target(sema, operand, node.span, is_block=True)
    if not isinstance(target, int):
        wrong_type(sema, node, "a task id", operand)
    kind, number = BlockKind(target >> 8), target & 0xFF
    sema.unrecorded().machine.blocked[kind, number] = call.name.text == "block"
    return NOTHING


@builtin("set_teardown_handler")
def _set_teardown_handler(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, color_node = call.arguments
    color = sema.comptime_value(color_node, t.COLOR)
    _set_handler(sema, call, node, color, sema.unrecorded().machine.teardown_handlers)
    return NOTHING


@builtin("set_empty_queue_handler")
def _set_empty_queue_handler(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, queue_node = call.arguments
    queue = sema.comptime_value(queue_node)
    if queue.type not in (t.INPUT_QUEUE, t.OUTPUT_QUEUE):
        wrong_type(sema, queue_node, "input_queue or output_queue", queue)
    number = Comptime(queue.type, sema.integer(queue_node) + 8 * (queue.type == t.OUTPUT_QUEUE))
    _set_handler(sema, call, node, number, sema.unrecorded().machine.empty_queue_handlers)
    return NOTHING


def _set_handler(
    sema: Sema,
    call: ast.BuiltinCall,
    node: ast.Expression,
    key: Comptime,
    handlers: dict[int, int],
) -> None:
    function = function_argument(sema, node)
    if not isinstance(key.value, int) or key.value in handlers:
        message = f"@{call.name.text} was called for this {key.type} already"
        sema.fail("handler-twice", message, call.span)
    handlers[key.value] = function_entry(sema, function, node.span)


@builtin("rpc")
def _rpc(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """The host starts exported functions itself, so that no server runs on the PE."""
    if sema.unrecorded().machine.has_rpc_server:
        sema.fail("rpc-twice", "@rpc was called already for this code", call.span)
    sema.unrecorded().machine.has_rpc_server = True
    return NOTHING
