"""Each parameter of time says where it comes from, and one rule of pace holds for all strides."""

from dataclasses import fields

import pytest

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import STRIDES, gap_table, stride_gap
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
