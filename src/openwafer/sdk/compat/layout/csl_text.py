"""A layout as CSL: one file with the layout block, one for idle PEs, one for the host's streams."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from openwafer.sdk.compat.layout.region import Place
from openwafer.sdk.compat.layout.routes import Position, Route
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.parser import parse
from openwafer.source import SourceText

IDLE: Final = "comptime {}\n"
"""Code of a PE that only routes."""

FORWARD: Final = """\
param source: color;
param target: color;
const source_queue = @get_input_queue(2);
const target_queue = @get_output_queue(2);
const from = @get_dsd(fabin_dsd,
    .{ .extent = 32767, .fabric_color = source, .input_queue = source_queue });
const to = @get_dsd(fabout_dsd,
    .{ .extent = 32767, .fabric_color = target, .output_queue = target_queue });
const forward_id = @get_local_task_id(24);
task forward() void {
  @mov32(to, from, .{ .async = true, .activate = forward });
}
comptime {
  @bind_local_task(forward, forward_id);
  @activate(forward_id);
  @initialize_queue(source_queue, .{ .color = source });
  if (@is_arch("wse3")) {
    @initialize_queue(target_queue, .{ .color = target });
  }
}
"""
"""Code of a PE between the host and a port."""

Tiles = Mapping[Place, tuple[Path, Mapping[str, str]]]
Routes = Mapping[Place, Mapping[int, tuple[Position, ...]]]


def layout_text(size: tuple[int, int], tiles: Tiles, routes: Routes) -> str:
    """Return the layout file.

    Args:
        size: columns and rows of the fabric.
        tiles: file and parameters, as CSL values, of every PE.
        routes: positions of each color of a PE.
    """
    return "\n".join(_lines(size, tiles, routes)) + "\n"


def integer_params(path: Path) -> frozenset[str]:
    """Return the parameters of a file that are declared with a type other than color.

    The newer dialect gives a color's number to a parameter of an integer type.
    """
    module, _ = parse(SourceText(str(path), path.read_text("utf-8", "replace")))
    return frozenset(
        declared.name.text
        for declared in module.declarations
        if isinstance(declared, ast.Variable)
        and declared.kind is ast.VariableKind.PARAM
        and isinstance(declared.type, ast.Identifier)
        and declared.type.name != "color"
    )


def color_value(value: int) -> str:
    """Return a color as CSL."""
    return f"@get_color({value})"


def _lines(size: tuple[int, int], tiles: Tiles, routes: Routes) -> Iterator[str]:
    yield "layout {"
    yield f"  @set_rectangle({size[0]}, {size[1]});"
    for (x, y), (path, params) in sorted(tiles.items()):
        fields = ", ".join(f".{name} = {value}" for name, value in params.items())
        yield f'  @set_tile_code({x}, {y}, "{path}", .{{ {fields} }});'
    for (x, y), colors in sorted(routes.items()):
        for value, positions in sorted(colors.items()):
            config = f"{color_value(value)}, .{{ {_config(positions)} }}"
            yield f"  @set_color_config({x}, {y}, {config});"
    yield "}"


def _config(positions: tuple[Position, ...]) -> str:
    base = positions[0]
    text = f".routes = .{{ .rx = {_set(base.inputs)}, .tx = {_set(base.outputs)} }}"
    if len(positions) == 1:
        return text
    switches = ", ".join(
        f".pos{number} = .{{ {_change(base, position)} }}"
        for number, position in enumerate(positions[1:], 1)
    )
    return f"{text}, .switches = .{{ {switches} }}"


def _set(routes: tuple[Route, ...]) -> str:
    return f".{{ {', '.join(route.value for route in routes)} }}"


def _change(base: Position, position: Position) -> str:
    changes = []
    if position.inputs != base.inputs:
        changes.append(f".rx = {position.inputs[0].value}")
    if position.outputs != base.outputs:
        changes.append(f".tx = {position.outputs[0].value}")
    return ", ".join(changes)
