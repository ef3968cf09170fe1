"""Loops at compile time whose iterations are noted once, and then run as Python.

The first iterations are evaluated as they come. Then one is evaluated with numbers that note what
is done with them (:mod:`openwafer.sdk.csl.symbolic`), and gives a path: a straight piece of Python
with guards. The paths of a loop make a tree, which is compiled; where an iteration leaves it at a
guard, it is put back to its beginning and evaluated, and noted as a new path. So an error, a
warning or a limit is told by the evaluation itself, in the iteration in which it happens.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.lanes import settled
from openwafer.sdk.csl.sema.analysis import Scope
from openwafer.sdk.csl.sema.cell_path import CellPath, plain
from openwafer.sdk.csl.sema.join import Leaving, Returning
from openwafer.sdk.csl.sema.path_tree import (
    ENDED,
    ENDLESS,
    LEFT,
    Departure,
    Leaf,
    Log,
    Tree,
    undo,
)
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.symbolic import Run, Symbolic, symbolic_of
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import UNDEFINED, Cell, CellLvalue, Comptime

Turn = Callable[[Any, Any], bool]
"""Evaluates an iteration, of an element and a number; False where the loop has ended."""

_MOST_UNROLLED: Final = 8
_LONGEST_RUN: Final = 2000
"""Steps of a loop inside, beyond which the time around it does not count."""


class _Loop:
    """One run of a loop."""

    def __init__(
        self, sema: Sema, node: ast.Node, kind: Type | None, elements: Sequence[Any] | None
    ) -> None:
        self._sema = sema
        self.elements = elements
        context = sema.context
        key = (id(node), id(sema.module), kind, context.return_type, context.runtime_depth)
        self._trees: list[Tree] = sema.trees.setdefault(key, [])
        self.tree = self._fitting()
        self.count = ENDLESS if elements is None else len(elements)

    def _fitting(self) -> Tree:
        """The tree for the types that the variables around have now."""
        found = next((tree for tree in self._trees if self._fits(tree)), None)
        if found is None:
            found = Tree()
            self._trees.append(found)
        return found

    def _fits(self, tree: Tree) -> bool:
        cells = [self._cell(name) for name in tree.cells]
        return all(cell.type == kind for cell, kind in tree.baked.items()) and all(
            cell is not None and (cell.type, cell.is_const) == known and cell not in tree.baked
            for cell, known in zip(cells, tree.cells.values(), strict=True)
        )

    def _cell(self, name: str) -> Cell | None:
        scope = self._sema.context.scope.find(name)
        lvalue = None if scope is None else scope.names[name]
        return lvalue.cell if isinstance(lvalue, CellLvalue) and not lvalue.path else None

    def _cells(self) -> list[Cell]:
        cells = map(self._cell, self.tree.cells)
        return [cell for cell in cells if cell is not None]

    def _bound(self) -> int | None:
        """How many steps there may be before an iteration; None where it has to be evaluated."""
        sema, tree = self._sema, self.tree
        most = tree.all_steps()
        bound = sema.num_steps + sema.steps_ahead() - most
        is_deep = sema.call_depth + most >= sema.options.comptime_func_depth_limit
        if tree.run is None or is_deep or bound < sema.num_steps:
            return None
        tree.ask(sema)
        return bound

    def advance(self, k: int) -> tuple[int, int]:
        """Run iterations from number `k` on; the number of the next one, and how it came to it."""
        if not self._fits(self.tree):
            # An iteration gave a variable another type.
            self.tree = self._fitting()
        bound = None if self.tree.run is None else self._bound()
        if bound is None or self.tree.run is None:
            return k, LEFT
        cells = self._cells()
        k, ending, value = self.tree.run(self._sema, k, self.count, self.elements, bound, *cells)
        if ending < ENDED:
            self._depart(ending, value)
        return k, ending

    def _depart(self, ending: int, value: Any) -> None:
        target, kind = self.tree.departures[ENDED - 1 - ending]
        operand = Comptime(kind, value)
        if target is None:
            raise Returning(operand)
        raise Leaving(self._sema.context.targets[target], operand)

    def follow(self, turn: Turn, k: int, exit_number: int) -> bool:
        """Evaluate an iteration, and note it where that is due."""
        self.tree.num_turns += 1
        if self.tree.wants_path(exit_number):
            return self._noted(turn, k)
        return turn(None if self.elements is None else self.elements[k], k)

    def _noted(self, turn: Turn, k: int) -> bool:
        sema = self._sema
        path = sema.path = CellPath(sema, self.tree, self.tree.constants, self._names())
        begin = sema.num_steps
        leaf: Leaf | None = None
        try:
            element = None if self.elements is None else path.element(self.elements[k])
            goes_on = turn(element, path.index(k))
            leaf = Leaf(sema.num_steps - begin - path.num_run, None if goes_on else ENDED)
        except (Leaving, Returning) as leaving:
            leaf = self._departing(path, leaving, sema.num_steps - begin - path.num_run)
            leaving.operand = settled(leaving.operand)
            raise
        finally:
            self.tree.add(path, leaf)
            path.lose()
        return goes_on

    def _departing(
        self, path: CellPath, leaving: Leaving | Returning, num_steps: int
    ) -> Leaf | None:
        targets = self._sema.context.targets
        target = None
        if isinstance(leaving, Leaving):
            target = next(i for i, one in enumerate(targets) if one is leaving.target)
        operand = leaving.operand
        value = operand.value if isinstance(operand, Comptime) else UNDEFINED
        if type(value) not in (int, float, bool, Symbolic, type(None)) or not path.is_open:
            return None
        number = self.tree.departure(Departure(target, operand.type))
        return Leaf(num_steps, number, "None" if value is None else path.spelled(value))

    def _names(self) -> dict[int, str]:
        """Names of the variables around the loop, by their identity."""
        names: dict[int, str] = {}
        scope: Scope | None = self._sema.context.scope
        while scope is not None:
            for name, lvalue in scope.names.items():
                if isinstance(lvalue, CellLvalue):
                    is_found = self._cell(name) is lvalue.cell and name.isascii()
                    names.setdefault(id(lvalue.cell), name if is_found else "")
            scope = scope.parent
        return names

    def run_inside(self, path: CellPath) -> bool:
        """Note the whole run of a loop inside of the iteration that is noted; False if none was."""
        tree, cells, bound = self.tree, self._cells(), self._bound()
        lent = [path.lend(cell) for cell in cells]
        for cell in tree.baked:
            path.settle(cell)
        if bound is None or path.tree in list(tree.all()) or not path.is_open:
            path.lose()
            return False
        begin = self._sema.num_steps
        ending, value = self._run(cells, bound)
        if ending > ENDED:
            path.lose()
            return False
        path.num_run += self._sema.num_steps - begin
        if self._sema.num_steps - begin > _LONGEST_RUN:
            path.lose()
        given = ", ".join(("sema", path.sequence(self.elements), "bound", "log", *lent))
        name = path.new_name()
        path.note(Run(name, f"{path.constants.name(tree.call())}({given})"))
        path.inner.append(tree)
        found = path.read(f"{name}[0]", ending)
        for number in range(ENDED, ending - 1, -1):
            path.guard(f"{found.name} == {number}", number == ending)
        for cell, one in (*zip(cells, lent, strict=True), *((cell, "") for cell in tree.baked)):
            path.returned(cell, one)
        if ending < ENDED:
            self._depart(ending, value if value is None else path.taken(f"{name}[1]", value))
        return True

    def _run(self, cells: list[Cell], bound: int) -> tuple[int, Any]:
        """Run the loop to its end, or not at all."""
        sema, log = self._sema, Log()
        contents, begin = [cell.content for cell in cells], sema.num_steps
        for cell in cells:
            cell.content = plain(cell.content) if type(cell.content) is Symbolic else cell.content
        ending, value = self.tree.call()(sema, plain(self.elements), bound, log, *cells)
        if ending > ENDED:
            undo(log)
            sema.num_steps = begin
        for cell, content in zip(cells, contents, strict=True):
            if ending > ENDED or cell.is_const:
                cell.content = content
        return ending, value


def _is_run_inside(path: CellPath, loop: _Loop) -> bool:
    """Whether a loop in the iteration that is noted was run; a short one is unrolled."""
    if loop.count > _MOST_UNROLLED:
        return loop.run_inside(path)
    symbolic = symbolic_of(loop.elements)
    if symbolic is not None:
        path.guard(f"len({symbolic.name}) == {loop.count}", True)
    return False


def follow_each(
    sema: Sema, node: ast.Node, kind: Type | None, elements: Sequence[Any] | None, turn: Turn
) -> None:
    """Follow a loop at compile time, iteration by iteration.

    Args:
        node: the loop.
        kind: type of the elements.
        elements: that it goes over; None where only its own condition ends it.
        turn: evaluates an iteration.
    """
    loop: _Loop | None = None
    if sema.path is not None and _is_run_inside(sema.path, _Loop(sema, node, kind, elements)):
        return
    if sema.path is None and symbolic_of(elements) is not None:
        elements = plain(elements)
    count = ENDLESS if elements is None else len(elements)
    k = 0
    while k < count:
        exit_number = LEFT
        if not sema.is_comptime or sema.num_lane_loops or sema.path is not None:
            goes_on = turn(None if elements is None else elements[k], k)
        else:
            loop = loop or _Loop(sema, node, kind, elements)
            k, exit_number = loop.advance(k)
            if exit_number == ENDED or k >= count:
                return
            goes_on = loop.follow(turn, k, exit_number)
        if not goes_on:
            return
        k += 1
