"""Builtins of the layout block."""

from collections.abc import Iterator
from typing import Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.engine import Sema, builtin
from openwafer.sdk.csl.sema.layout_state import LayoutState, Rectangle, Tile
from openwafer.sdk.csl.sema.machine.arguments import take
from openwafer.sdk.csl.sema.machine.placement import place_rectangle
from openwafer.sdk.csl.sema.machine.routes import color_config, color_number
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand
from openwafer.sdk.program.program import HostName
from openwafer.sdk.program.routing import ColorConfig
from openwafer.source import Span

_MAX_PARAMETERS: Final = 15


def _layout(sema: Sema, call: ast.BuiltinCall) -> LayoutState:
    if sema.layout is None:
        message = f"@{call.name.text} is for the layout block"
        sema.fail("not-in-layout", message, call.span, help="move it into layout { ... }")
    return sema.layout


def _inside(sema: Sema, call: ast.BuiltinCall, x: int, y: int) -> Rectangle:
    rectangle = _layout(sema, call).rectangle
    if rectangle is None:
        message = f"@{call.name.text} comes behind @set_rectangle"
        sema.fail("no-rectangle", message, call.span)
    width, height = rectangle.size
    if not (0 <= x < width and 0 <= y < height):
        message = f"PE ({x}, {y}) lies outside of the {width} x {height} rectangle"
        help_text = f"x is 0 to {width - 1}, y is 0 to {height - 1}"
        sema.fail("outside-rectangle", message, call.span, help=help_text)
    return rectangle


@builtin("set_rectangle")
def _set_rectangle(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    layout = _layout(sema, call)
    width, height = (sema.integer(node) for node in take(sema, call, 2))
    if layout.rectangle is not None:
        sema.fail("rectangle-twice", "@set_rectangle was called already", call.span)
    if width < 1 or height < 1:
        message = f"a rectangle of {width} x {height} has no PE"
        sema.fail("empty-rectangle", message, call.span)
    layout.rectangle = place_rectangle(sema.options, (width, height), call.span)
    return NOTHING


@builtin("set_tile_code")
def _set_tile_code(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = take(sema, call, 2, 4)
    layout = _layout(sema, call)
    x, y = (sema.integer(node) for node in nodes[:2])
    _inside(sema, call, x, y)
    if (x, y) in layout.tiles:
        message = f"PE ({x}, {y}) has its code already"
        sema.fail("tile-twice", message, call.span, help="call @set_tile_code once for each PE")
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
    layout.tiles[x, y] = Tile(path, params, call.span)
    return NOTHING


@builtin("set_color_config")
def _set_color_config(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    x_node, y_node, color_node, node = take(sema, call, 4)
    layout = _layout(sema, call)
    x, y = sema.integer(x_node), sema.integer(y_node)
    _inside(sema, call, x, y)
    color = color_number(sema, color_node)
    colors = layout.colors.setdefault((x, y), {})
    if color in colors:
        message = f"color {color} of PE ({x}, {y}) is configured already"
        sema.fail("color-twice", message, call.span, notes=(_at(colors[color][1]),))
    colors[color] = (_config(sema, layout, node, color), call.span)
    return NOTHING


def _config(sema: Sema, layout: LayoutState, node: ast.Expression, color: int) -> ColorConfig:
    """Read a configuration; PEs by the thousand share theirs."""
    struct = sema.comptime_value(node)
    found = layout.configs.get((struct, color))
    if found is None:
        found = layout.configs[struct, color] = color_config(sema, node, color)
    return found


def _at(span: Span) -> str:
    line = span.source.position(span.start).line
    return f"first at {span.source.name}:{line}"


@builtin("export_name")
def _export_name(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = take(sema, call, 2, 3)
    layout = _layout(sema, call)
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
    is_mutable = sema.comptime_value(nodes[2], t.BOOL).value is True
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
    name_node, node = take(sema, call, 2)
    layout = sema.layout
    operand = sema.comptime_value(node)
    if layout is None:
        return NOTHING
    layout.has_memcpy = True
    if operand.type != t.VOID:
        layout.streams[sema.string(name_node)] = color_number(sema, node)
    return NOTHING
