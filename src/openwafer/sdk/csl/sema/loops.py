"""Loops: followed at compile time, unrolled where inline, emitted otherwise."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema import lvalues
from openwafer.sdk.csl.sema.access import temporary
from openwafer.sdk.csl.sema.analysis import Target
from openwafer.sdk.csl.sema.fold import wrapped
from openwafer.sdk.csl.sema.join import NEVER, Continuing, Leaving
from openwafer.sdk.csl.sema.loops_in_lanes import follow_counted, follow_in_lanes
from openwafer.sdk.csl.sema.replay import follow_each
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.symbolic import noted
from openwafer.sdk.csl.types import Array, Int, Type
from openwafer.sdk.csl.values import (
    NOTHING,
    Comptime,
    Loaded,
    Operand,
    RangeValue,
    Runtime,
    SlotLvalue,
)
from openwafer.sdk.ir import function as ir
from openwafer.source import Span

_OPERANDS = get_args(Operand)


@contextmanager
def _loop(sema: Sema, label: ast.Name | None) -> Iterator[Target]:
    targets = sema.context.targets
    if label is not None and any(target.label == label.text for target in targets):
        sema.fail("redefined-label", f"redefinition of label '{label.text}'", label.span)
    target = Target("" if label is None else label.text, is_loop=True)
    targets.append(target)
    try:
        yield target
    finally:
        targets.pop()


def _iterate(sema: Sema, target: Target, body: Callable[[], object]) -> bool:
    """Follow one iteration of a loop that is not emitted; whether the loop goes on."""
    try:
        body()
    except Continuing as continuing:
        if continuing.target is not target:
            raise
    except Leaving as leaving:
        if leaving.target is not target:
            raise
        return False
    if sema.is_comptime:
        return True
    following, target.next_iteration = target.next_iteration, None
    if following is not None:
        sema.jump(following)
        sema.enter(following)
    return sema.is_live


def _end(sema: Sema, target: Target) -> Operand:
    """Go on behind the loop."""
    if target.exit is not None:
        sema.jump(target.exit)
        sema.enter(target.exit)
    return NOTHING if sema.is_live else NEVER


class _Budget:
    """Bounds the iterations of an unrolled loop."""

    def __init__(self, sema: Sema, span: Span) -> None:
        self._sema = sema
        self._span = span
        self._count = 0

    def spend(self) -> None:
        """Count one iteration; one at compile time counts among all of the image only."""
        limit = self._sema.options.max_inlined_iterations
        self._sema.spend_step(self._span)
        self._count += 1
        if self._count > limit and not self._sema.is_comptime:
            self._sema.fail(
                "too-many-iterations",
                f"exceeded the maximum of {limit} inlined iterations",
                self._span,
                help="raise it with --max-inlined-iterations",
            )


@evaluates(ast.While)
def _while(sema: Sema, node: ast.While, _expected: Type | None) -> Operand:
    with _loop(sema, node.label) as target:
        if sema.is_comptime or node.is_inline:
            return _follow_while(sema, node, target)
        return _emit_while(sema, node, target)


def _follow_while(sema: Sema, node: ast.While, target: Target) -> Operand:
    if sema.is_comptime and follow_counted(
        sema, node, lambda: _turn(target, lambda: _scoped(sema, node.body))
    ):
        return NOTHING
    budget = _Budget(sema, node.span)

    def turn(_element: object, _index: object) -> bool:
        if not sema.defined(sema.typed(node.condition, types.BOOL), node.condition.span).value:
            return False
        budget.spend()
        if not _iterate(sema, target, lambda: _scoped(sema, node.body)):
            return False
        if node.step is not None:
            sema.evaluate(node.step, types.VOID)
        return True

    follow_each(sema, node, None, None, turn)
    return _end(sema, target)


def _scoped(sema: Sema, node: ast.Body) -> None:
    with sema.scoped(node.span):
        sema.evaluate(node, types.VOID)


def _emit_while(sema: Sema, node: ast.While, target: Target) -> Operand:
    head = sema.new_block("while")
    sema.jump(head)
    sema.enter(head)
    condition = sema.typed(node.condition, types.BOOL)
    if isinstance(condition, Comptime):
        if not condition.value:
            return NOTHING
    else:
        inside, target.exit = sema.new_block("body"), sema.new_block("exit")
        sema.branch(sema.lower(condition, node.condition.span), inside, target.exit)
        sema.enter(inside)
    with sema.under_runtime_control():
        _scoped(sema, node.body)
        _next_iteration(sema, target)
        if node.step is not None and sema.is_live:
            sema.set_place(node.span)
            sema.evaluate(node.step, types.VOID)
    sema.builder.close_loop(head)
    return _exit(sema, target)


def _next_iteration(sema: Sema, target: Target) -> None:
    """Go on where `continue` leads, if anything arrives there."""
    if target.next_iteration is not None:
        sema.jump(target.next_iteration)
        sema.enter(target.next_iteration)


def _exit(sema: Sema, target: Target) -> Operand:
    """Go on behind an emitted loop; nowhere when nothing leaves it."""
    if target.exit is None:
        return NEVER
    sema.enter(target.exit)
    return NOTHING


@evaluates(ast.For)
def _for(sema: Sema, node: ast.For, _expected: Type | None) -> Operand:
    iterable = sema.evaluate(node.iterable)
    kind = iterable.type
    if kind != types.RANGE and not isinstance(kind, Array):
        sema.fail(
            "not-iterable",
            f"cannot iterate over type '{kind}'",
            node.iterable.span,
            help="iterate over an array, or over @range(type, stop)",
        )
    with _loop(sema, node.label) as target:
        if kind == types.RANGE:
            return _for_range(sema, node, iterable, target)
        assert isinstance(kind, Array)
        if sema.is_comptime or node.is_inline or types.is_comptime_only(kind):
            array = sema.load(iterable, node.iterable.span)
            if isinstance(array, Comptime) and isinstance(array.value, tuple):
                return _follow(sema, node, target, kind.element, array.value)
            parts = [lvalues.part(sema, array, i) for i in range(kind.num_elements)]
            return _follow(sema, node, target, kind.element, parts)
        return _emit_array(sema, node, iterable, target)


def _for_range(sema: Sema, node: ast.For, iterable: Operand, target: Target) -> Operand:
    loaded = sema.load(iterable, node.iterable.span)
    assert isinstance(loaded, Comptime)
    assert isinstance(loaded.value, RangeValue)
    bounds = loaded.value
    is_followed = sema.is_comptime or node.is_inline or bounds.element == types.COMPTIME_INT
    if is_followed:
        numbers = known_range(sema, bounds, node.iterable.span)
        follow = _lanes(sema, node, target, numbers, bounds.element)
        if sema.is_comptime and follow_in_lanes(sema, node, numbers, follow):
            return NOTHING
        return _follow(sema, node, target, bounds.element, numbers)
    return _emit_range(sema, node, bounds, target)


def _lanes(
    sema: Sema, node: ast.For, target: Target, numbers: range, kind: Type
) -> Callable[[Lanes], None]:
    """What follows the body once for iterations that take the same way."""

    def follow(number: Lanes) -> None:
        index = (number - numbers.start) // numbers.step
        bound = _bindings(node, Comptime(kind, number), Comptime(types.U16, index))
        _turn(target, lambda: _with_names(sema, node, bound))

    return follow


def _turn(target: Target, body: Callable[[], object]) -> None:
    """Follow an iteration of a loop whose iterations have no order."""
    try:
        body()
    except Continuing as continuing:
        if continuing.target is not target:
            raise


def known_range(sema: Sema, bounds: RangeValue, span: Span) -> range:
    """The numbers of a range whose bounds are known."""
    values = [sema.defined(bound, span).value for bound in (bounds.start, bounds.stop, bounds.step)]
    start, stop, step = (value for value in values if isinstance(value, int))
    return noted(range, start, stop, step)  # type: ignore[no-any-return]


def _follow(
    sema: Sema, node: ast.For, target: Target, kind: Type, elements: Sequence[Any]
) -> Operand:
    """Follow a loop over known values of one type, or over operands."""
    budget = _Budget(sema, node.span)

    def turn(element: Any, index: int) -> bool:
        budget.spend()
        operand = element if isinstance(element, _OPERANDS) else Comptime(kind, element)
        bound = _bindings(node, operand, Comptime(types.U16, index))
        return _iterate(sema, target, lambda: _with_names(sema, node, bound))

    follow_each(sema, node, kind, elements, turn)
    return _end(sema, target)


def _bindings(node: ast.For, element: Operand, index: Operand) -> list[tuple[ast.Name, Operand]]:
    bound = [(node.element, element)]
    return bound if node.index is None else [*bound, (node.index, index)]


def _with_names(sema: Sema, node: ast.For, bound: list[tuple[ast.Name, Operand]]) -> None:
    with sema.scoped(node.span):
        for name, operand in bound:
            if name.text != "_":
                if isinstance(operand, Comptime):
                    sema.declare(name, temporary(operand.type, operand.value))
                else:
                    sema.declare(name, operand)
        sema.evaluate(node.body, types.VOID)


def _emit_range(sema: Sema, node: ast.For, bounds: RangeValue, target: Target) -> Operand:
    """`for` over numbers: the number is a variable that the step moves on."""
    kind = bounds.element
    assert isinstance(kind, Int)
    span = node.iterable.span
    number = sema.new_slot(kind, node.element.text)
    lvalues.store(sema, number, bounds.start, span)
    condition = _range_condition(sema, bounds, number, span)
    if condition is None:
        return NOTHING
    bound: list[tuple[ast.Name, Operand]] = [(node.element, _frozen(number))]
    counter = _counter(sema, node)
    if counter is not None and node.index is not None:
        bound.append((node.index, _frozen(counter)))

    leaves = ("wraps",) if _leaves_type(sema, bounds, span) else ()

    def advance() -> None:
        _add(sema, number, sema.lower(bounds.step, span), span, leaves)
        if counter is not None:
            _add(sema, counter, ir.Constant(1, ir.Type.U16), span)

    return _emit_loop(sema, node, target, _Steps(condition, bound, advance))


def _frozen(lvalue: SlotLvalue) -> SlotLvalue:
    return SlotLvalue(lvalue.type, lvalue.slot, is_const=True)


def _counter(sema: Sema, node: ast.For) -> SlotLvalue | None:
    if node.index is None:
        return None
    counter = sema.new_slot(types.U16, node.index.text)
    lvalues.store(sema, counter, Comptime(types.U16, 0), node.span)
    return counter


def _add(
    sema: Sema, lvalue: SlotLvalue, amount: ir.Value, span: Span, names: tuple[str, ...] = ()
) -> None:
    old = sema.lower(lvalue, span)
    total = sema.emit("add", old, amount, type=old.type, names=names)
    sema.emit("set", total, names=(lvalue.slot,))


def _is_known(bounds: RangeValue) -> bool:
    return all(isinstance(one, Comptime) for one in (bounds.start, bounds.stop, bounds.step))


def _leaves_type(sema: Sema, bounds: RangeValue, span: Span) -> bool:
    """Whether the step behind the last number of a known range leads out of its type."""
    numbers = known_range(sema, bounds, span) if _is_known(bounds) else range(0)
    end = numbers[-1] + numbers.step if numbers else 0
    assert isinstance(bounds.element, Int)
    return wrapped(bounds.element, end) != end


def _range_condition(
    sema: Sema, bounds: RangeValue, number: SlotLvalue, span: Span
) -> Callable[[], ir.Value] | None:
    """Code that says whether the range goes on; None for a range that is known to be empty.

    With known bounds it compares with the number behind the last one, since a step beyond the type
    wraps around.
    """
    kind = bounds.element
    if _is_known(bounds):
        numbers = known_range(sema, bounds, span)
        if not numbers:
            return None
        end = ir.Constant(wrapped(kind, numbers[-1] + numbers.step), types.ir_type(kind))
        return lambda: sema.emit("ne", sema.lower(number, span), end, type=ir.Type.BOOL)
    stop = sema.lower(bounds.stop, span)
    step = bounds.step
    if isinstance(step, Comptime):
        assert isinstance(step.value, int)
        op = "lt" if step.value > 0 else "gt"
        return lambda: sema.emit(op, sema.lower(number, span), stop, type=ir.Type.BOOL)
    moved = sema.lower(step, span)
    zero = ir.Constant(0, moved.type)

    def condition() -> ir.Value:
        now = sema.lower(number, span)
        below = sema.emit("lt", now, stop, type=ir.Type.BOOL)
        above = sema.emit("gt", now, stop, type=ir.Type.BOOL)
        rises = sema.emit("gt", moved, zero, type=ir.Type.BOOL)
        falls = sema.emit("lt", moved, zero, type=ir.Type.BOOL)
        up = sema.emit("and", below, rises, type=ir.Type.BOOL)
        down = sema.emit("and", above, falls, type=ir.Type.BOOL)
        return sema.emit("or", up, down, type=ir.Type.BOOL)

    return condition


def _emit_array(sema: Sema, node: ast.For, iterable: Operand, target: Target) -> Operand:
    kind = iterable.type
    assert isinstance(kind, Array)
    span = node.iterable.span
    array = lvalues.in_memory(sema, iterable, span)
    counter = sema.new_slot(types.U16, "index")
    lvalues.store(sema, counter, Comptime(types.U16, 0), span)
    end = ir.Constant(kind.num_elements, ir.Type.U16)
    bound: list[tuple[ast.Name, Operand]] = []
    if node.index is not None:
        bound.append((node.index, _frozen(counter)))

    def condition() -> ir.Value:
        return sema.emit("lt", sema.lower(counter, span), end, type=ir.Type.BOOL)

    def element() -> None:
        lvalue = lvalues.indexed(sema, array, sema.lower(counter, span), kind.element)
        value = sema.load(lvalue, span)
        bound.append((node.element, _bound_value(sema, node.element.text, value, span)))

    def advance() -> None:
        _add(sema, counter, ir.Constant(1, ir.Type.U16), span)

    return _emit_loop(sema, node, target, _Steps(condition, bound, advance, element))


def _bound_value(sema: Sema, name: str, value: Loaded, span: Span) -> Operand:
    """A loop's element as a constant of its own."""
    if not isinstance(value, Runtime):
        return value
    slot = sema.new_slot(value.type, name)
    lvalues.store(sema, slot, value, span)
    return _frozen(slot)


@dataclass(frozen=True)
class _Steps:
    """Code of an emitted `for` around its body."""

    condition: Callable[[], ir.Value]
    names: list[tuple[ast.Name, Operand]]
    advance: Callable[[], None]
    begin: Callable[[], None] = lambda: None


def _emit_loop(sema: Sema, node: ast.For, target: Target, steps: _Steps) -> Operand:
    head, inside, target.exit = (sema.new_block(hint) for hint in ("for", "body", "exit"))
    sema.jump(head)
    sema.enter(head)
    sema.branch(steps.condition(), inside, target.exit)
    sema.enter(inside)
    steps.begin()
    with sema.under_runtime_control():
        _with_names(sema, node, steps.names)
    _next_iteration(sema, target)
    if sema.is_live:
        sema.set_place(node.span)
        steps.advance()
    sema.builder.close_loop(head)
    return _exit(sema, target)
