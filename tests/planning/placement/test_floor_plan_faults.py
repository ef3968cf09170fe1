"""What is wrong with a floor plan is found core by core."""

from dataclasses import replace

import pytest

from openwafer.planning.placement import Demand, PlacedLayer, Rectangle, find_faults

DEMANDS = [Demand("a", 1, 0, 80, 1), Demand("b", 1, 0, 60, 0)]
PLACED = [
    PlacedLayer(0, 0, Rectangle(0, 0, 4, 2)),
    PlacedLayer(0, 1, Rectangle(4, 0, 3, 2)),
]


def faults(*placed: PlacedLayer, core_bytes: float = 10, replicas: int = 1) -> tuple[str, ...]:
    return find_faults(placed, DEMANDS, replicas, (7, 2), core_bytes)


def moved(placed: PlacedLayer, **changes: int) -> PlacedLayer:
    return replace(placed, rectangle=replace(placed.rectangle, **changes))


def test_a_valid_floor_plan_has_none() -> None:
    assert faults(*PLACED) == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"x": 3}, "the core (3, 0) is in 2 rectangles"),
        ({"x": 5}, "Rectangle(x=5, y=0, columns=3, rows=2) of layer 1 is not inside 7 x 2 cores"),
        ({"y": 1}, "Rectangle(x=4, y=1, columns=3, rows=2) of layer 1 is not inside 7 x 2 cores"),
        ({"x": -1}, "Rectangle(x=-1, y=0, columns=3, rows=2) of layer 1 is not inside 7 x 2 cores"),
    ],
)
def test_rectangles_that_overlap_or_leave_the_wafer_are_told(
    changes: dict[str, int], told: str
) -> None:
    assert faults(PLACED[0], moved(PLACED[1], **changes)) == (told,)


def test_a_core_that_is_too_full_is_told() -> None:
    assert faults(PLACED[0], moved(PLACED[1], rows=1)) == (
        "layer 1 takes 20 B of each core, which has 10 B",
    )


@pytest.mark.parametrize("placed", [PLACED[:1], [*PLACED, PLACED[0]], []])
def test_a_layer_that_is_not_placed_exactly_once_is_told(placed: list[PlacedLayer]) -> None:
    assert any("are placed, not [(0, 0), (0, 1)]" in told for told in faults(*placed))
