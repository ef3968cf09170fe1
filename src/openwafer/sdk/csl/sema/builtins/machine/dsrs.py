"""`@load_to_dsr` and its kind: descriptors in registers."""

from collections.abc import Sequence

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.builtins.machine.descriptors import forbid_nameless_queue
from openwafer.sdk.csl.sema.builtins.machine.operation_options import (
    OperationOptions,
    operation_options,
)
from openwafer.sdk.csl.sema.builtins.machine.register_options import note_load
from openwafer.sdk.csl.sema.builtins.machine.structs import elements
from openwafer.sdk.csl.sema.builtins.machine.vector import DSR_FILES, note_place
from openwafer.sdk.csl.sema.builtins.machine.words import value_of
from openwafer.sdk.csl.sema.machine_state import Named
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand
from openwafer.sdk.program.descriptor import WORD_ELEMENT, WORD_EXTENT, WORD_STRIDES4
from openwafer.sdk.program.image import DsrLoad
from openwafer.sdk.program.mailbox import DsrFile
from openwafer.source import Span

_SOURCES = (DsrFile.SOURCE0, DsrFile.SOURCE1)
_MOST_STRIDES = 3
"""Of a DSD that only run time knows."""


@builtin("load_to_dsr")
def _load_to_dsr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    register = _register(sema, nodes[0])
    dsd = sema.expression(nodes[1])
    _check_dsd(sema, nodes[1], register[0], dsd)
    _load(sema, call, register, dsd, nodes[2:])
    return NOTHING


@builtin("load_to_dsr_xdsr")
def _load_to_dsr_xdsr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """The extended register is the machine's own: a circular buffer's DSR has all of it here."""
    nodes = call.arguments
    register = _register(sema, nodes[0])
    _extended(sema, nodes[1])
    dsd = sema.expression(nodes[2], t.CIRCBUF_DSD)
    if dsd.type != t.CIRCBUF_DSD:
        wrong_type(sema, nodes[2], "circbuf_dsd", dsd)
    _load(sema, call, register, dsd, nodes[3:])
    return NOTHING


@builtin("load_to_dsr_xdsr_sr")
def _load_to_dsr_xdsr_sr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    register = _register(sema, nodes[0])
    _extended(sema, nodes[1])
    strides = elements(sema, sema.comptime_value(nodes[2]), nodes[2].span)
    for stride in strides:
        if stride.type != t.SR:
            wrong_type(sema, nodes[2], "sr", stride)
    dsd = sema.expression(nodes[3])
    if dsd.type != t.MEM4D_DSD:
        wrong_type(sema, nodes[3], "mem4d_dsd", dsd)
    _check_strides(sema, dsd, len(strides), nodes[2].span)
    _load(sema, call, register, dsd, nodes[4:])
    return NOTHING


def _check_strides(sema: Sema, dsd: Loaded, given: int, span: Span) -> None:
    """Registers hold the strides behind the first, and behind the second where the first is 1."""
    needed = _MOST_STRIDES
    if isinstance(dsd, Comptime) and isinstance(dsd.value, tuple):
        is_dense = dsd.value[WORD_STRIDES4] == dsd.value[WORD_ELEMENT]
        needed = max(0, dsd.value[WORD_EXTENT] - 1 - is_dense)
    if given != needed:
        message = f"number of stride registers for this DSD: {needed}, given: {given}"
        sema.fail("stride-registers", message, span)


@builtin("set_dsr_base_addr")
def _set_dsr_base(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """Of the first releases: a DSR goes on at another address."""
    nodes = call.arguments
    file, number = _register(sema, nodes[0])
    lvalue = sema.lvalue(nodes[1])
    is_array = isinstance(lvalue.type, t.Array)
    span = nodes[1].span
    pointer = sema.address_of(lvalue, span) if is_array else sema.load(lvalue, span)
    if not isinstance(pointer.type, t.Pointer):
        wrong_type(sema, nodes[1], "an array or a pointer", pointer)
    sema.emit("set_dsr_base", value_of(int(file) << 8 | number), sema.lower(pointer, span))
    return NOTHING


def _register(sema: Sema, node: ast.Expression) -> tuple[DsrFile, int]:
    dsr = sema.comptime_value(node)
    is_plain = dsr.type in DSR_FILES and dsr.type not in t.FIFO_DSRS
    if not is_plain or not isinstance(dsr.value, int):
        wrong_type(sema, node, "a DSR", dsr)
    return DSR_FILES[dsr.type], dsr.value


def _extended(sema: Sema, node: ast.Expression) -> None:
    register = sema.comptime_value(node)
    if register.type != t.XDSR:
        wrong_type(sema, node, "xdsr", register)


def _load(
    sema: Sema,
    call: ast.BuiltinCall,
    register: tuple[DsrFile, int],
    dsd: Loaded,
    options_nodes: Sequence[ast.Expression],
) -> None:
    options_node = options_nodes[0] if options_nodes else None
    options = operation_options(sema, options_node, call.span, for_dsr=True)
    note_load(sema, register, options, call.span)
    _check_options(sema, dsd, options, call.span)
    if options.is_async:
        forbid_nameless_queue(sema, dsd, call.span)
    if sema.is_comptime:
        _load_at_start(sema, call, register, dsd, options)
        return
    note_place(sema, call.span, call.arguments[0])
    names, values = options.lowered(sema)
    words = (*(str(int(part)) for part in register), *names)
    sema.emit("load_dsr", sema.lower(dsd, call.span), *values, names=words)


def _check_options(sema: Sema, dsd: Loaded, options: OperationOptions, span: Span) -> None:
    is_fabric = dsd.type in (t.FABIN_DSD, t.FABOUT_DSD)
    name, kind = ("save_address", "memory") if is_fabric else ("async", "fabric")
    if name in options.flags:
        message = f"'{name}' is for a {kind} DSD, not for a {dsd.type}"
        sema.forbid("option-ignored", message, span, f"remove .{name}")


def _check_dsd(sema: Sema, node: ast.Expression, file: DsrFile, dsd: Loaded) -> None:
    if dsd.type == t.CIRCBUF_DSD:
        help_text = "load it with @load_to_dsr_xdsr(dsr, xdsr, dsd)"
        wrong_type(sema, node, "a DSD without an extended register", dsd, help_text)
    if dsd.type not in t.DSDS:
        wrong_type(sema, node, "a DSD", dsd)
    is_wrong_input = dsd.type == t.FABIN_DSD and file is DsrFile.DESTINATION
    is_wrong_output = dsd.type == t.FABOUT_DSD and file in _SOURCES
    if is_wrong_input or is_wrong_output:
        sema.fail("dsr-file", f"a {dsd.type} cannot be loaded to this DSR", node.span)


def _load_at_start(
    sema: Sema,
    call: ast.BuiltinCall,
    register: tuple[DsrFile, int],
    dsd: Loaded,
    options: OperationOptions,
) -> None:
    if not isinstance(dsd, Comptime) or not isinstance(dsd.value, tuple):
        sema.fail("not-comptime", "the DSD is not comptime-known", call.span)
    file, number = register
    load = DsrLoad(int(file), number, dsd.value, options.flag_bits())
    sema.unrecorded().machine.dsr_loads.append(Named(load, options.known_targets(sema)))
