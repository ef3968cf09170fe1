"""The paths of a loop's iterations as a tree, and the tree as Python."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from openwafer.sdk.csl.sema.cell_path import CellPath
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.symbolic import Constants, Event, Flush, Guard, Put, Run, Step, Write
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Cell

LEFT: Final = -1
"""A run that has to be evaluated from here on has this number, or that of an exit."""
ENDED: Final = -2
"""The loop has ended; smaller numbers are those of departures."""
ENDLESS: Final = 1 << 62
"""More iterations than any loop has."""
FIRST_NOTED: Final = 24
"""Iterations that are evaluated first: noting one, and compiling it, takes as long as these."""
FIRST_MISSES: Final = 8
"""The same for those that leave at a guard."""
_MOST_PATHS: Final = 64
_MOST_FAILURES: Final = 20
_NAME: Final = re.compile(r"t\d+")

Log = list[tuple[Any, Any, Any]]
"""What was there before it was overwritten: an owner, an index or None, and the old content."""


def undo(log: Log) -> None:
    """Put everything back."""
    while log:
        owner, index, old = log.pop()
        if index is None:
            owner.content = old
        else:
            owner[index] = old


class Departure(NamedTuple):
    """A way out of a loop with a value: to the target of a number, or by a `return`."""

    target: int | None
    type: Type


class Leaf(NamedTuple):
    """Where an iteration is over.

    Attributes:
        num_steps: that it spends, aside from loops inside that are run.
        ending: None where the loop goes on.
        value: that a departure takes along, in Python.
    """

    num_steps: int
    ending: int | None
    value: str = "None"


@dataclass(eq=False)
class Node:
    """What is done before a guard, and where each outcome leads to.

    Attributes:
        num_misses: iterations that came with an outcome that leads nowhere.
    """

    events: list[Event] = field(default_factory=list)
    guard: str | None = None
    ways: "dict[bool, Node]" = field(default_factory=dict)
    leaf: Leaf | None = None
    num_misses: int = 0


class Tree:
    """The paths that a loop's iterations have taken, with the same types of the variables around.

    Attributes:
        cells: type of each variable around that the paths have to do with, and whether it is const.
        baked: variables that the paths, or those of loops inside, know by themselves: at the top of
            a file, or pointed to; with their types.
        departures: ways out of the loop with a value.
        inner: trees of loops that the paths run.
        questions: that the iterations ask the image; `is_lonely`: they look at it without one, too.
        most_steps: that an iteration spends, aside from those loops.
        run: the compiled tree; None before there is a path.
    """

    def __init__(self) -> None:
        self.constants = Constants()
        self.cells: dict[str, tuple[Type, bool]] = {}
        self.baked: dict[Cell, Type] = {}
        self.departures: list[Departure] = []
        self.inner: list[Tree] = []
        self.num_turns = self.most_steps = 0
        self.run: Callable[..., tuple[int, int, Any]] | None = None
        self._nested: Callable[..., tuple[int, int, Any]] | None = None
        self.questions: list[Question] = []
        self.is_lonely = False
        self._calls: dict[tuple[int, int], Call] = {}
        self._root = Node()
        self._left: list[Node] = []
        self._num_paths = self._num_failures = 0

    def all(self) -> "Iterator[Tree]":
        """This tree, and those of the loops that its paths run."""
        yield self
        for tree in self.inner:
            yield from tree.all()

    def all_steps(self) -> int:
        """A bound of the steps that are spent in a row without a look at the limit."""
        return self.most_steps + max((tree.all_steps() for tree in self.inner), default=0)

    def ask(self, sema: Any) -> None:
        """Ask what the iterations that are not evaluated would have asked."""
        for tree in self.all():
            if tree.is_lonely:
                sema.recording = None
            for question in tree.questions if sema.recording is not None else ():
                sema.ask(question)

    def wants_path(self, exit_number: int) -> bool:
        """Whether the next iteration should be noted, which left by an exit."""
        if self._num_failures > _MOST_FAILURES or self._num_paths > _MOST_PATHS:
            return False
        if self.run is None:
            return self.num_turns >= FIRST_NOTED
        if exit_number < 0:
            return False
        self._left[exit_number].num_misses += 1
        return self._left[exit_number].num_misses >= FIRST_MISSES

    def departure(self, found: Departure) -> int:
        """The number of a way out."""
        if found not in self.departures:
            self.departures.append(found)
        return ENDED - 1 - self.departures.index(found)

    def add(self, path: CellPath, leaf: Leaf | None) -> None:
        """Keep a path, unless it is lost; one that has another beginning replaces all others."""
        if leaf is not None and path.is_open:
            path.end()
        if leaf is None or not path.is_open:
            self._num_failures += 1
            return
        if not self._insert(path, leaf):
            self._num_failures += 1
            self._root, self._num_paths = Node(), 0
            self._insert(path, leaf)
        self._num_paths += 1
        self.most_steps = max(self.most_steps, leaf.num_steps)
        self.cells.update({name: (c.type, c.is_const) for name, c in path.used.items()})
        self.inner.extend(tree for tree in path.inner if tree not in self.inner)
        known = (one for one in self.constants.by_name.values() if isinstance(one, Cell))
        self.baked = {one: one.type for one in known}
        for tree in self.inner:
            self.baked.update(tree.baked)
        self.questions.extend(one for one in path.questions if one not in self.questions)
        self.is_lonely |= path.is_lonely
        self._left = []
        self._nested = None
        self.run = self._compiled(self._left, is_nested=False)

    def _insert(self, path: CellPath, leaf: Leaf) -> bool:
        node = self._root
        waiting: list[Event] = []
        for event in path.events:
            if not isinstance(event, Guard):
                waiting.append(event)
                continue
            if node.guard is None and node.leaf is None:
                node.events, node.guard = waiting, event.code
            elif node.events != waiting or node.guard != event.code:
                return False
            node, waiting = node.ways.setdefault(event.outcome, Node()), []
        if node.guard is not None:
            return False
        node.events, node.leaf = waiting, leaf
        return True

    def call(self) -> "Call":
        """What runs the loop inside of another one's iteration."""
        shape = len(self.cells), len(self.baked)
        return self._calls.setdefault(shape, Call(self, shape))

    def nested(self) -> Callable[..., tuple[int, int, Any]]:
        """The compiled tree, all of whose effects go into a log."""
        if self._nested is None:
            self._nested = self._compiled([], is_nested=True)
        return self._nested

    def _compiled(self, left: list[Node], *, is_nested: bool) -> Callable[..., Any]:
        code = _Code(self._root, left, is_nested=is_nested, has_log=is_nested or bool(self.inner))
        text = "\n".join(code.lines([f"cell_{name}" for name in self.cells]))
        names = {**self.constants.by_name, "undo": undo}
        exec(compile(text, "<iterations>", "exec"), names)
        run: Callable[..., Any] = names["run"]
        return run


