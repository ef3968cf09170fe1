"""An analysed image as the record that a program holds."""

from dataclasses import replace

import numpy as np

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.image import ImageResult
from openwafer.sdk.csl.sema.machine_state import finish
from openwafer.sdk.csl.values import Variable
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.text import render
from openwafer.sdk.program.image import Image, Symbol
from openwafer.source import Span


def finished_image(name: str, result: ImageResult, arch: Arch) -> Image:
    """The image of a name for people.

    Raises:
        OpenwaferError: an operation is to activate or unblock a task that cannot be.
    """
    findings: list[Diagnostic] = []

    def report(message: str, span: Span, remedy: str) -> None:
        found = Diagnostic(Severity.ERROR, "csl-unbound-task", message, span, help=remedy)
        findings.append(found)

    state, module = result.state, result.module
    records = finish(state.machine, arch, report)
    if findings:
        raise OpenwaferError(*findings)
    return Image(
        name=name,
        code=render(replace(module, places=[])),
        data=_data(module),
        stack_base=module.stack_base,
        code_words=result.code_words,
        symbols=tuple(_symbol(variable) for variable in state.variables.values()),
        entries=tuple(state.entries),
        tasks=records.tasks,
        queues=records.queues,
        fifos=records.fifos,
        dsrs=records.dsrs,
        registers=records.registers,
        start=records.start,
        exported_symbols=tuple(state.exported_symbols),
        exported_functions=tuple(state.exported_functions),
        teardown_handlers=records.teardown_handlers,
        empty_queue_handlers=records.empty_queue_handlers,
        colors=records.colors,
        has_separate_control_table=records.has_separate_control_table,
        rotations=records.rotations,
        control_offsets=records.control_offsets,
        names=result.names,
        parameters=tuple((str(n), str(kind)) for n, (_, kind) in enumerate(state.parameters)),
    )


def _data(module: Module) -> bytes:
    """Memory from word 0 to the last variable, little-endian words."""
    end = max((v.address + v.num_words for v in module.globals), default=0)
    words = np.zeros(end, "<u2")
    for variable in module.globals:
        initial = np.array(variable.initial, np.int64)
        words[variable.address : variable.address + initial.size] = initial & 0xFFFF
    return words.tobytes()


def _symbol(variable: Variable) -> Symbol:
    kind = variable.type
    element = kind.element if isinstance(kind, t.Array) else kind
    shape = kind.dims if isinstance(kind, t.Array) else ()
    return Symbol(variable.name, variable.address, t.num_words(kind), _element_name(element), shape)


def _element_name(kind: t.Type) -> str:
    if isinstance(kind, t.Struct):
        return "struct"
    if kind in t.DSDS:
        return "dsd"
    return str(t.ir_type(kind))
