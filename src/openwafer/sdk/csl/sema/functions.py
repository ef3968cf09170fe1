"""Functions: their types, their instances for the PE, and their bodies."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.access import temporary
from openwafer.sdk.csl.sema.analysis import Context, Scope, Target
from openwafer.sdk.csl.sema.builder import FunctionBuilder
from openwafer.sdk.csl.sema.join import arrive
from openwafer.sdk.csl.sema.linking import check_linked, defined_function
from openwafer.sdk.csl.sema.lvalues import store
from openwafer.sdk.csl.sema.named_values import note_local
from openwafer.sdk.csl.sema.recording import NoKeyError, Question
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.sema.taken_addresses import names_with_address
from openwafer.sdk.csl.types import Function, Type
from openwafer.sdk.csl.values import (
    NOTHING,
    Comptime,
    FunctionValue,
    Loaded,
    MemoryLvalue,
    Module,
    Operand,
    Runtime,
    SlotLvalue,
    Value,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.image import Entry
from openwafer.source import Span

_MAX_TRACE = 4


@dataclass(frozen=True)
class Argument:
    """An argument before its parameter's type is known.

    Attributes:
        value: evaluates it; takes the type that is wanted, if any.
    """

    value: Callable[[Type | None], Loaded]
    span: Span


@dataclass(frozen=True)
class Bound:
    """A parameter with its argument; `is_value`: known, and part of the instance's identity."""

    name: str
    type: Type
    operand: Loaded
    is_value: bool
    span: Span

    @property
    def value(self) -> Value:
        """What is part of the instance's identity."""
        operand = self.operand
        return operand.value if self.is_value and isinstance(operand, Comptime) else None

    def key(self, sema: Sema) -> Hashable:
        """What is equal for equal arguments of two images."""
        return self.name, self.type, self.is_value, sema.key_of(self.value)

    def moved(self, sema: Sema) -> "Bound":
        """The same argument in the image that is analysed."""
        if not self.is_value:
            return self
        return replace(self, operand=sema.moved(self.operand))


def function_type(sema: Sema, function: FunctionValue) -> Function:
    """Type of a function; parameters that depend on arguments are None, such a result is void."""
    node, module = function.declaration, function.module
    if is_generic(node):
        return Function((None,) * len(node.parameters), types.VOID)
    return sema.recalled(module, id(node), lambda: _written_type(sema, node, module))


def _written_type(sema: Sema, node: ast.Function, module: Module) -> Function:
    with sema.in_module(module):
        parameters = tuple(sema.type_of_node(p.type) for p in node.parameters)
        if node.result is None:
            message = f"'{node.name.text}' says no result type"
            sema.forbid(
                "no-result-type", message, node.name.span, "write void behind its parameters"
            )
        result = types.VOID if node.result is None else sema.type_of_node(node.result)
        return Function(parameters, result)


def is_generic(node: ast.Function) -> bool:
    """Whether types may depend on arguments."""
    return any(p.is_comptime or isinstance(p.type, ast.AnyType) for p in node.parameters)


def bind(
    sema: Sema, function: FunctionValue, arguments: Sequence[Argument], span: Span
) -> tuple[list[Bound], Type]:
    """Match arguments with parameters; the second value is the result's type."""
    node = function.declaration
    if len(arguments) != len(node.parameters):
        sema.fail(
            "wrong-count",
            f"function expects {len(node.parameters)} arguments, {len(arguments)} provided",
            span,
            notes=(f"'{function}' is declared as {_head(node)}",),
        )
    # Types may ask for those of expressions of parameters, whose code is thrown away.
    aside = FunctionBuilder(ir.Function("", 0, ir.Type.VOID)) if is_generic(node) else None
    callee = Context(function.module, Scope(), aside)
    bound: list[Bound] = []
    for parameter, argument in zip(node.parameters, arguments, strict=True):
        one = _bind_one(sema, callee, parameter, argument)
        bound.append(one)
        if one.name:
            callee.scope.names[one.name] = _visible(one)
    with sema.within(callee):
        result = types.VOID if node.result is None else sema.type_of_node(node.result)
    return bound, result


def _head(node: ast.Function) -> str:
    end = node.body.span.start if node.body is not None else node.span.end
    return " ".join(node.span.source.text[node.span.start : end].split())


def _bind_one(sema: Sema, callee: Context, parameter: ast.Parameter, argument: Argument) -> Bound:
    if isinstance(parameter.type, ast.AnyType):
        operand = argument.value(None)
        kind = operand.type
    else:
        with sema.within(callee):
            kind = sema.type_of_node(parameter.type)
        operand = sema.coerce(argument.value(kind), kind, argument.span)
        kind = operand.type if kind == types.COMPTIME_STRUCT else kind
    is_value = parameter.is_comptime or types.is_comptime_only(kind)
    if is_value:
        operand = sema.known(operand, argument.span)
    name = "" if parameter.name is None else parameter.name.text
    return Bound(name, kind, operand, is_value, argument.span)


