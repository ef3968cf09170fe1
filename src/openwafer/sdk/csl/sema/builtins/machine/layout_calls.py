"""Builtins of the layout block."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.lanes import Lanes, of_lanes, settled
from openwafer.sdk.csl.sema.builtins.machine.placement import (
    fail_without_rectangle,
    place_rectangle,
)
from openwafer.sdk.csl.sema.builtins.machine.routes import color_config, color_number
from openwafer.sdk.csl.sema.layout_numbers import take_apart
from openwafer.sdk.csl.sema.layout_state import Deferred, LayoutState, Rectangle, Tiles
from openwafer.sdk.csl.sema.modules import warn_of_unknown_params
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand
from openwafer.sdk.program.program import HostName
from openwafer.sdk.program.routing import ColorConfig
from openwafer.source import Span

_MAX_PARAMETERS: Final = 15


def _layout(sema: Sema) -> LayoutState:
    assert sema.layout is not None
    return sema.layout


class _Spots:
    """The PE at (x, y), or one for each lane.

    `numbers` are what the layout has given PEs so far, 0 is nothing.
    """

    def __init__(self, sema: Sema, call: ast.BuiltinCall, nodes: Sequence[ast.Expression]) -> None:
        self._sema = sema
        self._x, self._y = (_number(sema, node) for node in nodes)
        self._width = _inside(sema, call, self._x, self._y).size[0]

    def pes(self, active: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Row-major in the rectangle, of the active lanes."""
        return of_lanes(self._y, active) * self._width + of_lanes(self._x, active)

    def taken(self, numbers: NDArray[np.int32], pes: NDArray[np.int64]) -> int:
        """The number that the PE has already, or 0; several PEs that are not free have an order."""
        is_free = not numbers[pes].any() and _are_distinct(pes, numbers.size)
        if not is_free:
            self._sema.in_order()
        return int(numbers[pes[0]])

    def __str__(self) -> str:
        return f"PE ({self._x}, {self._y})"


def _are_distinct(pes: NDArray[np.int64], num_pes: int) -> bool:
    if pes.size == 1:
        return True
    met = np.zeros(num_pes, bool)
    met[pes] = True
    return int(met.sum()) == pes.size


def _number(sema: Sema, node: ast.Expression) -> Any:
    value = sema.comptime_value(node).value
    return value if isinstance(value, Lanes) else sema.integer(node)


def _defer(sema: Sema, layout: LayoutState, act: Callable[[NDArray[np.bool_]], None]) -> None:
    """Do something for all lanes that get to their end with those that are active now."""
    if sema.num_lane_loops:
        layout.deferred.append(Deferred(sema.group.active, act))
    else:
        act(sema.group.active)


def _inside(sema: Sema, call: ast.BuiltinCall, x: int, y: int) -> Rectangle:
    rectangle = _layout(sema).rectangle
    if rectangle is None:
        fail_without_rectangle(sema, call)
    width, height = rectangle.size
    if not (0 <= x < width and 0 <= y < height):
        message = f"PE ({x}, {y}) lies outside of the {width} x {height} rectangle"
        help_text = f"x is 0 to {width - 1}, y is 0 to {height - 1}"
        sema.fail("outside-rectangle", message, call.span, help=help_text)
    return rectangle


