"""Layouts in Python as CSL."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.geometry import IntRectangle, IntVector
from openwafer.sdk.compat.layout.csl_text import layout_text
from openwafer.sdk.compat.layout.region import CodeRegion
from openwafer.sdk.compat.layout.routes import (
    Color,
    Edge,
    Position,
    Route,
    RoutingPosition,
    get_edge_routing,
)
from openwafer.sdk.csl.parser import parse
from openwafer.source import SourceText

WEST_RAMP = RoutingPosition().set_input([Route.WEST]).set_output([Route.RAMP])
WEST_EAST = RoutingPosition().set_input([Route.WEST]).set_output([Route.EAST])


def test_the_text_is_a_layout_block_without_errors() -> None:
    positions = (Position((Route.WEST,), (Route.RAMP,)), Position((Route.WEST,), (Route.EAST,)))
    tiles = {(0, 0): (Path("/a.csl"), {"size": "4", "c": "@get_color(3)"})}
    text = layout_text((1, 1), tiles, {(0, 0): {3: positions}})
    assert parse(SourceText("layout.csl", text))[1] == ()
    assert '@set_tile_code(0, 0, "/a.csl", .{ .size = 4, .c = @get_color(3) });' in text
    assert ".routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } }" in text
    assert ".switches = .{ .pos1 = .{ .tx = EAST } }" in text


def test_an_edge_is_painted_over_the_whole() -> None:
    region, color = CodeRegion("f.csl", "r", 3, 1), Color("c")
    region.paint_all(color, [WEST_EAST], [get_edge_routing(Edge.RIGHT, [WEST_RAMP])])
    outputs = [region.paints[x, 0][color][0].outputs for x in range(3)]
    assert outputs == [(Route.EAST,), (Route.EAST,), (Route.RAMP,)]


def test_a_port_completes_its_positions_with_the_way_in() -> None:
    region, color = CodeRegion("f.csl", "r", 1, 2), Color("c")
    region.create_input_port(color, Edge.LEFT, [RoutingPosition().set_output([Route.RAMP])], 4)
    expected = (Position((Route.WEST,), (Route.RAMP,)),)
    assert [region.paints[0, y][color] for y in range(2)] == [expected, expected]


def test_the_same_port_twice_needs_a_prefix() -> None:
    region, color = CodeRegion("f.csl", "r", 1, 1), Color("c")
    region.create_input_port(color, Edge.LEFT, [WEST_RAMP], 4)
    with pytest.raises(OpenwaferError, match=r"a port r_c already(.|\n)*prefix"):
        region.create_input_port(color, Edge.LEFT, [WEST_RAMP], 4)


def test_a_range_ends_before_its_far_corner() -> None:
    region = CodeRegion("f.csl", "r", 3, 2)
    region.set_param_range(IntRectangle(IntVector(1, 0), IntVector(3, 1)), "n", 7)
    assert [place for place, params in region.params.items() if params] == [(1, 0), (2, 0)]


def test_a_pe_outside_of_the_region_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"PE \(2, 0\) is outside of region r of 2 by 1"):
        CodeRegion("f.csl", "r", 2, 1).set_param(IntVector(2, 0), "n", 1)


def test_a_symbol_is_spread_in_blocks() -> None:
    region = CodeRegion("f.csl", "r", 2, 2)
    data = np.arange(24, dtype=np.float32)
    region.set_symbol_all("A", data, 6, 4)
    np.testing.assert_array_equal(region.part_of_symbol("A", (1, 0)), data.reshape(4, 6)[0:2, 3:6])


def test_a_symbol_that_does_not_spread_evenly_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="3 by 2 elements do not spread evenly over 2 by 1"):
        CodeRegion("f.csl", "r", 2, 1).set_symbol_all("A", np.zeros(6, np.float32), 3, 2)
