"""What an iteration at compile time does to variables of the compiler, as a path notes it.

Variables from before the iteration hold their numbers until its end: what was assigned is written
behind all guards. Elements of their lists are assigned at once, and can be put back. Variables that
the iteration declares are nothing but the values that they hold.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.symbolic import Constants, Flush, Path, Put, Symbolic, Write, symbolic_of
from openwafer.sdk.csl.types import VOID, Type
from openwafer.sdk.csl.values import UNDEFINED, Cell, CellLvalue, Comptime, Undefined, freeze, thaw

_MOST_ITEMS: Final = 64
_KEPT: Final = (int, float, bool, str, bytes, Undefined, Type)
"""What may be put into a variable from before: it refers to no other variable."""


class Box:
    """Stands for a variable that an iteration has declared, for a loop inside of it."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


class CellPath(Path):
    """See the module.

    Attributes:
        tree: of the loop.
        inner: trees of the loops that the iteration runs; `num_run` steps are theirs.
        names: of the variables that the loop sees, by their identity; empty where one of another
            call could not be told from it.
        used: lvalues of those that the path has to do with, by name.
        questions: that the iteration asks its image.
        is_lonely: it has looked at what no question asks for.
    """

    def __init__(
        self, analysis: Any, tree: Any, constants: Constants, names: dict[int, str]
    ) -> None:
        super().__init__(constants, self._close)
        self._analysis = analysis
        self._begin = Cell("", VOID, None).number
        self.tree = tree
        self.names = names
        self.inner: list[Any] = []
        self.num_run = 0
        self.used: dict[str, Cell] = {}
        self.questions: list[Question] = []
        self.is_lonely = False
        self._current: dict[int, Any] = {}
        self._changed: dict[int, Cell] = {}

    def _close(self) -> None:
        self._analysis.path = None

    def sequence(self, elements: Any) -> str:
        """What a loop inside goes over, in Python."""
        if type(elements) is range:
            return f"range({elements.start}, {elements.stop}, {elements.step})"
        return self.spelled(elements)

    def asks(self, question: Question) -> None:
        """The iteration asks its image something, as whoever replays it does."""
        if type(question).__eq__ is object.__eq__:
            self.lose()
        self.questions.append(question)

    def element(self, value: Any) -> Any:
        """The element that a `for` is at."""
        return self.taken("elements[k]", value)

    def index(self, number: int) -> Symbolic:
        """The number of the iteration."""
        return Symbolic(self, "k", number)

    def end(self) -> None:
        """Write what was assigned."""
        for key, cell in self._changed.items():
            self.note(Write(self._name(cell), self.spelled(self._current[key])))

    def lend(self, cell: Cell) -> str:
        """Name of an object whose content another loop may read and change."""
        if not self._is_own(cell):
            self.settle(cell)
            return self._name(cell)
        if type(cell.content) is list:
            cell.content = self._listed(cell.content)
        if not self._is_kept(cell.content):
            self.lose()
        box = self.constants.name(Box)
        found = self.read(f"{box}({self.spelled(cell.content)})", None)
        return str(found.name)

    def settle(self, cell: Cell) -> None:
        """Let a variable from before have its content now."""
        if self._changed.pop(id(cell), None) is not None:
            value = self.spelled(self._current[id(cell)])
            self.note(Flush(self._name(cell), value))

    def returned(self, cell: Cell, name: str) -> None:
        """Another loop may have changed a variable, the content of the object of a name."""
        if cell.is_const or not self.is_open:
            return
        if self._is_own(cell):
            cell.content = self.taken(f"{name}.content", plain(cell.content))
        else:
            self._current.pop(id(cell), None)

    def content(self, cell: Cell, indices: Sequence[Any]) -> Any:
        """Content of a part of a variable."""
        content = self._root(cell, indices)
        for index in indices:
            if content is UNDEFINED:
                return UNDEFINED
            content = content[index]
        if _has_lanes(content):
            self.lose()
        return content

    def store(self, lvalue: CellLvalue, value: Comptime) -> bool:
        """Assign to a variable or a part of one; False where it is still to be done."""
        cell, content = lvalue.cell, thaw(value.value)
        if not lvalue.path:
            return self._store_whole(cell, value.type, content)
        owner = self.content(cell, lvalue.path[:-1])
        if not self.is_open or owner is UNDEFINED:
            return False
        index = lvalue.path[-1]
        if type(owner) is not Symbolic and symbolic_of(index) is not None:
            self._root(cell, lvalue.path)  # This makes its list symbolic.
            owner = self.content(cell, lvalue.path[:-1])
        if type(owner) is not Symbolic:
            owner[index] = content
            return True
        if not self._is_kept(content):
            self.lose()
            return False
        new = self._listed(content) if type(content) is list else content
        old = "" if self._is_own(cell) else self.new_name()
        self.note(Put(owner.name, self.spelled(index), self.spelled(new), old))
        owner.value[plain(index)] = plain(new)
        return True

    def _store_whole(self, cell: Cell, kind: Type, content: Any) -> bool:
        if self._is_own(cell):
            cell.type, cell.content = kind, content
            return True
        if cell.type != kind or not self._is_kept(content):
            self.lose()
            return False
        new = self._listed(content) if type(content) is list else content
        self._name(cell)
        self._current[id(cell)], self._changed[id(cell)] = new, cell
        cell.content = plain(new)
        return True

    def _is_own(self, cell: Cell) -> bool:
        """Whether the iteration has declared a variable."""
        return cell.number > self._begin

    def _is_kept(self, content: Any) -> bool:
        if type(content) is list:
            return all(map(self._is_kept, content))
        return type(content) is Symbolic or (
            isinstance(content, _KEPT) and not isinstance(content, Lanes)
        )

    def _root(self, cell: Cell, indices: Sequence[Any]) -> Any:
        is_indexed = any(type(index) is Symbolic for index in indices)
        if cell.is_const and cell.is_global:
            content = cell.content
            if is_indexed and type(content) is list:
                return Symbolic(self, self.constants.name(content), content)
            return content
        if self._is_own(cell):
            if is_indexed and type(cell.content) is list:
                cell.content = self._listed(cell.content)
            return cell.content
        if id(cell) not in self._current:
            if type(cell.content) is Symbolic:
                cell.content = cell.content.value
            self._current[id(cell)] = self.taken(f"{self._name(cell)}.content", cell.content)
        return self._current[id(cell)]

    def _name(self, cell: Cell) -> str:
        name = self.names.get(id(cell))
        if name == "":
            self.lose()
        if not name:
            return self.constants.name(cell)
        self.used[name] = cell
        return f"cell_{name}"

    def _listed(self, content: list[Any]) -> Symbolic:
        """A list that the noted code makes."""
        items = list(_items(content))
        if not any(type(item) is Symbolic for item in items):
            name = self.constants.name(freeze(content))
            thaw_name = self.constants.name(thaw)
            found = self.read(f"{thaw_name}({name})", content)
        else:
            if len(items) > _MOST_ITEMS:
                self.lose()
            found = self.read(self._literal(content), plain(content))
        assert type(found) is Symbolic
        return found

    def _literal(self, content: Any) -> str:
        if type(content) is list:
            return f"[{', '.join(map(self._literal, content))}]"
        return self.spelled(content)


def plain(content: Any) -> Any:
    """Content with numbers for symbolic ones."""
    if type(content) is list:
        return [plain(item) for item in content]
    return content.value if type(content) is Symbolic else content


def _items(content: Any) -> Iterator[Any]:
    if type(content) is list:
        for item in content:
            yield from _items(item)
    else:
        yield content


def _has_lanes(content: Any) -> bool:
    if type(content) is list:
        return any(map(_has_lanes, content))
    return type(content) is Lanes
