"""Integers that differ from lane to lane, where the compiler follows many cases at once.

A lane is one iteration of a loop of the layout, or one processing element (PE). The lanes of a
:class:`Group` are followed at once as long as they agree. Arithmetic on :class:`Lanes` is done for
all of them; where one number is needed, the group keeps the lanes that have the number of the first
one, and the others are followed later from the beginning. So whoever knows nothing of lanes gets
the right number, and costs one more walk for each other one.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.csl.symbolic import Symbolic, noted

_LARGEST: Final = 1 << 62
"""Bound of numbers that are computed in 64 bits."""


@dataclass(eq=False, slots=True)
class Parting:
    """Where lanes came apart, in groups that are followed from the same beginning.

    All that was not followed yet and gave the same numbers before meets the same question.

    Attributes:
        numbers: that were looked at; None where nothing more is known.
        ways: what came next, by the number of those that stayed.
        is_last: what comes next depends on who is in the group.
    """

    numbers: NDArray[Any] | None = None
    ways: "dict[int, Parting]" = field(default_factory=dict)
    is_last: bool = False

    def way(self, number: int) -> "Parting":
        """What comes next for those that have a number."""
        return self.ways.setdefault(number, Parting())


class Group:
    """The lanes that are followed now.

    `active` has an axis for each loop that is followed in lanes, the innermost one first; lanes of
    an outer loop take part in all that is inside of it by broadcasting.
    """

    def __init__(self, num_lanes: int | None = None) -> None:
        self.active: NDArray[np.bool_] = np.ones(() if num_lanes is None else num_lanes, bool)
        self._parting: Parting | None = None

    def part_as_before(self, beginning: Parting) -> None:
        """Let lanes leave at once that will leave, by what is known of groups before this one."""
        parting = beginning
        while parting.numbers is not None:
            number = self._first(parting.numbers)
            self.active = self.active & (parting.numbers == number)
            parting = parting.way(number)
        self._parting = parting

    def first(self, numbers: NDArray[Any]) -> int:
        """The number of the first lane; the group keeps the lanes that share it."""
        if numbers.size > 1:
            number = self._first(numbers)
            is_same = numbers == number
            parting = self._parting
            if parting and not parting.is_last and (self.active & ~is_same).any():
                parting.numbers, self._parting = numbers, parting.way(number)
            self.active = self.active & is_same
            return number
        return int(numbers.flat[0])

    def agrees(self, numbers: NDArray[Any]) -> bool:
        """Whether the active lanes have one number."""
        return numbers.size == 1 or bool(((numbers == self._first(numbers)) | ~self.active).all())

    def decides(self, numbers: NDArray[Any]) -> bool:
        """The same, where what comes next depends on it."""
        is_one = self.agrees(numbers)
        if self._parting is not None:
            self._parting.is_last |= not is_one
        return is_one

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Evaluate something that is the same for all lanes."""
        outer, self.active = self.active, np.ones((), bool)
        try:
            yield
        finally:
            self.active = outer

    def _first(self, numbers: NDArray[Any]) -> int:
        index = np.unravel_index(int(self.active.argmax()), self.active.shape)
        own = index[len(index) - numbers.ndim :]
        place = tuple(i if n > 1 else 0 for i, n in zip(own, numbers.shape, strict=True))
        return int(numbers[place])


def _arithmetic(
    function: Callable[[Any, Any], Any], bound: Callable[[int, int], int], *, is_reversed: bool
) -> Callable[["Lanes", Any], Any]:
    """An operator; `bound` tells how large the result is at most."""

    def operate(self: "Lanes", other: Any) -> Any:
        right = _numbers(other)
        if right is None:
            return NotImplemented
        if isinstance(right, int) or bound(self.largest, int(abs(right).max())) >= _LARGEST:
            pair = (int(other), int(self)) if is_reversed else (int(self), int(other))
            return function(*pair)
        sides = (right, self.numbers) if is_reversed else (self.numbers, right)
        with np.errstate(all="ignore"):
            # Lanes that are not active may hold anything, zero divisors for instance.
            return Lanes(self.group, function(*sides))

    return operate


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[["Lanes", Any], Any]:
    def compare(self: "Lanes", other: Any) -> Any:
        right = _numbers(other)
        if right is None:
            return NotImplemented
        left = int(self) if isinstance(right, int) else self.numbers
        found = function(left, right)
        return found if isinstance(found, bool) else Lanes(self.group, found)

    return compare


def _numbers(value: Any) -> NDArray[Any] | int | None:
    """An array, or an integer that 64 bits do not hold safely; None for what is no integer."""
    if isinstance(value, Lanes):
        return value.numbers
    if not isinstance(value, int):
        return None
    return np.asarray(int(value)) if -_LARGEST < value < _LARGEST else value


def _either(a: int, b: int) -> int:
    return 2 * max(a, b)


def _shifted(a: int, b: int) -> int:
    return a << b if b < 64 else _LARGEST


