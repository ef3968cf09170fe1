"""Calls of the layout block whose lanes part in the body and meet behind the call.

What a call returns is put together lane by lane, and the caller goes on with all lanes: a layout
costs the sum of the ways through its functions and not their product. A body is followed once for
each way through it, as a loop's is. Once a function has parted lanes that left the layout as it is,
it is followed for each of its arguments' numbers, where these are few, and its results are kept.

A function whose results have no common form, or that stores to what is around it, parts its
caller's lanes, as any other look at a number does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.csl.lanes import Group, Lanes, chosen, of_lanes
from openwafer.sdk.csl.sema.analysis import Separately
from openwafer.sdk.csl.sema.layout_numbers import Number, take_apart, with_numbers
from openwafer.sdk.csl.sema.layout_state import LayoutState
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Comptime, FunctionValue, Operand

_MOST_ROWS: Final = 1 << 12
"""Cases that are followed one by one; a wafer has a quarter of them in a row or a column."""

Arguments: TypeAlias = dict[str, Comptime]
Follow: TypeAlias = Callable[[Arguments], Operand]
_Results: TypeAlias = tuple[list[Comptime], NDArray[np.int64]]


class _NoCommonFormError(Exception):
    """Results differ in what is no number, or are more than values."""


def follow_call(
    sema: Sema, function: FunctionValue, arguments: Arguments, follow: Follow
) -> Operand:
    """Value of a call at compile time in a loop that is followed in lanes.

    Args:
        function: that is called.
        arguments: by the parameters' names.
        follow: follows the body with such arguments, for the active lanes.
    """
    layout, group, name = sema.layout, sema.group, id(function.declaration)
    are_plain = all(_is_plain(one.value) for one in arguments.values())
    if layout is None or not are_plain or name in layout.walked:
        return follow(arguments)
    outer, mark = group.active, len(layout.deferred)
    sema.num_lane_loops += 1
    try:
        found = _Call(sema, layout, function, arguments, follow).met()
    except (Separately, _NoCommonFormError):
        del layout.deferred[mark:]
        layout.walked.add(name)
        found = None
    finally:
        sema.num_lane_loops -= 1
        group.active = outer
    layout.narrow(mark, outer)
    return follow(arguments) if found is None else found


class _Call:
    """A call whose lanes are told apart by nothing but its arguments."""

    def __init__(
        self,
        sema: Sema,
        layout: LayoutState,
        function: FunctionValue,
        arguments: Arguments,
        follow: Follow,
    ) -> None:
        self._sema = sema
        self._layout = layout
        self._group = sema.group
        self._arguments = arguments
        self._follow = follow
        self._name = id(function.declaration)
        self._shape, self._numbers = take_apart(arguments)
        self._key = id(function.module), self._name, self._shape

    def met(self) -> Comptime | None:
        """The value for all active lanes; None where the body acts alike in all of them.

        Raises:
            _NoCommonFormError: the results cannot be put together.
            Separately: what the body does has an order.
        """
        calls, group = self._layout.calls, self._group
        lanes = [number for number in self._numbers if type(number) is Lanes]
        if not lanes:
            return None if self._name in calls.acting else self._of_row(self._numbers)
        group.active = _told_apart(group.active, lanes)
        found = None
        if self._name in calls.parting and group.active.sum() <= _MOST_ROWS:
            found = self._by_rows()
        results, which = found or self._by_ways()
        kind = results[0].type
        if any(one.type != kind for one in results):
            raise _NoCommonFormError
        return Comptime(kind, _common(group, which, [one.value for one in results]))

    def _by_rows(self) -> _Results | None:
        """Results of each distinct row of numbers; None where the body acts on the layout."""
        active = self._group.active
        columns = [of_lanes(number, active) for number in self._numbers]
        rows, row_of = np.unique(np.stack(columns), axis=1, return_inverse=True)
        results: list[Comptime] = []
        for row in rows.T.tolist():
            result = self._of_row(row)
            if result is None:
                return None
            results.append(result)
        which = np.zeros(active.shape, np.int64)
        which[active] = row_of.ravel()
        return results, which

    def _of_row(self, row: Sequence[Number]) -> Comptime | None:
        """The result for numbers that do not differ; None where the body acts on the layout."""
        sema, results = self._sema, self._layout.calls.results
        key = *self._key, tuple(row)
        limit = sema.options.comptime_func_depth_limit
        # What was not too deep elsewhere may be here, and is refused as without lanes.
        if key not in results or sema.call_depth + results[key][1] > limit:
            result, depth = self._followed(row)
            if result is None:
                self._note(is_acting=True)
                return None
            results[key] = _value(result), depth
        found, depth = results[key]
        sema.deepest_call = max(sema.deepest_call, sema.call_depth + depth)
        return found

    def _followed(self, row: Sequence[Number]) -> tuple[Operand | None, int]:
        """What :meth:`_of_row` gives, and how many calls deep it went."""
        sema, deferred = self._sema, self._layout.deferred
        outer, mark = sema.deepest_call, len(deferred)
        sema.deepest_call = sema.call_depth
        try:
            with self._group.suspended():
                operand = self._follow(with_numbers(self._shape, iter(row)))
            depth = sema.deepest_call - sema.call_depth
        finally:
            sema.deepest_call = max(outer, sema.deepest_call)
        is_acting = len(deferred) > mark
        del deferred[mark:]
        return None if is_acting else operand, depth

    def _by_ways(self) -> _Results:
        """Results of each way through the body, which may act on the layout."""
        group, deferred = self._group, self._layout.deferred
        left, results = group.active, list[Comptime]()
        which = np.zeros(left.shape, np.int64)
        while left.any():
            group.active, begin = left, len(deferred)
            results.append(_value(self._follow(self._arguments)))
            if group.active.shape != left.shape:
                raise _NoCommonFormError
            self._layout.narrow(begin, group.active)
            which[group.active] = len(results) - 1
            left = left & ~group.active
            if len(deferred) > begin or left.any():
                self._note(is_acting=len(deferred) > begin)
        return results, which

    def _note(self, *, is_acting: bool) -> None:
        """Keep what is known of the function."""
        calls = self._layout.calls
        if is_acting:
            calls.acting.add(self._name)
            calls.parting.discard(self._name)
        elif self._name not in calls.acting:
            calls.parting.add(self._name)


def _value(operand: Operand) -> Comptime:
    if not isinstance(operand, Comptime) or not _is_plain(operand.value):
        raise _NoCommonFormError
    return operand


def _is_plain(value: object) -> bool:
    """Whether a value is nothing but itself: no way leads from it to variables."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | bytes | Type)


def _told_apart(outer: NDArray[np.bool_], lanes: Sequence[Lanes]) -> NDArray[np.bool_]:
    """The active lanes, one for all that differ in loops only which the numbers do not know."""
    shape = np.broadcast_shapes(*(one.numbers.shape for one in lanes))
    shape = (1,) * (outer.ndim - len(shape)) + shape
    unknown = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return np.asarray(outer.any(axis=unknown, keepdims=True))


def _common(group: Group, which: NDArray[np.int64], values: list[Any]) -> Any:
    """One value that is in each lane the one of `values` that it has the number of."""
    first = values[0]
    if all(isinstance(one, int) for one in values):
        found = chosen(group, which, values)
        if found is None:
            raise _NoCommonFormError
        return found
    if all(type(one) is tuple and len(one) == len(first) for one in values):
        return tuple(_common(group, which, list(items)) for items in zip(*values, strict=True))
    if any(_spelled(one) != _spelled(first) for one in values):
        raise _NoCommonFormError
    return first


def _spelled(value: Any) -> Any:
    """Zero has two signs, and no number is less like itself than NaN."""
    return value.hex() if type(value) is float else value