class Call:
    """Runs a loop to its end from inside of another one's iteration, or says that it cannot."""

    def __init__(self, tree: Tree, shape: tuple[int, int]) -> None:
        self._tree = tree
        self._shape = shape

    def __call__(
        self, sema: Any, elements: Any, bound: int, log: Log, *cells: Any
    ) -> tuple[int, Any]:
        tree = self._tree
        if (len(tree.cells), len(tree.baked)) != self._shape:
            return LEFT, None
        count = ENDLESS if elements is None else len(elements)
        most = bound - tree.most_steps
        k, ending, value = tree.nested()(sema, 0, count, elements, most, log, *cells)
        return ENDED if ending == LEFT and k >= count else ending, value


class _Code:
    """Writes a tree as a Python function."""

    def __init__(self, root: Node, left: list[Node], *, is_nested: bool, has_log: bool) -> None:
        self._root = root
        self._left = left
        self._is_nested = is_nested
        self._has_log = has_log
        self._nodes = [root]
        for node in self._nodes:
            self._nodes.extend(node.ways.values())
        self._idle = set(self._idle_steps())

    def lines(self, cells: list[str]) -> Iterator[str]:
        """The function."""
        given = ["log", *cells] if self._is_nested else cells
        yield f"def run({', '.join(('sema', 'k', 'count', 'elements', 'bound', *given))}):"
        yield " steps = sema.num_steps"
        if self._is_nested:
            written = {e.cell for n in self._nodes for e in n.events if isinstance(e, Write)}
            yield from (f" log.append(({one}, None, {one}.content))" for one in sorted(written))
        elif self._has_log:
            yield " log = []"
        yield " while k < count and steps <= bound:"
        if self._has_log and not self._is_nested:
            yield "  begin = steps"
            yield "  log.clear()"
        yield from self._lines(self._root, (), 2)
        yield " sema.num_steps = steps"
        yield f" return k, {LEFT}, None"

    def _idle_steps(self) -> Iterator[int]:
        """Identities of the steps whose values nothing depends on."""
        used: set[str] = set()
        for node in reversed(self._nodes):
            used.update(_NAME.findall(node.guard or ""))
            if node.leaf is not None:
                used.update(_NAME.findall(node.leaf.value))
            for event in reversed(node.events):
                if isinstance(event, Step) and event.name not in used:
                    yield id(event)
                else:
                    used.update(_NAME.findall(" ".join(map(str, event))))

    def _lines(self, node: Node, undone: tuple[str, ...], depth: int) -> Iterator[str]:
        """A node and what follows it; `undone` takes back what was done before."""
        while True:
            pad = " " * depth
            for event in node.events:
                if id(event) not in self._idle:
                    yield from (f"{pad}{line}" for line in self._event(event))
                if isinstance(event, Put) and event.old:
                    undone = (f"{event.owner}[{event.key}] = {event.old}", *undone)
            if node.leaf is not None:
                yield from (f"{pad}{line}" for line in _leaf(node.leaf))
                return
            if len(node.ways) > 1:
                yield f"{pad}if {node.guard}:"
                yield from self._lines(node.ways[True], undone, depth + 1)
                yield f"{pad}else:"
                yield from self._lines(node.ways[False], undone, depth + 1)
                return
            ((outcome, following),) = node.ways.items()
            yield f"{pad}if not ({node.guard}):" if outcome else f"{pad}if {node.guard}:"
            yield from (f"{pad} {line}" for line in self._exit(undone))
            self._left.append(node)
            node = following

    def _event(self, event: Event) -> Iterator[str]:
        match event:
            case Step(name, code):
                yield f"{name} = {code}"
            case Put(owner, index, value, old):
                if old and self._has_log:
                    yield f"log.append(({owner}, {index}, {owner}[{index}]))"
                elif old:
                    yield f"{old} = {owner}[{index}]"
                yield f"{owner}[{index}] = {value}"
            case Flush(cell, value):
                yield f"log.append(({cell}, None, {cell}.content))"
                yield f"{cell}.content = {value}"
            case Write(cell, value):
                yield f"{cell}.content = {value}"
            case Run(name, code):
                yield "sema.num_steps = steps"
                yield f"{name} = {code}"
                yield "steps = sema.num_steps"
            case _:
                pass

    def _exit(self, undone: tuple[str, ...]) -> Iterator[str]:
        if not self._is_nested:
            yield from ("undo(log)", "steps = begin") if self._has_log else undone
            yield "sema.num_steps = steps"
        yield f"return k, {len(self._left)}, None"


def _leaf(leaf: Leaf) -> Iterator[str]:
    yield f"steps += {leaf.num_steps}"
    yield "k += 1"
    if leaf.ending is not None:
        yield "sema.num_steps = steps"
        yield f"return k, {leaf.ending}, {leaf.value}"