def _visible(bound: Bound) -> Operand:
    """What a later parameter's type sees of this one."""
    if isinstance(bound.operand, Comptime):
        return temporary(bound.type, bound.operand.value)
    if types.is_aggregate(bound.type):
        # Only its type is asked for: any address does.
        return MemoryLvalue(bound.type, ir.Constant(0, ir.Type.PTR), is_const=True)
    return SlotLvalue(bound.type, bound.name, is_const=True)


def linked(sema: Sema, function: FunctionValue, span: Span) -> FunctionValue:
    """The definition of a function, which has the type that an extern declaration says."""
    defined = defined_function(sema, function, span)
    if defined is not function:
        kinds = function_type(sema, function), function_type(sema, defined)
        check_linked(sema, str(function), *kinds, span)
    return defined


def instantiate(
    sema: Sema, function: FunctionValue, bound: Sequence[Bound], result: Type, span: Span
) -> str:
    """Name of the IR function for these argument types and known values; made when it is new."""
    name: str = sema.ask(_InstanceOf(function, tuple(bound), result, span))
    return name


@dataclass(eq=False, slots=True)
class _InstanceOf(Question):
    """The question for an instance's name."""

    function: FunctionValue
    bound: tuple[Bound, ...]
    result: Type
    span: Span

    def answer(self, sema: Sema) -> str:
        """Name of the IR function."""
        return _instance(sema, self)

    def key(self, sema: Sema, answer: str) -> Hashable:
        """The name, where the arguments can be had in another image."""
        for one in self.bound:
            one.key(sema)
        return answer


def _instance(sema: Sema, wanted: _InstanceOf) -> str:
    function, result = sema.moved(wanted.function), wanted.result
    bound = [one.moved(sema) for one in wanted.bound]
    key = (function, *((one.type, one.value) for one in bound))
    found = sema.unrecorded().instances.get(key)
    if found is not None:
        return found[0]
    _check_runnable(sema, result, wanted.span)
    functions = sema.unrecorded().module.functions
    plain = function.declaration.name.text
    name = sema.unrecorded().unique_name(function.module.prefix + plain, functions)
    passed = [b for b in bound if not b.is_value]
    slots = [ir.Slot(b.name or "unused", passed_type(b.type)) for b in passed]
    if types.is_aggregate(result):
        slots.insert(0, ir.Slot("result", ir.Type.PTR))
    returned = ir.Type.VOID if types.is_aggregate(result) else types.ir_type(result)
    functions[name] = ir.Function(name, len(slots), returned, slots)
    sema.unrecorded().instances[key] = (name, result)
    sema.unrecorded().pending.append(
        lambda: _with_call(
            sema, function, wanted.span, lambda: _recall(sema, function, bound, result, name)
        )
    )
    return name


def passed_type(kind: Type) -> ir.Type:
    """How an argument travels: arrays and structs by address."""
    return ir.Type.PTR if types.is_aggregate(kind) else types.ir_type(kind)


def _check_runnable(sema: Sema, result: Type, span: Span) -> None:
    if types.is_comptime_only(result):
        sema.fail(
            "comptime-only",
            f"a function that returns type '{result}' can only be called at compile time",
            span,
            help="write 'comptime' before the call",
        )


def called(found: Diagnostic, function: FunctionValue, span: Span) -> Diagnostic:
    """Add the call to an error that happened inside it."""
    if len(found.notes) >= _MAX_TRACE or found.span is None:
        return found
    position = span.source.position(span.start)
    note = f"in '{function}', called at {span.source.name}:{position.line}:{position.column}"
    return replace(found, notes=(*found.notes, note))


def _with_call(
    sema: Sema, function: FunctionValue, span: Span, analyze: Callable[[], None]
) -> None:
    """Analyse a body; what is wrong with a generic one may be wrong with its call."""
    before = len(sema.diagnostics)
    analyze()
    if not is_generic(function.declaration):
        return
    known = {(found.message, found.span) for found in sema.diagnostics[:before]}
    sema.diagnostics[before:] = [
        called(found, function, span)
        for found in sema.diagnostics[before:]
        if (found.message, found.span) not in known
    ]


