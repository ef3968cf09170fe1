"""Tables of cases of which some run by default and the others are slow."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

import pytest
from _pytest.mark import ParameterSet

Row: TypeAlias = tuple[Any, ...]
Allowed: TypeAlias = Callable[[Row], bool]


def case(*values: Any, by_default: bool, id: str | None = None) -> ParameterSet:  # noqa: A002 - as pytest names it
    """A row of a table, which is slow unless it runs by default."""
    return pytest.param(*values, marks=() if by_default else pytest.mark.slow, id=id)


def some(rows: Iterable[Any], *by_default: Any) -> list[ParameterSet]:
    """All rows of a table, of which these run by default; a tuple is a row of several values."""
    all_rows = list(rows)
    if strange := [row for row in by_default if row not in all_rows]:
        raise ValueError(f"no row is {strange[0]!r}")
    return [
        case(*(row if isinstance(row, tuple) else (row,)), by_default=row in by_default)
        for row in all_rows
    ]


def _name(value: object) -> str:
    if isinstance(value, set | frozenset):
        raise TypeError(f"{value} has another order in another process: name it in a dict")
    return getattr(value, "__name__", None) or str(value)


def checkerboard(*axes: Iterable[Any] | dict[str, Any], one_in: int = 2) -> list[ParameterSet]:
    """All combinations of one value of each axis; one in so many runs by default.

    Those are the ones whose indices have a sum that it divides: an axis of so many values or more
    meets every combination of the others. An axis that is a dict names its values.
    """
    named = [
        axis if isinstance(axis, dict) else {_name(value): value for value in axis} for axis in axes
    ]
    return [
        case(
            *(value for _, (_, value) in cell),
            by_default=sum(index for index, _ in cell) % one_in == 0,
            id="-".join(name for _, (name, _) in cell),
        )
        for cell in product(*(enumerate(axis.items()) for axis in named))
    ]


def covering(axes: Sequence[Sequence[Any]], strength: int, is_allowed: Allowed) -> list[Row]:
    """Allowed rows in which any values of so many axes meet that meet in any allowed row.

    Each row is the first of those in which most values meet that have not yet met.
    """
    bits: dict[object, int] = {}
    met: dict[Row, int] = {}
    for row in filter(is_allowed, product(*axes)):
        parts = combinations(enumerate(row), strength)
        met[row] = sum(1 << bits.setdefault(part, len(bits)) for part in parts)
    chosen, left = [], (1 << len(bits)) - 1
    while left:
        best = max(met, key=lambda row: (met[row] & left).bit_count())
        chosen.append(best)
        left &= ~met[best]
    return chosen