def _either_way(function: Callable[[Any, Any], Any], bound: Callable[[int, int], int]) -> Any:
    return (_arithmetic(function, bound, is_reversed=flag) for flag in (False, True))


class Lanes:
    """An integer or bool of each lane.

    It passes for an int, or a bool, so that values need no case of their own for it: asked for what
    only one number can give, it is the number of the first lane.

    Attributes:
        group: whose lanes they are.
        numbers: of all lanes, active or not; fewer axes than the group where outer ones decide.
    """

    __slots__ = ("_largest", "group", "numbers")

    def __init__(self, group: Group, numbers: NDArray[Any]) -> None:
        self.group = group
        self.numbers = numbers
        self._largest: int | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return bool if self.numbers.dtype == bool else int

    @property
    def largest(self) -> int:
        """The largest magnitude of any lane."""
        if self._largest is None:
            self._largest = int(abs(self.numbers.astype(np.int64)).max())
        return self._largest

    def one(self) -> int | bool:
        """The number of the first lane, which the others leave the group for not having."""
        number = self.group.first(self.numbers)
        return bool(number) if self.numbers.dtype == bool else number

    def is_one(self) -> bool:
        """Whether the active lanes have the same number."""
        return self.group.agrees(self.numbers)

    def wrapped(self, num_bits: int, lowest: int) -> Any:
        """As an integer type of fewer than 63 bits holds them."""
        numbers = (self.numbers.astype(np.int64) - lowest & (1 << num_bits) - 1) + lowest
        return Lanes(self.group, numbers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.one(), name)

    def __bool__(self) -> bool:
        if self.numbers.dtype == bool and (self.numbers.all() or not self.numbers.any()):
            return bool(self.numbers.flat[0])
        return bool(self.group.first(self.numbers != 0))

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

    def __neg__(self) -> "Lanes":
        return Lanes(self.group, -self.numbers.astype(np.int64))

    def __invert__(self) -> "Lanes":
        return Lanes(self.group, ~self.numbers.astype(np.int64))

    def __abs__(self) -> "Lanes":
        return Lanes(self.group, abs(self.numbers.astype(np.int64)))

    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __add__, __radd__ = _either_way(operator.add, operator.add)
    __sub__, __rsub__ = _either_way(operator.sub, operator.add)
    __mul__, __rmul__ = _either_way(operator.mul, operator.mul)
    __floordiv__, __rfloordiv__ = _either_way(operator.floordiv, _either)
    __mod__, __rmod__ = _either_way(operator.mod, _either)
    __and__, __rand__ = _either_way(operator.and_, _either)
    __or__, __ror__ = _either_way(operator.or_, _either)
    __xor__, __rxor__ = _either_way(operator.xor, _either)
    __lshift__, __rlshift__ = _either_way(operator.lshift, _shifted)
    __rshift__, __rrshift__ = _either_way(operator.rshift, _either)


def of_lanes(value: "int | Lanes", active: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of each of the lanes that are active."""
    numbers = value.numbers if isinstance(value, Lanes) else np.asarray(value)
    return np.broadcast_to(numbers, active.shape)[active].astype(np.int64)


def chosen(
    group: Group, which: NDArray[np.int64], numbers: "Sequence[int | Lanes]"
) -> "int | Lanes | None":
    """The number that has the place `which` in each lane; None where 62 bits are too few."""
    if any(type(one) is not Lanes and not -_LARGEST < one < _LARGEST for one in numbers):
        return None
    if all(type(one) is not Lanes for one in numbers):
        is_one = len(set(numbers)) == 1
        return numbers[0] if is_one else Lanes(group, np.array(numbers)[which])
    found, *others = (one.numbers if type(one) is Lanes else np.asarray(one) for one in numbers)
    for place, other in enumerate(others, 1):
        found = np.where(which == place, other, found)
    return Lanes(group, found)


def lanes_of(value: object) -> Lanes | None:
    """A value that may differ from lane to lane; None for others."""
    return value if isinstance(value, Lanes) else None


def as_integer(value: Any) -> Any:
    """A number or bool as an integer, of each lane where they differ."""
    if type(value) is Symbolic:
        return noted(int, value)
    lanes = lanes_of(value)
    return int(value) if lanes is None else Lanes(lanes.group, lanes.numbers.astype(np.int64))


_SETTLED: Final = frozenset((int, bool, float, str, bytes, type(None)))


def settled(value: Any) -> Any:
    """A value whose integers are plain ones; tuples and records are looked into."""
    if type(value) in _SETTLED:
        return value
    if type(value) in (Lanes, Symbolic):
        return value.one()
    if type(value) is tuple:
        items = tuple(map(settled, value))
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if not is_dataclass(value) or isinstance(value, type):
        return value
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    changed = {name: new for name, old in pairs if (new := settled(old)) is not old}
    return replace(value, **changed) if changed else value
