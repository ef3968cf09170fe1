"""Loops at compile time whose iterations are noted once, and then run as Python.

The first iterations are evaluated as they come. Then one is evaluated with numbers that note what is
done with them (:mod:`openwafer.sdk.csl.symbolic`), and gives a path: a straight piece of Python with
guards. The paths of a loop make a tree, which is compiled; where an iteration leaves it at a guard,
it is put back to its beginning and evaluated, and noted as a new path. So an error, a warning or a
limit is told by the evaluation itself, in the iteration in which it happens.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.lanes import settled
from openwafer.sdk.csl.sema.cell_path import CellPath
from openwafer.sdk.csl.sema.engine import Sema
from openwafer.sdk.csl.sema.join import Leaving, Returning
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.symbolic import Constants, Event, Guard, Put, Step, Write
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Cell, CellPlace

Turn = Callable[[Any, Any], bool]
"""Evaluates an iteration, of an element and a number; False where the loop has ended."""

_ENDLESS: Final = 1 << 62
_FIRST_NOTED: Final = 3
_MOST_PATHS: Final = 64
_MOST_FAILURES: Final = 6
_MOST_FORKS: Final = 60
_NAME: Final = re.compile(r"t\d+")
_ENDED: Final = -2


@dataclass(eq=False)
class _Node:
    """What is done before a guard, and where each outcome leads to.

    Attributes:
        num_steps: of an iteration that ends here; None where a guard follows.
        num_misses: iterations that came with an outcome that leads nowhere.
    """

    events: list[Event] = field(default_factory=list)
    guard: str | None = None
    ways: "dict[bool, _Node]" = field(default_factory=dict)
    num_steps: int | None = None
    is_last: bool = False
    num_misses: int = 0


class _Tree:
    """The paths that a loop's iterations have taken, with the same types of the variables around."""

    def __init__(self) -> None:
        self.constants = Constants()
        self.cells: dict[str, tuple[Type, bool]] = {}
        self.questions: list[Question] = []
        self.is_lonely = False
        self.num_turns = 0
        self.most_steps = 0
        self.run: Callable[..., tuple[int, int]] | None = None
        self._root = _Node()
        self._num_paths = 0
        self._num_failures = 0
        self._left: list[_Node] = []

    def wants_path(self, exit_number: int) -> bool:
        """Whether the next iteration should be noted, which left by an exit."""
        if self._num_failures > _MOST_FAILURES or self._num_paths > _MOST_PATHS:
            return False
        if self.run is None:
            return self.num_turns >= _FIRST_NOTED
        if exit_number < 0:
            return False
        self._left[exit_number].num_misses += 1
        return self._left[exit_number].num_misses > 1

    def add(self, path: CellPath, num_steps: int, *, is_last: bool) -> None:
        """Keep a path, unless it has been lost; one that has other beginnings replaces all."""
        if path.is_open:
            path.end()
        if not path.is_open:
            self._num_failures += 1
            return
        if not self._insert(path, num_steps, is_last=is_last):
            self._num_failures += 1
            self._root, self._num_paths = _Node(), 0
            self._insert(path, num_steps, is_last=is_last)
        self._num_paths += 1
        self.most_steps = max(self.most_steps, num_steps)
        self.cells.update({name: (c.type, c.is_const) for name, c in path.used.items()})
        self.questions.extend(one for one in path.questions if one not in self.questions)
        self.is_lonely |= path.is_lonely
        self._compile()

    def fails(self) -> None:
        """Count an iteration that was noted in vain."""
        self._num_failures += 1

    def _insert(self, path: CellPath, num_steps: int, *, is_last: bool) -> bool:
        node, waiting, num_forks = self._root, [], 0
        for event in path.events:
            if not isinstance(event, Guard):
                waiting.append(event)
                continue
            is_new = node.guard is None and node.num_steps is None
            if is_new:
                node.events, node.guard = waiting, event.code
            elif node.events != waiting or node.guard != event.code:
                return False
            num_forks += event.outcome not in node.ways and bool(node.ways)
            node, waiting = node.ways.setdefault(event.outcome, _Node()), []
            num_forks += len(node.ways) > 1
        if num_forks > _MOST_FORKS or node.guard is not None:
            return False
        node.events, node.num_steps, node.is_last = waiting, num_steps, is_last
        return True

    def _compile(self) -> None:
        self._left = []
        lines = [
            f"def run(sema, k, count, elements, bound{''.join(f', cell_{n}' for n in self.cells)}):",
            " steps = sema.num_steps",
            " while k < count and steps <= bound:",
            *_lines(self._root, self._left, _used_names(self._root)),
            " sema.num_steps = steps",
            " return k, -1",
        ]
        names = dict(self.constants.by_name)
        exec(compile("\n".join(lines), "<iterations>", "exec"), names)  # noqa: S102
        self.run = names["run"]


def _used_names(root: _Node) -> set[str]:
    """Names whose values anything depends on."""
    used: set[str] = set()
    waiting, nodes = [root], []
    while waiting:
        nodes.append(waiting.pop())
        waiting.extend(nodes[-1].ways.values())
    for node in reversed(nodes):
        used.update(_NAME.findall(node.guard or ""))
        for event in reversed(node.events):
            if not isinstance(event, Step):
                used.update(_NAME.findall(" ".join(event)))
            elif event.name in used:
                used.update(_NAME.findall(event.code))
    return used


