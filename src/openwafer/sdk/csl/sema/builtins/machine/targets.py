"""What is activated, blocked and unblocked: ids, queues, and tasks by their names."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.words import as_word, plus, value_of
from openwafer.sdk.csl.sema.machine_state import BoundTask, TargetId, number_of_task
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import Comptime, FunctionValue, Operand
from openwafer.sdk.ir.function import Value
from openwafer.sdk.program.mailbox import BlockKind
from openwafer.source import Span

_ACTIVATED: Final = frozenset((t.LOCAL_TASK_ID, t.COLOR))
"""Colors name local tasks in programs of the first releases."""

_BLOCKED: Final[Mapping[Arch, frozenset[t.Type]]] = {
    Arch.WSE2: frozenset((t.COLOR, t.DATA_TASK_ID, t.LOCAL_TASK_ID)),
    Arch.WSE3: frozenset((t.INPUT_QUEUE, t.DATA_TASK_ID, t.LOCAL_TASK_ID, t.UT_ID)),
}


def target_id(sema: Sema, node: ast.Expression, call: str) -> Operand:
    """The argument of a builtin that takes an id, where options take a task's name, too."""
    operand = sema.expression(node)
    if not isinstance(operand, Comptime) or not isinstance(operand.value, FunctionValue):
        return operand
    bound: BoundTask | None = sema.ask(_BindingOf(operand.value))
    what = "task" if operand.value.is_task else "function"
    message = f"@{call} takes an id, '{node.span.text}' is the name of a {what}"
    help_text = "name the id that the task is bound to"
    if bound is not None:
        help_text += f": {bound.kind} task id {bound.task_id}"
    elif not operand.value.is_task:
        help_text = "declare it with 'task', bind it to an id, and name that"
    return sema.fail("type-mismatch", message, node.span, help=help_text)


def known_target(sema: Sema, operand: Operand, span: Span, *, is_block: bool) -> TargetId:
    """A target that must be known: its number, or the task.

    Args:
        is_block: it is blocked or unblocked, not activated; the number is ``kind << 8 | id``.
    """
    if isinstance(operand, Comptime) and isinstance(operand.value, FunctionValue):
        return operand.value
    kind = _kind(sema, operand, span, is_block=is_block)
    if not isinstance(operand, Comptime) or not isinstance(operand.value, int):
        sema.fail("not-comptime", f"'{span.text}' is not comptime-known", span)
    return kind << 8 | operand.value


def target_value(sema: Sema, operand: Operand, span: Span, *, is_block: bool) -> Value:
    """A target as an operand of an instruction."""
    if isinstance(operand, Comptime) and isinstance(operand.value, FunctionValue):
        return value_of(_number_of_task(sema, operand.value, span, is_block=is_block))
    kind = _kind(sema, operand, span, is_block=is_block)
    return value_of(plus(sema, as_word(sema, operand, span), kind << 8))


@dataclass(frozen=True, slots=True)
class _BindingOf(Question):
    """The question for a task's id."""

    task: FunctionValue

    def answer(self, sema: Sema) -> BoundTask | None:
        """The first id that it was bound to."""
        return sema.image.machine.binding_of(sema.moved(self.task))

    def key(self, sema: Sema, answer: BoundTask | None) -> Hashable:
        """Kind and number."""
        return None if answer is None else (answer.kind, answer.task_id)


def _number_of_task(sema: Sema, task: FunctionValue, span: Span, *, is_block: bool) -> int:
    bound: BoundTask | None = sema.ask(_BindingOf(task))

    def refuse(message: str, remedy: str) -> None:
        sema.fail("unbound-task", message, span, help=remedy)

    return number_of_task(sema.arch, task, bound, refuse, is_block=is_block)


def _kind(sema: Sema, operand: Operand, span: Span, *, is_block: bool) -> int:
    accepted = _BLOCKED[sema.arch] if is_block else _ACTIVATED
    if operand.type not in accepted:
        names = " or ".join(sorted(map(str, accepted)))
        message = f"expected type '{names}', got: '{operand.type}'"
        is_number = t.is_number(operand.type)
        remedy = "make one with @get_local_task_id(...)" if is_number else ""
        sema.fail("type-mismatch", message, span, help=remedy)
    if operand.type == t.UT_ID:
        return BlockKind.MICROTHREAD
    if operand.type == t.INPUT_QUEUE or operand.type == t.DATA_TASK_ID:
        is_queue = sema.arch is Arch.WSE3
        return BlockKind.INPUT_QUEUE if is_queue else BlockKind.TASK
    return BlockKind.TASK
