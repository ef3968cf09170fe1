"""Builtins of queues and FIFOs."""

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.builtins.machine.descriptors import PRIORITIES, SIMD_MODES
from openwafer.sdk.csl.sema.builtins.machine.structs import Options
from openwafer.sdk.csl.sema.builtins.machine.targets import known_target
from openwafer.sdk.csl.sema.machine_state import Named, TargetId
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand, PointerValue, Variable
from openwafer.sdk.ir.function import Constant, Value
from openwafer.sdk.ir.function import Type as IrType
from openwafer.sdk.program.image import Fifo, FifoAction, QueueBinding
from openwafer.source import Span

_ACTIONS = {action.name.lower(): int(action) for action in FifoAction}
_ACTIONS_OF_WSE2 = (FifoAction.TEST_OR_SUSPEND, FifoAction.TERMINATE)
_FIFO_ELEMENTS = frozenset((t.I16, t.U16, t.F16, t.I32, t.U32, t.F32))


@builtin("initialize_queue")
def _initialize_queue(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    queue = sema.comptime_value(nodes[0])
    if queue.type not in (t.INPUT_QUEUE, t.OUTPUT_QUEUE):
        wrong_type(sema, nodes[0], "input_queue or output_queue", queue)
    is_input = queue.type == t.INPUT_QUEUE
    number = sema.integer(nodes[0])
    queues = sema.unrecorded().machine.queues
    if (is_input, number) in queues:
        message = f"{queue.type} {number} was initialized already"
        sema.fail("queue-twice", message, call.span)
    options = Options.read(sema, nodes[1] if len(nodes) > 1 else None, call.span)
    queues[is_input, number] = _binding(sema, options, number, is_input=is_input)
    if is_input:
        sema.unrecorded().machine.input_queue_places.setdefault(number, call.span)
    if "ctrl_table_id" in options and (sema.arch is Arch.WSE2 or not is_input):
        message = "'ctrl_table_id' is for input queues of WSE-3"
        sema.fail("wrong-architecture", message, options.span)
    table = options.number("ctrl_table_id")
    if table:
        sema.unrecorded().machine.control_tables[number] = table
    options.close()
    return NOTHING


def _binding(sema: Sema, options: Options, number: int, *, is_input: bool) -> QueueBinding | None:
    color = options.typed("color", t.COLOR)
    priority = options.choice("priority", PRIORITIES)
    if priority is not None and (sema.arch is Arch.WSE3 or not is_input):
        help_text = "on WSE-3 fabric DSDs and FIFOs have a priority"
        message = "'priority' is for input queues of WSE-2"
        sema.fail("wrong-architecture", message, options.span, help=help_text)
    if color is None:
        if is_input or sema.arch is Arch.WSE3:
            kind = "input" if is_input else "output"
            message = f"{kind}_queue {number} needs a color on {sema.arch}"
            sema.fail("missing-field", message, options.span, help="pass .{ .color = ... }")
        return None
    if not isinstance(color, Comptime) or not isinstance(color.value, int):
        sema.fail("not-comptime", "a queue's color is comptime-known", options.span)
    return QueueBinding(is_input, number, color.value, -1 if priority is None else priority)


@builtin("queue_flush")
def _queue_flush(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    operand = sema.expression(node)
    if operand.type not in (t.INPUT_QUEUE, t.OUTPUT_QUEUE):
        wrong_type(sema, node, "input_queue or output_queue", operand)
    value = sema.lower(operand, node.span)
    if operand.type == t.OUTPUT_QUEUE:
        value = sema.emit("add", value, Constant(8, IrType.U16), type=IrType.U16)
    sema.emit("flush_queue", value)
    return NOTHING


@builtin("allocate_fifo")
def _allocate_fifo(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    lvalue = sema.lvalue(nodes[0])
    is_pointer = isinstance(lvalue.type, t.Pointer)
    array = lvalue.type.element if isinstance(lvalue.type, t.Pointer) else lvalue.type
    if not isinstance(array, t.Array) or array.element not in _FIFO_ELEMENTS:
        wrong_type(sema, nodes[0], "an array of 16-bit or 32-bit numbers", lvalue)
    pointer = sema.load(lvalue, call.span) if is_pointer else sema.address_of(lvalue, call.span)
    if not isinstance(pointer, Comptime) or not isinstance(pointer.value, PointerValue):
        sema.fail("not-global", "a FIFO lies in a global array", nodes[0].span)
    options = Options.read(sema, nodes[1] if len(nodes) > 1 else None, call.span)
    targets = tuple(_activations(sema, options))
    destination = _fifo_register(sema, options, "dest", (t.DSR_FIFO_DEST, t.DSR_DEST))
    source = _fifo_register(sema, options, "src", (t.DSR_FIFO_SRC1, t.DSR_SRC1))
    fifo = Fifo(
        symbol=pointer.value.target.name if isinstance(pointer.value.target, Variable) else "",
        address=sema.word_address(pointer, nodes[0].span),
        num_words=t.num_words(array),
        element_words=t.num_words(array.element),
        is_simd=_fifo_simd(sema, options),
        destination=destination,
        source=source,
        full_action=_action(sema, options, "full_action"),
        empty_action=_action(sema, options, "empty_action"),
        priority=_fifo_priority(sema, options),
    )
    _check_registers(sema, options, fifo)
    options.close()
    fifos = sema.unrecorded().machine.fifos
    fifos.append(Named(fifo, targets))
    return Comptime(t.FIFO, len(fifos) - 1)


def _fifo_simd(sema: Sema, options: Options) -> bool:
    mode = options.choice("simd_mode", SIMD_MODES)
    if mode is not None and sema.arch is Arch.WSE3:
        help_text = "remove it: WSE-3 chooses the width itself"
        message = "'simd_mode' of a FIFO needs WSE-2"
        sema.fail("wrong-architecture", message, options.span, help=help_text)
    if mode:
        message = "'simd_mode' of a FIFO has no effect here: it moves an element a cycle"
        help_text = "remove it, or expect fewer cycles on the machine"
        sema.warn("option-ignored", message, options.span, help_text)
    return bool(mode)


def _fifo_priority(sema: Sema, options: Options) -> int:
    priority = options.choice("priority", PRIORITIES)
    if priority is not None and sema.arch is not Arch.WSE3:
        help_text = "give it to the operation: .{ .async = true, .priority = ... }"
        message = "'priority' of a FIFO needs WSE-3"
        sema.fail("wrong-architecture", message, options.span, help=help_text)
    return priority or 0


def _check_registers(sema: Sema, options: Options, fifo: Fifo) -> None:
    """A FIFO's registers are named all three or not at all, and the DSRs by one number."""
    extended = options.operand("xdsr")
    if extended is not None and extended.type != t.XDSR:
        message = f"expected type 'xdsr', got: '{extended.type}'"
        sema.fail("type-mismatch", message, options.span)
    named = [fifo.destination >= 0, fifo.source >= 0, extended is not None]
    if any(named) and not all(named):
        message = "a FIFO names all of 'dest', 'src' and 'xdsr', or none of them"
        sema.forbid("fifo-registers", message, options.span, "add the others, or leave all out")
    elif fifo.destination != fifo.source:
        message = f"'dest' and 'src' have one number, got {fifo.destination} and {fifo.source}"
        sema.forbid("fifo-registers", message, options.span, "take registers of the same number")


def _fifo_register(sema: Sema, options: Options, name: str, kinds: tuple[t.Type, t.Type]) -> int:
    """Number of the register that stands for a FIFO; -1 where none was named."""
    register = options.operand(name)
    if register is None:
        return -1
    if register.type not in kinds or not isinstance(register, Comptime):
        message = f"expected type '{kinds[0]}', got: '{register.type}'"
        sema.fail("type-mismatch", message, options.span)
    assert isinstance(register.value, int)
    return register.value


def _action(sema: Sema, options: Options, name: str) -> int:
    is_given = name in options
    action = FifoAction(options.choice(name, _ACTIONS) or 0)
    if sema.arch is Arch.WSE2 and is_given:
        is_known = name == "empty_action" and action in _ACTIONS_OF_WSE2
        if not is_known:
            message = f"'{name}' with {action.name.lower()} needs WSE-3"
            sema.fail("wrong-architecture", message, options.span)
    return int(action)


def _activations(sema: Sema, options: Options) -> list[tuple[str, TargetId, Span]]:
    found: list[tuple[str, TargetId, Span]] = []
    for name in ("activate_push", "activate_pop"):
        operand = options.operand(name)
        if operand is not None:
            span = options.span
            found.append((name, known_target(sema, operand, span, is_block=False), span))
    return found


@builtin("set_fifo_read_length", "set_fifo_write_length")
def _set_fifo_length(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    node, length_node = call.arguments
    fifo = sema.comptime_value(node)
    if fifo.type != t.FIFO:
        wrong_type(sema, node, "fifo", fifo)
    length = sema.lower(sema.typed(length_node, t.U16), length_node.span)
    given = sema.emit("cast", length, type=IrType.I32)
    unchanged = Constant(-1, IrType.I32)
    is_read = "read" in call.name.text
    pair: tuple[Value, Value] = (given, unchanged) if is_read else (unchanged, given)
    sema.emit("set_fifo_lengths", *pair, names=(str(sema.integer(node)),))
    return NOTHING
