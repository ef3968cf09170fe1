"""Numbers of the compiler that note, as Python, what is done with them.

A :class:`Symbolic` passes for the number that it holds, as :class:`~openwafer.sdk.csl.lanes.Lanes`
do, so whoever evaluates with it gets the right result; beside that, the :class:`Path` that it
belongs to gets a line of Python for each operation. Where the evaluation goes on in one way or
another by a number, the path gets a *guard*: another run that meets it with another outcome leaves
the path there. What cannot be noted loses the path, and nothing else.
"""

import functools
import operator
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST_EVENTS: Final = 3000
_NUMBERS: Final = frozenset((int, bool, float))


class Step(NamedTuple):
    """`name = code`."""

    name: str
    code: str


class Guard(NamedTuple):
    """The path goes on where the truth of `code` is `outcome`."""

    code: str
    outcome: bool


class Put(NamedTuple):
    """`owner[key] = value`; with `old`, a name for what was there, it can be undone."""

    owner: str
    key: str
    value: str
    old: str


class Write(NamedTuple):
    """`cell.content = value`, behind all guards."""

    cell: str
    value: str


class Flush(NamedTuple):
    """`cell.content = value`, at once; it can be undone."""

    cell: str
    value: str


class Run(NamedTuple):
    """`name = code`, which runs another loop; what that does can be undone."""

    name: str
    code: str


Event = Step | Guard | Put | Write | Flush | Run


