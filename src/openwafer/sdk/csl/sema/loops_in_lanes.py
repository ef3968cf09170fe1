"""Loops of the layout block whose iterations are followed at once, as lanes of a group.

The layout is told what the lanes do to it when the outermost such loop ends: only then it is known
which of them went the same way to the end. What must come in order, or carries something from one
iteration to the next, raises :class:`Separately`. The loop is then followed iteration by iteration;
so is a loop whose body fails, because its errors come in order, too.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.analysis import Separately
from openwafer.sdk.csl.sema.join import Leaving, Returning
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import CellLvalue

_MOST_LANES: Final = 1 << 23
_MOST_ITERATIONS: Final = 1 << 20
_PLAIN: Final = (ast.Identifier, ast.IntLiteral, ast.Binary, ast.Unary)


def follow_in_lanes(
    sema: Sema, node: ast.Node, numbers: Sequence[int], iterate: Callable[[Lanes], None]
) -> bool:
    """Follow all iterations of a loop at once; False when nothing happened and it must be walked.

    Args:
        node: the loop.
        numbers: of its iterations.
        iterate: follows the body with such a number; called once for each way through it.
    """
    layout, group = sema.layout, sema.group
    if layout is None or sema.path or id(node) in layout.walked or len(numbers) < 2:
        return False
    outer = group.active
    own = np.array(numbers, np.int64).reshape(-1, *(1 for _ in outer.shape))
    left = np.broadcast_to(outer, (len(numbers), *outer.shape)).copy()
    if left.size > _MOST_LANES:
        return False
    mark = len(layout.deferred)
    if not sema.num_lane_loops:
        # Functions may read what was stored since the last loop.
        layout.calls.results.clear()
    sema.num_lane_loops += 1
    try:
        while left.any():
            group.active, begin = left.copy(), len(layout.deferred)
            iterate(Lanes(group, own))
            layout.narrow(begin, group.active)
            left &= ~group.active
        if sema.num_lane_loops == 1:
            layout.settle()
    except (Separately, Leaving, Returning, OpenwaferError):
        del layout.deferred[mark:]
        layout.walked.add(id(node))
        return False
    finally:
        sema.num_lane_loops -= 1
        group.active = outer
    return True


def follow_counted(sema: Sema, node: ast.While, iterate: Callable[[], None]) -> bool:
    """The same for a `while` that counts a variable and does nothing else to it."""
    lvalue = _counter(sema, node)
    if lvalue is None:
        return False
    cell = lvalue.cell
    start = cell.content
    numbers = _counted(sema, node, lvalue)
    end = cell.content

    def follow(number: Lanes) -> None:
        cell.content = number
        iterate()

    is_done = bool(numbers) and follow_in_lanes(sema, node, numbers, follow)
    cell.content = end if is_done else start
    return is_done


def _counter(sema: Sema, node: ast.While) -> CellLvalue | None:
    """The variable that a loop counts, when its condition and step are simple enough."""
    layout, step = sema.layout, node.step
    if layout is None or sema.path or not isinstance(step, ast.Assign):
        return None
    if id(node) in layout.walked:
        return None
    if not (isinstance(step.target, ast.Identifier) and _is_plain(node.condition)):
        return None
    lvalue = sema.lvalue(step.target) if _is_plain(step.value) else None
    is_number = isinstance(lvalue, CellLvalue) and not lvalue.path and types.is_int(lvalue.type)
    return lvalue if is_number and isinstance(lvalue, CellLvalue) else None


def _is_plain(node: ast.Node) -> bool:
    """Whether an expression only computes."""
    match node:
        case ast.Binary():
            return _is_plain(node.left) and _is_plain(node.right)
        case ast.Unary():
            return _is_plain(node.operand)
        case _:
            return isinstance(node, _PLAIN)


def _counted(sema: Sema, node: ast.While, lvalue: CellLvalue) -> list[int]:
    """The numbers of the iterations; none when there are too many of them."""
    assert node.step is not None
    numbers: list[int] = []
    while sema.known(sema.typed(node.condition, types.BOOL), node.condition.span).value:
        if len(numbers) == _MOST_ITERATIONS or not isinstance(lvalue.cell.content, int):
            return []
        sema.spend_step(node.span)
        numbers.append(int(lvalue.cell.content))
        sema.evaluate(node.step, types.VOID)
    return numbers
