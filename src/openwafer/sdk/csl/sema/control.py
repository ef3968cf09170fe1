"""Blocks, choices, and the ways out of them."""

from openwafer.diagnostics import suggestion
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.analysis import Result, Target
from openwafer.sdk.csl.sema.join import (
    NEVER,
    Continuing,
    Leaving,
    Returning,
    arrive,
    join,
)
from openwafer.sdk.csl.sema.lvalues import store
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.sema.statements import statements
from openwafer.sdk.csl.sema.taken_addresses import root_name
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import NOTHING, Comptime, MemoryLvalue, Operand
from openwafer.source import Span


@evaluates(ast.Block)
def _block(sema: Sema, node: ast.Block, expected: Type | None) -> Operand:
    if node.label is None:
        with sema.scoped(node.span):
            statements(sema, node.statements)
        return NOTHING if sema.is_live else NEVER
    target = Target(node.label.text, is_loop=False, expected=expected)
    _check_label(sema, node.label)
    sema.context.targets.append(target)
    try:
        with sema.scoped(node.span):
            statements(sema, node.statements)
    except Leaving as leaving:
        if leaving.target is not target:
            raise
        return leaving.operand
    finally:
        sema.context.targets.pop()
    if sema.is_comptime:
        return NOTHING
    if sema.is_live and target.results:
        arrive(sema, target.results, NOTHING, node.span)
        return _joined_at_end(sema, target, node)
    return join(sema, target.results, expected, node.span) if not sema.is_live else NOTHING


def _joined_at_end(sema: Sema, target: Target, node: ast.Block) -> Operand:
    """A block whose end control may reach has type void, and so have its breaks."""
    for result in target.results:
        if result.operand.type != types.VOID:
            sema.fail(
                "type-mismatch",
                f"expected type 'void', got: '{result.operand.type}'",
                result.span,
                notes=(
                    "the block has type 'void' because control may reach its end without a break",
                ),
            )
    return join(sema, target.results, types.VOID, node.span)


def _check_label(sema: Sema, label: ast.Name) -> None:
    if any(target.label == label.text for target in sema.context.targets):
        sema.fail("redefined-label", f"redefinition of label '{label.text}'", label.span)


@evaluates(ast.If)
def _if(sema: Sema, node: ast.If, expected: Type | None) -> Operand:
    condition = sema.typed(node.condition, types.BOOL)
    if isinstance(condition, Comptime):
        sema.defined(condition, node.condition.span)
        taken = node.then if condition.value else node.otherwise
        return NOTHING if taken is None else body(sema, taken, expected)
    wanted = types.VOID if node.otherwise is None else expected
    then, otherwise = sema.new_block("then"), sema.new_block("else")
    sema.branch(sema.lower(condition, node.condition.span), then, otherwise)
    results: list[Result] = []
    with sema.under_runtime_control():
        sema.enter(then)
        arrive(sema, results, body(sema, node.then, wanted), node.then.span)
        sema.enter(otherwise)
        value = NOTHING if node.otherwise is None else body(sema, node.otherwise, wanted)
        arrive(sema, results, value, (node.otherwise or node).span)
    return join(sema, results, wanted, node.span)


def body(sema: Sema, node: ast.Body, expected: Type | None) -> Operand:
    """Value of a branch; NEVER where control does not leave it at its end."""
    with sema.scoped(node.span):
        if expected == types.VOID:
            sema.evaluate(node, expected)
            value: Operand = NOTHING
        else:
            value = sema.load(sema.evaluate(node, expected), node.span)
            if expected is not None and value.type not in (types.NORETURN, types.VOID):
                value = sema.coerce(value, expected, node.span)
    return value if sema.is_live else NEVER


@evaluates(ast.Return)
def _return(sema: Sema, node: ast.Return, _expected: Type | None) -> Operand:
    context = sema.context
    kind = context.return_type
    if kind is None or (sema.is_comptime and context.builder is not None):
        sema.fail("return-outside", "return outside of a function", node.span)
    value = _returned(sema, node, kind)
    if sema.is_comptime:
        raise Returning(value)
    if context.inlined is not None:
        arrive(sema, context.inlined.results, value, node.span)
    elif kind == types.VOID:
        sema.emit("return")
    elif context.result_address is not None:
        store(sema, MemoryLvalue(kind, context.result_address, is_const=False), value, node.span)
        sema.emit("return")
    else:
        sema.emit("return", sema.lower(value, node.span))
    return NEVER


def _returned(sema: Sema, node: ast.Return, kind: Type) -> Operand:
    if node.value is None:
        if kind != types.VOID:
            sema.fail(
                "missing-value",
                f"return without a value in a function of return type '{kind}'",
                node.span,
            )
        return NOTHING
    if isinstance(node.value, ast.AddressOf):
        _warn_of_escape(sema, node.value)
    return sema.typed(node.value, kind)


def _warn_of_escape(sema: Sema, node: ast.AddressOf) -> None:
    """A pointer to what ends with the function."""
    name = root_name(node.operand)
    scope = sema.context.scope.find(name)
    lvalue = None if scope is None else scope.names[name]
    is_local = isinstance(lvalue, MemoryLvalue) and not isinstance(lvalue.type, types.Pointer)
    if is_local and not sema.is_comptime:
        message = f"'{node.span.text}' points to a variable that ends with its function"
        help_text = "declare it at the top of the file, or let the caller pass a pointer"
        sema.warn("local-escapes", message, node.span, help=help_text)


@evaluates(ast.Break)
def _break(sema: Sema, node: ast.Break, _expected: Type | None) -> Operand:
    target = _find_target(sema, node.label, node.span, "break")
    value: Operand = NOTHING
    if node.value is not None:
        value = sema.expression(node.value, target.expected)
        if target.expected is not None and target.expected != types.VOID:
            value = sema.coerce(value, target.expected, node.value.span)
    if sema.is_comptime:
        raise Leaving(target, value)
    if target.is_loop:
        target.exit = target.exit or sema.new_block("exit")
        sema.jump(target.exit)
    else:
        arrive(sema, target.results, value, node.span)
    return NEVER


@evaluates(ast.Continue)
def _continue(sema: Sema, node: ast.Continue, _expected: Type | None) -> Operand:
    target = _find_target(sema, node.label, node.span, "continue")
    if not target.is_loop:
        sema.fail("continue-block", f"'{target.label}' is a block, not a loop", node.span)
    if sema.is_comptime:
        raise Continuing(target)
    target.next_iteration = target.next_iteration or sema.new_block("next")
    sema.jump(target.next_iteration)
    return NEVER


def _find_target(sema: Sema, label: ast.Name | None, span: Span, word: str) -> Target:
    for target in reversed(sema.context.targets):
        if target.is_loop if label is None else target.label == label.text:
            return target
    if label is None:
        sema.fail("outside-loop", f"{word} outside of a loop", span)
    message = f"there is no label '{label.text}' around this {word}"
    labels = (target.label for target in sema.context.targets if target.label)
    return sema.fail("no-label", message, span, help=suggestion(label.text, labels))