def _recall(
    sema: Sema, function: FunctionValue, bound: Sequence[Bound], result: Type, name: str
) -> None:
    """The body of a new instance, from another image where one has the same."""
    functions = sema.unrecorded().module.functions

    def analyze() -> ir.Function:
        _analyze(sema, function, bound, result, functions[name])
        return functions[name]

    try:
        arguments = tuple(one.key(sema) for one in bound)
        key = sema.memo.number((name, sema.key_of(function), arguments, result))
    except NoKeyError:
        analyze()
    else:
        functions[name] = sema.memo.recall(sema, key, analyze)


def _analyze(
    sema: Sema,
    function: FunctionValue,
    bound: Sequence[Bound],
    result: Type,
    target: ir.Function,
) -> None:
    node = function.declaration
    assert node.body is not None
    builder = FunctionBuilder(target)
    context = Context(
        function.module,
        Scope(end=node.body.span.end),
        builder,
        is_comptime=False,
        return_type=result,
        function=target.name,
        with_address=names_with_address(node.body, sema.imports.with_address),
    )
    with sema.within(context), sema.recovering():
        sema.set_place(node.name.span)
        target.place, target.result = sema.place_of(node.span), sema.tables.type(result)
        if types.is_aggregate(result):
            context.result_address = sema.emit("get", type=ir.Type.PTR, names=("result",))
        for one in bound:
            if one.name:
                context.scope.names[one.name] = _parameter(sema, one)
        note_parameters(sema, node)
        sema.evaluate(node.body, types.VOID)
        finish(sema, function, result)


def note_parameters(sema: Sema, node: ast.Function) -> None:
    """Keep the names of the parameters, whose values are in scope."""
    names = sema.context.scope.names
    for parameter in node.parameters:
        operand = None if parameter.name is None else names.get(parameter.name.text)
        if parameter.name is not None and operand is not None:
            note_local(sema, parameter.name, operand)


def finish(sema: Sema, function: FunctionValue, result: Type) -> None:
    """End a body that control runs to the end of."""
    if not sema.is_live:
        return
    if result != types.VOID:
        sema.builder.emit("unreachable")
        sema.unrecorded()
        if sema.has_errors:
            return
        sema.fail(
            "missing-return",
            f"function '{function}' of return type '{result}' may end without a return",
            function.declaration.name.span,
        )
    sema.emit("return")


def finish_inlined(sema: Sema, function: FunctionValue, target: Target) -> None:
    """End the expanded body of an inline function."""
    if sema.is_live:
        if target.expected != types.VOID:
            sema.fail(
                "missing-return",
                f"function '{function}' of return type '{target.expected}' "
                "may end without a return",
                function.declaration.name.span,
            )
        arrive(sema, target.results, NOTHING, function.declaration.span)


def _parameter(sema: Sema, bound: Bound) -> Operand:
    if bound.is_value:
        assert isinstance(bound.operand, Comptime)
        return temporary(bound.type, bound.operand.value)
    if types.is_aggregate(bound.type):
        address = sema.emit("get", type=ir.Type.PTR, names=(bound.name,))
        return MemoryLvalue(bound.type, address, is_const=True)
    lvalue = SlotLvalue(bound.type, bound.name, is_const=True)
    if bound.name not in sema.context.with_address:
        return lvalue
    memory = sema.new_memory(bound.type, bound.name)
    store(sema, memory, lvalue, bound.span)
    return MemoryLvalue(bound.type, memory.address, is_const=True)


def function_name(sema: Sema, function: FunctionValue, span: Span) -> str:
    """Name of the IR function of a function whose parameters all come at run time."""
    function = linked(sema, function, span)
    node = function.declaration
    if is_generic(node) or node.is_inline:
        sema.fail(
            "no-runtime-form",
            f"'{function}' has no form that could be called at run time",
            span,
            notes=("it is inline, or takes comptime or anytype parameters",),
        )
    kind = function_type(sema, function)
    unknown = ir.Constant(0, ir.Type.U16)
    bound = [
        Bound("" if p.name is None else p.name.text, t, Runtime(t, unknown), False, p.span)
        for p, t in zip(node.parameters, kind.parameters, strict=True)
        if t is not None
    ]
    for one in bound:
        if types.is_comptime_only(one.type):
            sema.fail(
                "comptime-only",
                f"parameter of type '{one.type}' must be comptime-known",
                one.span,
            )
    return instantiate(sema, function, bound, kind.result, span)


def function_entry(sema: Sema, function: FunctionValue, span: Span) -> int:
    """Number of the image's entry that starts a function or task; made when it is new."""
    name = function_name(sema, function, span)
    for number, entry in enumerate(sema.unrecorded().entries):
        if entry.function == name:
            return number
    kind = function_type(sema, function)
    parameters = tuple(passed_type(p).value for p in kind.parameters if p is not None)
    sema.unrecorded().entries.append(Entry(name, parameters))
    return len(sema.unrecorded().entries) - 1
