"""From the layout file of a program to the compiled program: images, routes, names for the host."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error, render
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.image_records import finished_image
from openwafer.sdk.csl.imports import ImportPaths
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.image import analyze_image, run_layout
from openwafer.sdk.csl.sema.layout_state import LayoutState, Rectangle, Surroundings, Tile
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig

_Key = tuple[object, ...]
_Routes = tuple[tuple[int, ColorConfig], ...]


def build_program(
    layout_file: Path, options: CompileOptions, imports: ImportPaths | None = None
) -> Program:
    """Compile a program down to the IR, which nobody has verified yet.

    Each file is analysed once for each set of params that PEs give it. `imports` holds what was
    read afterwards.

    Raises:
        OpenwaferError: everything wrong that was found.
    """
    path = layout_file.resolve()
    if not path.is_file():
        raise error("csl-no-file", f"there is no file '{layout_file}'")
    imports = imports or ImportPaths(path.parent, options.import_paths)
    state = LayoutState()
    warnings = list(run_layout(path, command_line_params(options), options, imports, state))
    rectangle = _complete(layout_file, state)
    surroundings = Surroundings(rectangle, state.names)
    images, image_of = _images(state, options, imports, surroundings, warnings)
    routes, routes_of = _routes(state, images, image_of)
    if options.are_warnings_errors and warnings:
        raise OpenwaferError(*(replace(w, severity=Severity.ERROR) for w in warnings))
    width, height = rectangle.size
    return Program(
        arch=options.arch,
        fabric=rectangle.fabric,
        offset=rectangle.offset,
        images=tuple(images),
        image_of=image_of,
        parameters=np.zeros((height, width, 0), dtype=np.int64),
        routes=routes,
        routes_of=routes_of,
        host_names=tuple(state.names.values()),
        streams=tuple(state.streams.items()),
        params=options.params,
        colors=tuple((name, str(color)) for name, color in options.colors),
        channels=options.channels if options.is_memcpy else 0,
        warnings=tuple(render(warning) for warning in warnings),
        printed=tuple(state.printed),
    )


def command_line_params(options: CompileOptions) -> dict[str, Comptime]:
    """Values of `--params` and `--colors` for the layout file's params."""
    params = {name: _value(name, text) for name, text in options.params}
    return params | {name: Comptime(t.COLOR, color) for name, color in options.colors}


def _value(name: str, text: str) -> Comptime:
    if text in ("true", "false"):
        return Comptime(t.BOOL, text == "true")
    for kind, parse in ((t.COMPTIME_INT, lambda word: int(word, 0)), (t.COMPTIME_FLOAT, float)):
        try:
            return Comptime(kind, parse(text))
        except ValueError:
            continue
    message = f"--params={name}:{text}: the value is no integer, float or bool"
    raise error("csl-params", message)


def _complete(layout_file: Path, state: LayoutState) -> Rectangle:
    if state.rectangle is None:
        raise error(
            "csl-no-rectangle",
            f"the layout block of '{layout_file}' does not call @set_rectangle",
            help="call it once, before @set_tile_code",
        )
    width, height = state.rectangle.size
    missing = [(x, y) for y in range(height) for x in range(width) if (x, y) not in state.tiles]
    if missing:
        x, y = missing[0]
        others = f" and {len(missing) - 1} other PEs" if len(missing) > 1 else ""
        raise error(
            "csl-no-tile-code",
            f"PE ({x}, {y}){others} of the {width} x {height} rectangle has no code",
            help="call @set_tile_code once for each PE",
        )
    return state.rectangle


def _images(
    state: LayoutState,
    options: CompileOptions,
    imports: ImportPaths,
    surroundings: Surroundings,
    warnings: list[Diagnostic],
) -> tuple[list[Image], NDArray[np.int32]]:
    width, height = surroundings.rectangle.size
    numbers: dict[_Key, int] = {}
    images: list[Image] = []
    findings: list[Diagnostic] = []
    image_of = np.zeros((height, width), dtype=np.int32)
    for (x, y), tile in state.tiles.items():
        key = _key(tile)
        if key not in numbers:
            numbers[key] = len(numbers)
            try:
                result = analyze_image(tile.path, tile.params, options, imports, surroundings)
                images.append(finished_image(_name(tile), result, options.arch))
                warnings.extend(w for w in result.warnings if w not in warnings)
                state.printed.extend(result.printed)
            except OpenwaferError as failure:
                findings.extend(d for d in failure.diagnostics if d not in findings)
        image_of[y, x] = numbers[key]
    if findings:
        raise OpenwaferError(*findings)
    return images, image_of


def _key(tile: Tile) -> _Key:
    return (tile.path, *sorted(tile.params.items(), key=lambda item: item[0]))


def _name(tile: Tile) -> str:
    shown = (f"{name}={value.value}" for name, value in tile.params.items() if _is_short(value))
    return f"{tile.path.name}({', '.join(shown)})"


def _is_short(value: Comptime) -> bool:
    return isinstance(value.value, int | float)


def _routes(
    state: LayoutState, images: list[Image], image_of: NDArray[np.int32]
) -> tuple[tuple[_Routes, ...], NDArray[np.int32]]:
    numbers: dict[_Routes, int] = {}
    routes_of = np.zeros_like(image_of)
    for x, y in state.tiles:
        given = state.colors.get((x, y), {})
        _check_overlap(state, x, y, dict(images[image_of[y, x]].colors))
        routes = tuple(sorted((color, config) for color, (config, _) in given.items()))
        routes_of[y, x] = numbers.setdefault(routes, len(numbers))
    return tuple(numbers), routes_of


def _check_overlap(state: LayoutState, x: int, y: int, local: Mapping[int, ColorConfig]) -> None:
    for color, (_, span) in state.colors.get((x, y), {}).items():
        if color in local:
            raise error(
                "csl-color-twice",
                f"color {color} of PE ({x}, {y}) is configured by its code, too",
                span=span,
                help="keep one of @set_color_config and @set_local_color_config",
            )
