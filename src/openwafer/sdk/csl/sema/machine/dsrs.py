"""`@load_to_dsr`: descriptors in registers."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.engine import Sema, builtin
from openwafer.sdk.csl.sema.machine.arguments import take, wrong_type
from openwafer.sdk.csl.sema.machine.operation_options import OperationOptions, operation_options
from openwafer.sdk.csl.sema.machine.vector import DSR_FILES
from openwafer.sdk.csl.sema.machine_state import Named
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand
from openwafer.sdk.program.image import DsrLoad
from openwafer.sdk.program.mailbox import DsrFile

_SOURCES = (DsrFile.SOURCE0, DsrFile.SOURCE1)


@builtin("load_to_dsr")
def _load_to_dsr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = take(sema, call, 2, 3)
    dsr = sema.comptime_value(nodes[0])
    if dsr.type not in DSR_FILES or not isinstance(dsr.value, int):
        wrong_type(sema, nodes[0], "a DSR", dsr)
    file = DSR_FILES[dsr.type]
    dsd = sema.expression(nodes[1])
    _check_dsd(sema, nodes[1], file, dsd)
    options_node = nodes[2] if len(nodes) > 2 else None
    options = operation_options(sema, options_node, call.span, for_dsr=True)
    if sema.is_comptime:
        _load_at_start(sema, call, (file, dsr.value), dsd, options)
    else:
        names, values = options.lowered(sema)
        words = (str(int(file)), str(dsr.value), *names)
        sema.emit("load_dsr", sema.lower(dsd, nodes[1].span), *values, names=words)
    return NOTHING


def _check_dsd(sema: Sema, node: ast.Expression, file: DsrFile, dsd: Loaded) -> None:
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
    sema.image.machine.dsr_loads.append(Named(load, options.known_targets(sema), call.span))
