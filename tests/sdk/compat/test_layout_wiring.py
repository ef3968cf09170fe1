"""Layouts in Python: colors get values, ports get paths."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import WSE3
from openwafer.sdk.compat.layout.region import CodeRegion, Place, PortHandle
from openwafer.sdk.compat.layout.routes import Color, Edge, Position, Route, RoutingPosition
from openwafer.sdk.compat.layout.wiring import ColorValues, Grid

RAMP_IN = RoutingPosition().set_input([Route.RAMP])
RAMP_OUT = RoutingPosition().set_output([Route.RAMP])


def region(name: str, x: int, y: int, width: int = 1, height: int = 1) -> CodeRegion:
    made = CodeRegion("f.csl", name, width, height)
    made.place(x, y)
    return made


def tx(x: int, y: int, edge: Edge, height: int = 1) -> PortHandle:
    return region("tx", x, y, 1, height).create_output_port(Color("c"), edge, [RAMP_IN], 4)


def rx(x: int, y: int, edge: Edge, height: int = 1) -> PortHandle:
    return region("rx", x, y, 1, height).create_input_port(Color("c"), edge, [RAMP_OUT], 4)


def grid(*occupied: Place, size: int = 9) -> Grid:
    return Grid((size, size), frozenset(occupied))


def follow(wired: Grid, start: Place, direction: Route, value: int) -> tuple[Place, Route]:
    """Walk from router to router as a wavelet does; return where it ends and how it arrives."""
    place, seen = start, {start}
    while True:
        place = place[0] + direction.step[0], place[1] + direction.step[1]
        position = wired.routes.get(place, {}).get(value)
        if position is None or direction is Route.RAMP:
            return place, direction
        assert position.inputs == (direction.opposite,)
        assert place not in seen
        seen.add(place)
        direction = position.outputs[0]


def moved(place: Place, edge: Edge) -> Place:
    return place[0] + edge.outside.step[0], place[1] + edge.outside.step[1]


places = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(places, places, st.sampled_from(Edge), st.sampled_from(Edge))
def test_a_path_leads_from_every_port_to_every_other(
    one: Place, other: Place, leave: Edge, arrive: Edge
) -> None:
    assume(one != other and moved(one, leave) != other and moved(other, arrive) != one)
    wired = grid(one, other)
    wired.connect(tx(*one, leave), rx(*other, arrive), 3)
    assert follow(wired, one, leave.outside, 3) == (other, arrive.outside.opposite)


def test_neighbours_need_no_path() -> None:
    wired = grid((2, 2), (3, 2))
    wired.connect(tx(2, 2, Edge.RIGHT), rx(3, 2, Edge.LEFT), 1)
    assert wired.routes == {}


def test_ports_of_several_pes_get_parallel_paths() -> None:
    wired = grid((1, 1), (1, 2), (4, 1), (4, 2))
    wired.connect(tx(1, 1, Edge.RIGHT, 2), rx(4, 1, Edge.LEFT, 2), 1)
    straight = Position((Route.WEST,), (Route.EAST,))
    assert wired.routes == {(x, y): {1: straight} for x in (2, 3) for y in (1, 2)}


def test_two_colors_share_a_tile_and_one_color_does_not_cross_itself() -> None:
    wired = grid((0, 1), (2, 1), (1, 0), (1, 2), size=3)
    wired.connect(tx(0, 1, Edge.RIGHT), rx(2, 1, Edge.LEFT), 1)
    wired.connect(tx(1, 0, Edge.BOTTOM), rx(1, 2, Edge.TOP), 2)
    assert set(wired.routes[1, 1]) == {1, 2}
    with pytest.raises(OpenwaferError, match="there is no way from tx_c to rx_c"):
        wired.connect(tx(1, 0, Edge.BOTTOM), rx(1, 2, Edge.TOP), 1)


def test_a_stream_ends_at_the_nearest_free_tile() -> None:
    wired = grid((4, 4))
    assert wired.reach(rx(4, 4, Edge.RIGHT), 1, frozenset()) == (5, 4)
    assert wired.routes[5, 4][1] == Position((Route.RAMP,), (Route.WEST,))


def test_a_second_stream_passes_the_first() -> None:
    wired = grid((4, 4))
    wired.reach(rx(4, 4, Edge.RIGHT), 1, frozenset())
    end = wired.reach(tx(4, 4, Edge.RIGHT), 2, frozenset(((5, 4),)))
    assert follow(wired, (4, 4), Route.EAST, 2)[0] == end != (5, 4)


def test_ports_of_other_sizes_do_not_connect() -> None:
    with pytest.raises(OpenwaferError, match="tx_c has 2 PEs and 4 wavelets, rx_c 1 and 4"):
        grid().connect(tx(1, 1, Edge.RIGHT, 2), rx(4, 1, Edge.LEFT), 1)


def test_connected_colors_have_one_value_and_others_their_own() -> None:
    values, colors = ColorValues(), [Color(name) for name in "abc"]
    for color in colors:
        values.add(color)
    values.join(colors[0], colors[2])
    numbers = values.assign([], WSE3)
    assert numbers[colors[0]] == numbers[colors[2]] != numbers[colors[1]]


def test_a_given_value_holds_for_the_whole_class() -> None:
    values, free, given_one = ColorValues(), Color("free"), Color("given", 5)
    values.join(free, given_one)
    assert values.assign([], WSE3)[free] == 5


def test_two_given_values_do_not_connect() -> None:
    with pytest.raises(OpenwaferError, match="a is color 1 and b is 2; a connection needs one"):
        ColorValues().join(Color("a", 1), Color("b", 2))


def test_colors_with_switches_get_values_that_have_them() -> None:
    values = ColorValues()
    plain, switched = [Color(f"p{n}") for n in range(12)], [Color(f"s{n}") for n in range(9)]
    for color in [*plain, *switched]:
        values.add(color)
    numbers = values.assign(switched, WSE3)
    assert {numbers[color] for color in switched} <= WSE3.switch_colors


def test_more_colors_than_there_are_is_said() -> None:
    values = ColorValues()
    for number in range(23):
        values.add(Color(f"c{number}"))
    with pytest.raises(OpenwaferError, match="needs more than 22 colors"):
        values.assign([], WSE3)


def test_colors_get_their_values_in_the_order_of_adding() -> None:
    colors = [Color(f"c{number}") for number in range(8)]
    # Neither the order of their addresses in memory nor its reverse.
    added = colors[3:] + colors[:3][::-1]
    values = ColorValues()
    for color in added:
        values.add(color)
    assert [values.assign([], WSE3)[color] for color in added] == list(range(8))
