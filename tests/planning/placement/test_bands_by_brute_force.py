"""The floor plan in bands beside every other one, on wafers of a few cores."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.planning.placement import Demand
from openwafer.planning.placement.bands import PRECISION, SLOWER, least_cycles, place_in_bands
from openwafer.planning.placement.layer_load import slowest_cycles, wire_length
from tests.examples import examples
from tests.tables import case

CORE_BYTES = 10.0
DEMANDS = st.lists(
    st.builds(
        Demand,
        name=st.just("layer"),
        core_cycles=st.floats(1, 100),
        sum_share=st.floats(0, 0.5),
        held_bytes=st.floats(0, 30),
        output_bytes=st.floats(0, 10),
    ),
    min_size=1,
    max_size=3,
)
SIDE = st.integers(1, 5)


def ways_to_cut(number: int) -> Iterator[tuple[int, ...]]:
    """All places where bands of `number` layers can begin, and the end."""
    for has_cut in product((False, True), repeat=number - 1):
        yield 0, *(place + 1 for place, cut in enumerate(has_cut) if cut), number


def least_in_bands(demands: Sequence[Demand], columns: int, rows: int) -> float:
    """Of all bands along rows with all heights and widths; infinite where none has room."""
    least = float("inf")
    for cuts in ways_to_cut(len(demands)):
        bands = [demands[first:end] for first, end in pairwise(cuts)]
        for heights in product(range(1, rows + 1), repeat=len(bands)):
            if sum(heights) <= rows:
                slowest = [
                    least_in_band(b, columns, h) for b, h in zip(bands, heights, strict=True)
                ]
                least = min(least, max(slowest))
    return least


def least_in_band(demands: Sequence[Demand], columns: int, height: int) -> float:
    least = float("inf")
    for widths in product(range(1, columns + 1), repeat=len(demands)):
        pairs = [*zip(demands, widths, strict=True)]
        if sum(widths) <= columns and all(has_room(d, w * height) for d, w in pairs):
            least = min(least, max(cycles(d, w, height) for d, w in pairs))
    return least


def has_room(demand: Demand, cores: int) -> bool:
    return demand.held_bytes <= cores * CORE_BYTES


def cycles(demand: Demand, width: int, height: int) -> float:
    """As the guide says: products and partial sums along the shorter side."""
    alone = demand.core_cycles / (width * height)
    return alone + alone * demand.sum_share * min(width, height)


@examples(100, deadline=None)
@given(DEMANDS, SIDE, SIDE)
def test_no_floor_plan_in_bands_is_faster(demands: list[Demand], columns: int, rows: int) -> None:
    least = min(least_in_bands(demands, columns, rows), least_in_bands(demands, rows, columns))
    found = place_in_bands(demands, columns, rows, CORE_BYTES)
    if found is None:
        assert least == float("inf")
    else:
        assert least * (1 - 1e-9) <= slowest_cycles(demands, found) <= least * SLOWER * 1.001


@pytest.mark.parametrize("side", [2, 3])
def test_bands_run_to_and_fro_so_that_each_layer_is_beside_the_next(side: int) -> None:
    demands = [Demand("layer", 1.0, 0.0, 0.0, 1.0)] * side**2
    found = place_in_bands(demands, side, side, CORE_BYTES)
    assert found is not None
    assert wire_length(demands, found) == side**2 - 1


def placements(columns: int, rows: int) -> list[tuple[int, int, frozenset[int]]]:
    """All rectangles of a wafer: width, height and the cores that they take."""
    return [
        (w, h, frozenset(range_of(x, y, w, h, columns)))
        for x, y in product(range(columns), range(rows))
        for w, h in product(range(1, columns - x + 1), range(1, rows - y + 1))
    ]


def range_of(x: int, y: int, width: int, height: int, columns: int) -> Iterator[int]:
    return (row * columns + x + at for row in range(y, y + height) for at in range(width))


def least_of_all(demands: Sequence[Demand], columns: int, rows: int) -> float:
    """Of all rectangles that do not overlap, wherever they are."""
    states = {frozenset[int](): 0.0}
    for demand in demands:
        after: dict[frozenset[int], float] = {}
        for taken, slowest in states.items():
            for width, height, cores in placements(columns, rows):
                if taken & cores or not has_room(demand, len(cores)):
                    continue
                time = max(slowest, cycles(demand, width, height))
                both = taken | cores
                after[both] = min(after.get(both, time), time)
        states = after
    return min(states.values())


@pytest.mark.parametrize(
    ("work", "gap"),
    [
        case((4, 2, 2), 1.0, by_default=True),
        case((5, 3, 1), 1.26, by_default=False),
        case((1, 6, 1), 4 / 3, by_default=False),
    ],
)
def test_bands_lose_at_most_a_third_against_rectangles_that_lie_anywhere(
    work: tuple[int, ...], gap: float
) -> None:
    demands = [Demand("layer", each, 0.0, 0.0, 1.0) for each in work]
    found = place_in_bands(demands, 4, 4, CORE_BYTES)
    assert found is not None
    least = least_of_all(demands, 4, 4)
    assert least * (1 - 1e-9) <= slowest_cycles(demands, found) <= gap * SLOWER * least
    bound = least_cycles(demands, 4, 4, CORE_BYTES)
    assert bound is not None
    assert bound <= least


def least_of_shapes(demands: Sequence[Demand], columns: int, rows: int) -> float:
    """Of rectangles that have no more cores than there are, and need not lie side by side."""
    sides = [*product(range(1, columns + 1), range(1, rows + 1))]
    shapes = [[(w, h) for w, h in sides if has_room(each, w * h)] for each in demands]
    return min(
        (
            max(cycles(d, w, h) for d, (w, h) in zip(demands, chosen, strict=True))
            for chosen in product(*shapes)
            if sum(w * h for w, h in chosen) <= columns * rows
        ),
        default=float("inf"),
    )


@examples(40, deadline=None)
@given(DEMANDS, st.integers(1, 4), st.integers(1, 4))
def test_the_bound_is_the_least_of_rectangles_that_share_the_cores(
    demands: list[Demand], columns: int, rows: int
) -> None:
    least = least_of_shapes(demands, columns, rows)
    found = least_cycles(demands, columns, rows, CORE_BYTES)
    if found is None:
        assert least == float("inf")
    else:
        assert least * (1 - PRECISION) <= found <= least * (1 + 1e-9)