def _lines(
    node: _Node, left: list[_Node], used: set[str], undo: tuple[str, ...] = (), depth: int = 2
) -> Iterator[str]:
    """Python of a node and what follows it."""
    while True:
        pad = " " * depth
        for event in node.events:
            match event:
                case Step(name, code) if name in used:
                    yield f"{pad}{name} = {code}"
                case Put(owner, index, value, old):
                    if old:
                        yield f"{pad}{old} = {owner}[{index}]"
                        undo = (f"{owner}[{index}] = {old}", *undo)
                    yield f"{pad}{owner}[{index}] = {value}"
                case Write(cell, value):
                    yield f"{pad}{cell}.content = {value}"
                case _:
                    pass
        if node.num_steps is not None:
            yield f"{pad}steps += {node.num_steps}"
            yield f"{pad}k += 1"
            if node.is_last:
                yield f"{pad}sema.num_steps = steps"
                yield f"{pad}return k, {_ENDED}"
            return
        if len(node.ways) > 1:
            yield f"{pad}if {node.guard}:"
            yield from _lines(node.ways[True], left, used, undo, depth + 1)
            yield f"{pad}else:"
            yield from _lines(node.ways[False], left, used, undo, depth + 1)
            return
        ((outcome, following),) = node.ways.items()
        yield f"{pad}if not ({node.guard}):" if outcome else f"{pad}if {node.guard}:"
        yield from (f"{pad} {line}" for line in (*undo, "sema.num_steps = steps"))
        yield f"{pad} return k, {len(left)}"
        left.append(node)
        node = following


class _Loop:
    """One run of a loop."""

    def __init__(self, sema: Sema, node: ast.Node, kind: Type | None) -> None:
        self._sema = sema
        context = sema.context
        key = (id(node), id(sema.module), kind, context.return_type, context.runtime_depth)
        self._trees = sema.trees.setdefault(key, [])
        self._tree = next((tree for tree in self._trees if self._fits(tree)), None)
        if self._tree is None:
            self._tree = _Tree()
            self._trees.append(self._tree)

    def _fits(self, tree: _Tree) -> bool:
        return all(
            (cell.type, cell.is_const) == tree.cells[name]
            for name, cell in zip(tree.cells, self._cells(tree), strict=True)
            if cell is not None
        ) and None not in self._cells(tree)

    def _cells(self, tree: _Tree) -> list[Cell | None]:
        found: list[Cell | None] = []
        for name in tree.cells:
            scope = self._sema.context.scope.find(name)
            place = None if scope is None else scope.names[name]
            is_whole = isinstance(place, CellPlace) and not place.path
            found.append(place.cell if is_whole and isinstance(place, CellPlace) else None)
        return found

    def advance(self, elements: Sequence[Any] | None, k: int, count: int) -> tuple[int, int]:
        """Run iterations from number `k` on; the number of the next one, and why it is not run."""
        sema, tree = self._sema, self._tree
        assert tree is not None
        if tree.run is None:
            return k, -1
        bound = sema.num_steps + sema.steps_ahead() - tree.most_steps
        is_deep = sema.call_depth + tree.most_steps >= sema.options.comptime_func_depth_limit
        if is_deep or bound < sema.num_steps:
            return k, -1
        if tree.is_lonely:
            sema.recording = None
        if sema.recording is not None:
            for question in tree.questions:
                sema.ask(question)
        return tree.run(sema, k, count, elements, bound, *self._cells(tree))

    def follow(self, turn: Turn, element: Any, k: int, exit_number: int) -> bool:
        """Evaluate an iteration, and note it where that is due."""
        tree = self._tree
        assert tree is not None
        tree.num_turns += 1
        if not tree.wants_path(exit_number):
            return turn(element, k)
        sema = self._sema
        path = CellPath(sema, tree.constants, self._names())
        begin = sema.num_steps
        sema.path = path
        try:
            goes_on = turn(None if element is None else path.element(element), path.index(k))
        except (Leaving, Returning) as leaving:
            leaving.operand = settled(leaving.operand)
            raise
        finally:
            sema.path = None
            if not path.is_open:
                tree.fails()
        if path.is_open:
            tree.add(path, sema.num_steps - begin, is_last=not goes_on)
            path.is_open = False
        return goes_on

    def _names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        seen: set[str] = set()
        scope = self._sema.context.scope
        while scope is not None:
            for name, place in scope.names.items():
                if name not in seen and isinstance(place, CellPlace) and not place.path:
                    names.setdefault(id(place.cell), name)
                seen.add(name)
            scope = scope.parent
        return names


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
    count = _ENDLESS if elements is None else len(elements)
    loop: _Loop | None = None
    k = 0
    while k < count:
        exit_number = -1
        if sema.is_comptime and sema.path is None and not sema.num_together:
            loop = loop or _Loop(sema, node, kind)
            k, exit_number = loop.advance(elements, k, count)
            if exit_number == _ENDED or k >= count:
                return
        element = None if elements is None else elements[k]
        if loop is None or sema.path is not None:
            goes_on = turn(element, k)
        else:
            goes_on = loop.follow(turn, element, k, exit_number)
        if not goes_on:
            return
        k += 1
