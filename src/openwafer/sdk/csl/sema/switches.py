"""`switch`: one prong of many, by an integer or an element of an enumeration."""

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.analysis import Result
from openwafer.sdk.csl.sema.control import body
from openwafer.sdk.csl.sema.join import arrive, join
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.types import Enum, Int, Type
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand
from openwafer.sdk.ir import function as ir
from openwafer.source import Span

Case = tuple[int, int, ast.Prong]
"""First and last value, and what they choose."""

_MAX_TABLE = 256


@evaluates(ast.Switch)
def _switch(sema: Sema, node: ast.Switch, expected: Type | None) -> Operand:
    operand = sema.expression(node.operand)
    kind = operand.type
    if not isinstance(kind, Int | Enum) and kind not in types.IDS | {types.BOOL, types.DIRECTION}:
        sema.fail(
            "switch-type",
            f"'switch' takes a fixed-width integer or an enum, got: '{kind}'",
            node.operand.span,
        )
    cases = _cases(sema, node, kind)
    otherwise = next((prong for prong in node.prongs if not prong.values), None)
    if otherwise is None:
        _check_exhaustive(sema, node, kind, cases)
    if isinstance(operand, Comptime):
        return _known(sema, sema.defined(operand, node.operand.span), cases, otherwise, expected)
    return _emit(sema, node, sema.lower(operand, node.operand.span), cases, expected)


def _cases(sema: Sema, node: ast.Switch, kind: Type) -> list[Case]:
    cases: list[Case] = []
    for prong in node.prongs:
        for written in prong.values:
            if isinstance(written, ast.CaseRange):
                first = _case_value(sema, written.first, kind)
                last = _case_value(sema, written.last, kind)
                if first > last:
                    message = f"the range {first}...{last} holds no value"
                    help = "a range goes from its lowest value to its highest, which belongs to it"
                    sema.fail("empty-range", message, written.span, help=help)
            else:
                first = last = _case_value(sema, written, kind)
            for begin, end, _ in cases:
                if begin <= last and first <= end:
                    sema.fail(
                        "duplicate-case",
                        f"case value {max(begin, first)} appears twice",
                        written.span,
                    )
            cases.append((first, last, prong))
    return cases


def _case_value(sema: Sema, node: ast.Expression, kind: Type) -> int:
    value = sema.comptime_value(node, kind).value
    assert isinstance(value, int)
    return int(value)


def _check_exhaustive(sema: Sema, node: ast.Switch, kind: Type, cases: list[Case]) -> None:
    covered = sum(last - first + 1 for first, last, _ in cases)
    if isinstance(kind, Enum):
        missing = [n for n, v in kind.elements if not any(a <= v <= b for a, b, _ in cases)]
    elif kind == types.BOOL:
        missing = [] if covered == 2 else ["true or false"]
    elif isinstance(kind, Int):
        missing = [] if covered == kind.highest - kind.lowest + 1 else ["some values"]
    else:
        missing = ["some values"]
    if missing:
        sema.fail(
            "switch-missing",
            f"not all possible '{kind}' values are covered",
            _head(node),
            notes=(f"missing: {', '.join(missing)}",),
            help="add an 'else' branch",
        )


def _head(node: ast.Switch) -> Span:
    return Span(node.span.source, node.span.start, node.operand.span.end)


def _known(
    sema: Sema,
    operand: Comptime,
    cases: list[Case],
    otherwise: ast.Prong | None,
    expected: Type | None,
) -> Operand:
    value = operand.value
    assert isinstance(value, int)
    chosen = next((prong for first, last, prong in cases if first <= value <= last), otherwise)
    return NOTHING if chosen is None else body(sema, chosen.body, expected)


def _emit(
    sema: Sema,
    node: ast.Switch,
    value: ir.Value,
    cases: list[Case],
    expected: Type | None,
) -> Operand:
    blocks = {id(prong): sema.new_block("case") for prong in node.prongs}
    default = next((blocks[id(p)] for p in node.prongs if not p.values), None)
    last = default or sema.new_block("never")
    table: list[tuple[int, str]] = []
    for first, end, prong in cases:
        target = blocks[id(prong)]
        if end - first < _MAX_TABLE:
            table += ((number, target.label) for number in range(first, end + 1))
        else:
            _test_range(sema, value, first, end, target)
    constants = [ir.Constant(number, value.type) for number, _ in table]
    sema.emit("switch", value, *constants, names=(last.label, *(label for _, label in table)))
    if default is None:
        sema.enter(last)
        sema.emit("unreachable")
    results: list[Result] = []
    for prong in node.prongs:
        sema.enter(blocks[id(prong)])
        with sema.under_runtime_control():
            arrive(sema, results, body(sema, prong.body, expected), prong.span)
    return join(sema, results, expected, node.span)


def _test_range(sema: Sema, value: ir.Value, first: int, end: int, target: ir.Block) -> None:
    above, outside = sema.new_block("range"), sema.new_block("outside")
    kind = value.type
    low = sema.emit("ge", value, ir.Constant(first, kind), type=ir.Type.BOOL)
    sema.branch(low, above, outside)
    sema.enter(above)
    high = sema.emit("le", value, ir.Constant(end, kind), type=ir.Type.BOOL)
    sema.branch(high, target, outside)
    sema.enter(outside)
