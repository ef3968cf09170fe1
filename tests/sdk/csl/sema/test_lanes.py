"""Integers of many lanes compute as those of each lane do, and part where one number is needed."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.csl.lanes import Group, Lanes, Parting, as_integer, of_lanes, settled

OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor),
    *(operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge),
)
SMALL = st.integers(-(2**40), 2**40)
ANY = st.one_of(st.integers(-5, 5), SMALL, st.integers(-(2**70), 2**70))


def lanes(*numbers: int) -> Lanes:
    return Lanes(Group(len(numbers)), np.array(numbers))


@given(st.sampled_from(OPERATORS), st.lists(SMALL, min_size=1, max_size=5), ANY, st.booleans())
def test_an_operator_gives_each_lane_what_its_integers_give(
    function: Callable[[Any, Any], Any], numbers: list[int], other: int, is_left: bool
) -> None:
    value = lanes(*numbers)
    found = function(value, other) if is_left else function(other, value)
    pairs = [(n, other) if is_left else (other, n) for n in numbers]
    for lane in np.flatnonzero(value.group.active):
        value.group.active = np.arange(len(numbers)) == lane
        assert settled(found) == function(*pairs[lane])


@given(
    st.sampled_from((operator.floordiv, operator.mod)),
    st.lists(SMALL, min_size=1, max_size=5),
    st.integers(1, 1000),
)
def test_division_is_that_of_integers(
    function: Callable[[Any, Any], Any], numbers: list[int], divisor: int
) -> None:
    found = function(lanes(*numbers), divisor)
    assert found.numbers.tolist() == [function(n, divisor) for n in numbers]


def test_a_condition_keeps_the_lanes_that_agree_with_the_first() -> None:
    value = lanes(3, 8, 2, 9)
    assert bool(value < 5)
    assert value.group.active.tolist() == [True, False, True, False]


def test_an_index_keeps_the_lanes_with_the_first_number() -> None:
    value = lanes(1, 0, 1)
    assert "abc"[value] == "b"
    assert value.group.active.tolist() == [True, False, True]


def test_lanes_of_an_outer_loop_take_part_in_the_inner_one() -> None:
    group = Group(3)
    outer = Lanes(group, np.arange(3))
    group.active = np.ones((2, 3), bool)
    inner = Lanes(group, np.array([[10], [20]]))
    assert (outer + inner).numbers.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert bool(inner == 10)
    assert of_lanes(outer, group.active).tolist() == [0, 1, 2]


def test_lanes_that_all_agree_part_nothing() -> None:
    value = lanes(4, 4, 5)
    value.group.active = np.array([True, True, False])
    assert (value.is_one(), int(value)) == (True, 4)
    assert value.group.active.tolist() == [True, True, False]


@pytest.mark.parametrize(("bits", "lowest"), [(8, 0), (8, -128), (16, -32768), (5, -16)])
def test_a_width_wraps_every_lane_around(bits: int, lowest: int) -> None:
    numbers = (-200, -129, -1, 0, 17, 127, 128, 255, 70000)
    expected = [(n - lowest) % (1 << bits) + lowest for n in numbers]
    assert lanes(*numbers).wrapped(bits, lowest).numbers.tolist() == expected


def test_bools_of_lanes_pass_for_bools_and_become_integers() -> None:
    value = lanes(1, 5) > 2
    assert isinstance(value, bool)
    assert as_integer(value).numbers.tolist() == [0, 1]


@dataclass(frozen=True)
class Record:
    name: str
    parts: tuple[object, ...]


def test_records_are_settled_inside() -> None:
    record = Record("x", (1, (lanes(7, 8), "text")))
    assert settled(record) == Record("x", (1, (7, "text")))


def parted(beginning: Parting, left: list[int], *looked_at: list[int]) -> Group:
    """A group of the lanes that are left, which looks at numbers one after the other."""
    group = Group(6)
    group.active = np.isin(np.arange(6), left)
    group.part_as_before(beginning)
    for numbers in looked_at:
        int(Lanes(group, np.array(numbers)))
    return group


def remaining(group: Group) -> list[int]:
    return [int(lane) for lane in np.flatnonzero(group.active)]


FIRST, SECOND, THIRD = [1, 2, 1, 2, 3, 3], [0, 0, 0, 5, 0, 0], [7, 8, 9, 8, 7, 8]


def test_lanes_leave_at_once_where_others_left_before() -> None:
    beginning = Parting()
    assert remaining(parted(beginning, [0, 1, 2, 3, 4, 5], FIRST)) == [0, 2]
    assert remaining(parted(beginning, [1, 3, 4, 5])) == [1, 3]
    assert remaining(parted(beginning, [4, 5])) == [4, 5]


def test_what_came_behind_a_number_is_remembered_for_that_number() -> None:
    beginning = Parting()
    assert remaining(parted(beginning, [0, 1, 2, 3, 4, 5], FIRST, THIRD)) == [0]
    assert remaining(parted(beginning, [1, 2, 3, 4, 5], FIRST, SECOND)) == [1]
    assert remaining(parted(beginning, [2, 3, 4, 5])) == [2]
    assert remaining(parted(beginning, [3, 4, 5])) == [3]
    assert remaining(parted(beginning, [4, 5])) == [4, 5]


def test_nothing_is_remembered_behind_what_depends_on_the_other_lanes() -> None:
    beginning = Parting()
    group = parted(beginning, [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 1])
    assert not group.decides(np.array(FIRST))
    int(Lanes(group, np.array(FIRST)))
    assert remaining(group) == [0, 2]
    assert remaining(parted(beginning, [1, 2, 4, 5])) == [1, 2]