class Constants:
    """Objects that noted code refers to, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self._names: dict[Hashable, str] = {}

    def name(self, value: Any) -> str:
        """The name of an object; equal plain values, and the same of other objects, have one."""
        key = (type(value), repr(value)) if _is_plain(value) else id(value)
        if key not in self._names:
            self._names[key] = f"k{len(self._names)}"
            self.by_name[self._names[key]] = value
        return self._names[key]


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _NUMBERS or type(value) in (str, bytes)


@dataclass(eq=False)
class Path:
    """What one iteration does, in the order in which it does it.

    Attributes:
        is_open: whether anything is still noted.
    """

    constants: Constants
    lost: Callable[[], None]

    def __post_init__(self) -> None:
        self.events: list[Event] = []
        self.is_open = True
        self._known: dict[str, Symbolic] = {}
        self._facts: dict[str, bool] = {}
        self._num_names = self._num_facts = 0

    def lose(self) -> None:
        """Note nothing more."""
        if self.is_open:
            self.is_open = False
            self.lost()

    def new_name(self) -> str:
        """A local name of the noted code."""
        self._num_names += 1
        return f"t{self._num_names}"

    def note(self, event: Event) -> None:
        """Add to the path, unless it becomes too long."""
        self.events.append(event)
        if len(self.events) > _MOST_EVENTS:
            self.lose()

    def spelled(self, value: Any) -> str:
        """A value in Python."""
        kind = type(value)
        if kind is Symbolic:
            if value.path is not self:
                self.lose()
            return str(value.name)
        if kind is bool or (kind is int and abs(value) < 1 << 64):
            return repr(value) if value >= 0 else f"({value})"
        return self.constants.name(value)

    def step(self, code: str, value: Any) -> Any:
        """The value of Python code that gives the same for the same operands."""
        if code not in self._known:
            self._known[code] = self.read(code, value)
        return self._known[code]

    def read(self, code: str, value: Any) -> Any:
        """The value of Python code that is evaluated anew."""
        name = self.new_name()
        self.note(Step(name, code))
        return Symbolic(self, name, value)

    def taken(self, code: str, value: Any) -> Any:
        """A value from a cell, a list or a tuple: what is no number is known by being the same."""
        found = self.read(code, value)
        if type(value) in _NUMBERS:
            self.guard(f"type({found.name}) is {type(value).__name__}", True)
            return found
        if type(value) in (list, tuple):
            self.guard(f"type({found.name}) is {type(value).__name__}", True)
            self.guard(f"len({found.name}) == {len(value)}", True)
            return found
        self.guard(f"{found.name} is {self.spelled(value)}", True)
        return value

    def guard(self, code: str, outcome: bool) -> None:
        """The path goes this way."""
        known = self._facts.setdefault(code, outcome)
        if known is not outcome:
            self.lose()
        elif len(self._facts) > self._num_facts:
            self._num_facts += 1
            self.note(Guard(code, outcome))


def _operator(function: Callable[[Any, Any], Any], form: str, *, is_reversed: bool = False) -> Any:
    def operate(self: "Symbolic", other: Any) -> Any:
        right = other.value if type(other) is Symbolic else other
        if type(right) not in _NUMBERS:
            # Only a number of the language can be equal to one.
            return NotImplemented
        value = function(right, self.value) if is_reversed else function(self.value, right)
        if not self.path.is_open:
            return value
        sides = self.name, self.path.spelled(other)
        return self.path.step(form.format(*(reversed(sides) if is_reversed else sides)), value)

    return operate


def _pair(function: Callable[[Any, Any], Any], sign: str) -> Any:
    form = f"{{}} {sign} {{}}"
    return _operator(function, form), _operator(function, form, is_reversed=True)


class Symbolic:
    """A number, list or tuple with a name in the noted code."""

    __slots__ = ("name", "path", "value")

    def __init__(self, path: Path, name: str, value: Any) -> None:
        self.path = path
        self.name = name
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    def one(self) -> Any:
        """The value itself; the path is from here on one of this value."""
        if self.path.is_open:
            if type(self.value) in (int, bool):
                self.path.guard(f"{self.name} == {self.path.spelled(self.value)}", True)
            else:
                self.path.lose()
        return self.value

    def copied(self, function: Callable[[Any], Any]) -> Any:
        """A list or tuple in another form, which is its own; numbers as they are."""
        if type(self.value) in _NUMBERS and self.path.is_open:
            return self
        value = function(self.value)
        if not self.path.is_open:
            return value
        return self.path.read(f"{self.path.constants.name(function)}({self.name})", value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.one(), name)

    def __bool__(self) -> bool:
        outcome = bool(self.value)
        if self.path.is_open:
            self.path.guard(self.name, outcome)
        return outcome

    def __int__(self) -> int:
        return int(self.one())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.one())

    def __hash__(self) -> int:
        return hash(self.one())

    def __str__(self) -> str:
        return str(self.one())

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.one(), form)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self.value)))

    def __getitem__(self, index: Any) -> Any:
        value = self.value[index.value if type(index) is Symbolic else index]
        if not self.path.is_open:
            return value
        return self.path.taken(f"{self.name}[{self.path.spelled(index)}]", value)

    def __neg__(self) -> Any:
        return noted(operator.neg, self)

    def __invert__(self) -> Any:
        return noted(operator.invert, self)

    def __abs__(self) -> Any:
        return noted(abs, self)

    __eq__ = _operator(operator.eq, "{} == {}")
    __ne__ = _operator(operator.ne, "{} != {}")
    __lt__ = _operator(operator.lt, "{} < {}")
    __le__ = _operator(operator.le, "{} <= {}")
    __gt__ = _operator(operator.gt, "{} > {}")
    __ge__ = _operator(operator.ge, "{} >= {}")
    __add__, __radd__ = _pair(operator.add, "+")
    __sub__, __rsub__ = _pair(operator.sub, "-")
    __mul__, __rmul__ = _pair(operator.mul, "*")
    __truediv__, __rtruediv__ = _pair(operator.truediv, "/")
    __floordiv__, __rfloordiv__ = _pair(operator.floordiv, "//")
    __mod__, __rmod__ = _pair(operator.mod, "%")
    __and__, __rand__ = _pair(operator.and_, "&")
    __or__, __ror__ = _pair(operator.or_, "|")
    __xor__, __rxor__ = _pair(operator.xor, "^")
    __lshift__, __rlshift__ = _pair(operator.lshift, "<<")
    __rshift__, __rrshift__ = _pair(operator.rshift, ">>")


def symbolic_of(value: object) -> Symbolic | None:
    """A value that notes what is done with it; None for others."""
    return value if type(value) is Symbolic else None


def concrete(value: Any) -> Any:
    """A value, also that of a path that is lost."""
    return value.value if type(value) is Symbolic else value


def noted(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function of numbers, which is noted as one step where one is symbolic."""
    paths = [one.path for one in args if type(one) is Symbolic]
    if not paths:
        return function(*args)
    value = function(*(concrete(one) for one in args))
    path = paths[0]
    if not path.is_open:
        return value
    name = path.constants.name(function)
    return path.step(f"{name}({', '.join(map(path.spelled, args))})", value)


def whole(function: Callable[P, R]) -> Callable[P, R]:
    """A function of numbers, and constants, that is one step of a path: nobody looks inside."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for one in args:
            if type(one) is Symbolic:
                result: R = noted(function, *args)
                return result
        return function(*args, **kwargs)

    return call
