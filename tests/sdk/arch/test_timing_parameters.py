"""Each parameter of time says where it comes from, and one rule of pace holds for all strides."""

from dataclasses import fields

import pytest

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, STRIDES, gap_table, read_turns, stride_gap
from openwafer.sdk.arch.timing import ORIGINS, Timing


def test_every_parameter_has_an_origin() -> None:
    assert {one.name for one in fields(Timing)} == set(ORIGINS)


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_strides_of_a_table_stand_for_all_others(arch: Arch, width: int) -> None:
    gaps = gap_table(width, GENERATIONS[arch])
    widths = GENERATIONS[arch].timing.stride_widths
    for stride in range(-600, 600):
        alike = stride if stride in STRIDES else stride % 8 + 8
        assert stride_gap(stride, width, widths) == gaps[STRIDES.index(alike)]


@pytest.mark.parametrize(
    ("distance", "step", "turns"),
    [(0, 2, 8), (8, 2, 8), (2, 2, 4), (4, 2, 4), (0, 20, 8), (4, 20, 4), (2, 26, 6), (8, 26, 8)],
)
def test_reads_of_rows_of_equal_parity_take_turns(distance: int, step: int, turns: int) -> None:
    assert ONE_TURN == 4
    assert read_turns(64 + distance, step, 64, step, 4, 0) == turns


@pytest.mark.parametrize(("distance", "step", "turns"), [(0, 48, 12), (8, 48, 8), (4, 24, 4)])
def test_a_write_takes_a_turn_where_elements_lie_rows_of_all_banks_apart(
    distance: int, step: int, turns: int
) -> None:
    assert read_turns(64 + distance, step, 64, step, 4, 1) == turns


@pytest.mark.parametrize(("updated", "turns"), [(0, 4), (2, 4), (4, 8), (8, 8)])
def test_whole_rows_that_are_updated_in_place_take_two_turns(updated: int, turns: int) -> None:
    assert read_turns(64 + 2, 2, 64, 2, 4, updated) == turns