@builtin("set_rectangle")
def _set_rectangle(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    layout = _layout(sema)
    sema.in_order()
    width, height = (sema.integer(node) for node in call.arguments)
    if layout.rectangle is not None:
        sema.fail("rectangle-twice", "@set_rectangle was called already", call.span)
    layout.is_refused = True
    if width < 1 or height < 1:
        message = f"a rectangle of {width} x {height} has no PE"
        sema.fail("empty-rectangle", message, call.span)
    layout.place(place_rectangle(sema.options, (width, height), call.span))
    return NOTHING


@builtin("set_tile_code")
def _set_tile_code(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    layout = _layout(sema)
    spots = _Spots(sema, call, nodes[:2])
    path = sema.module.path
    if len(nodes) > 2:
        key = (sema.string(nodes[2]), path)
        if key not in layout.files:
            layout.files[key] = sema.imports.find(*key, nodes[2].span)
        path = layout.files[key]
    params: dict[str, Comptime] = {}
    if len(nodes) > 3:
        given = sema.fields(sema.comptime_value(nodes[3]), nodes[3].span)
        params = {name: sema.known(value, nodes[3].span) for name, value in given.items()}
        warn_of_unknown_params(sema, path, params, nodes[3])
    shape, numbers = take_apart(params)

    def give(active: NDArray[np.bool_]) -> None:
        pes = spots.pes(active)
        if spots.taken(layout.tiles_of, pes):
            message = f"{spots} has its code already"
            sema.fail("tile-twice", message, call.span, help="call @set_tile_code once for each PE")
        columns = tuple(of_lanes(n, active) if isinstance(n, Lanes) else n for n in numbers)
        layout.tiles.append(Tiles(path, shape, columns, pes, call.span))
        layout.claim(layout.tiles_of, pes, len(layout.tiles))

    _defer(sema, layout, give)
    return NOTHING


@builtin("set_color_config")
def _set_color_config(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    x_node, y_node, color_node, node = call.arguments
    layout = _layout(sema)
    spots = _Spots(sema, call, (x_node, y_node))
    color = color_number(sema, color_node)
    config = _config(sema, layout, node, color)
    numbers = layout.configs_of_color(color)

    def give(active: NDArray[np.bool_]) -> None:
        pes = spots.pes(active)
        first = spots.taken(numbers, pes)
        if first:
            message = f"color {color} of {spots} is configured already"
            notes = (_at(layout.configs[first - 1][1]),)
            sema.fail("color-twice", message, call.span, notes=notes)
        layout.claim(numbers, pes, layout.number_of(config, call.span))

    _defer(sema, layout, give)
    return NOTHING


def _config(sema: Sema, layout: LayoutState, node: ast.Expression, color: int) -> ColorConfig:
    """Read a configuration; PEs by the thousand share theirs."""
    struct = sema.comptime_value(node)
    struct = Comptime(struct.type, settled(struct.value))
    found = layout.known_configs.get((struct, color))
    if found is None:
        found = settled(color_config(sema, node, color))
        layout.known_configs[struct, color] = found
    return found


def _at(span: Span) -> str:
    line = span.source.position(span.start).line
    return f"first at {span.source.name}:{line}"


@builtin("export_name")
def _export_name(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    layout = _layout(sema)
    sema.in_order()
    name = sema.string(nodes[0])
    kind = sema.type_of_node(nodes[1])
    if name in layout.names:
        sema.fail("name-twice", f"'{name}' is exported already", nodes[0].span)
    number = len(layout.names) + 1
    if isinstance(kind, t.Function):
        inputs = tuple(_inputs(sema, nodes[1], kind))
        layout.names[name] = HostName(number, name, str(kind.result), inputs=inputs)
        return NOTHING
    if t.is_aggregate(kind) or isinstance(kind, t.Enum) or t.is_comptime_only(kind):
        message = f"a name of type '{kind}' cannot be exported"
        help_text = "export a scalar, a pointer such as [*]f32, or a function"
        sema.fail("export-type", message, nodes[1].span, help=help_text)
    if len(nodes) < 3:
        message = f"say whether the host may write '{name}'"
        sema.fail("export-mutable", message, call.span, help="pass true or false")
    is_mutable = bool(sema.comptime_value(nodes[2], t.BOOL).value)
    layout.names[name] = HostName(number, name, str(kind), is_mutable)
    return NOTHING


def _inputs(sema: Sema, node: ast.Expression, kind: t.Function) -> Iterator[tuple[str, str]]:
    if len(kind.parameters) > _MAX_PARAMETERS:
        message = f"an exported function takes {_MAX_PARAMETERS} parameters at most"
        sema.fail("export-type", message, node.span)
    for index, parameter in enumerate(kind.parameters):
        yield f"arg{index}", str(parameter)


@builtin("openwafer_stream")
def _stream(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """Declare a stream of the memcpy library; void for one that the program lacks."""
    name_node, node = call.arguments
    layout = sema.layout
    operand = sema.comptime_value(node)
    if layout is None:
        return NOTHING
    sema.in_order()
    layout.has_memcpy = True
    if operand.type != t.VOID:
        layout.has_numbered_streams |= t.is_int(operand.type)
        layout.streams[sema.string(name_node)] = color_number(sema, node)
    return NOTHING
