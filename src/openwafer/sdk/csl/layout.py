"""From the layout file of a program to the compiled program: images, routes, names for the host."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, counted, error, render
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.files import check_file
from openwafer.sdk.csl.imports import ImportPaths, beside_link, display_name
from openwafer.sdk.csl.lanes import Group
from openwafer.sdk.csl.lint.image import linted
from openwafer.sdk.csl.lint.queues import RESERVED, ids_without_task, unbound_queues
from openwafer.sdk.csl.lint.routes import Code, route_warnings
from openwafer.sdk.csl.lint.unused import mistakes_in_code, mistakes_in_layout
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.image import ImageResult, analyze_image, run_layout
from openwafer.sdk.csl.sema.layout_state import LayoutState, Rectangle, Surroundings
from openwafer.sdk.csl.tile_images import ImagesOfTiles, images_of
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.ir.function import Module
from openwafer.sdk.program.debug_info import DebugInfo, Source
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig

_Routes = tuple[tuple[int, ColorConfig], ...]


@dataclass(frozen=True)
class Built:
    """A program, and the module that each image's code is the text of."""

    program: Program
    modules: tuple[Module, ...]


def build_program(layout_file: Path, options: CompileOptions) -> Program:
    """The program of :func:`build`."""
    return build(layout_file, options).program


def build(layout_file: Path, options: CompileOptions, imports: ImportPaths | None = None) -> Built:
    """Compile a program down to the IR, which nobody has verified yet.

    `imports` holds what was read afterwards.

    Raises:
        OpenwaferError: everything wrong that was found.
    """
    check_file(layout_file)
    path = beside_link(layout_file)
    imports = imports or ImportPaths(path.parent, options.import_paths)
    state = LayoutState()
    warnings = list(run_layout(path, command_line_params(options), options, imports, state))
    rectangle = _complete(layout_file, state)
    is_simd = _is_second_release(path, state, options, imports)
    surroundings = Surroundings(
        rectangle, state.names, state.tables, has_memcpy=state.has_memcpy, is_simd=is_simd
    )

    def analyse(path: Path, params: dict[str, Comptime], group: Group) -> ImageResult:
        result = analyze_image(path, params, options, imports, surroundings, group)
        return linted(result, options.arch)

    found = images_of(state, options, analyse)
    warnings.extend(warning for warning in found.warnings if warning not in warnings)
    warnings.extend((*unbound_queues(surroundings), *ids_without_task(surroundings)))
    for file, params in found.samples.items():
        warnings.extend(mistakes_in_code(file, params, options, imports, surroundings))
    if path not in found.samples:
        warnings.extend(mistakes_in_layout(path, command_line_params(options), options, imports))
    _check_overlap(state, found)
    image_of = found.image_of.reshape(rectangle.size[::-1])
    code = Code(found.images, found.traffic, image_of)
    warnings.extend(route_warnings(state, code, is_strict=options.is_strict))
    routes, routes_of = _routes(state)
    refused = [w for w in warnings if options.are_warnings_errors or _is_refused(w, options)]
    if refused:
        raise OpenwaferError(*(replace(w, severity=Severity.ERROR) for w in refused))
    width, height = rectangle.size
    program = Program(
        arch=options.arch,
        fabric=rectangle.fabric,
        offset=rectangle.offset,
        images=found.images,
        image_of=found.image_of.reshape(height, width),
        parameters=found.parameters.reshape(height, width, -1),
        routes=routes,
        routes_of=routes_of.reshape(height, width),
        host_names=tuple(state.names.values()),
        streams=tuple(state.streams.items()),
        params=options.params,
        colors=tuple((name, str(color)) for name, color in options.colors),
        channels=options.channels if options.is_memcpy else 0,
        warnings=tuple(render(warning) for warning in warnings),
        printed=(*state.printed, *found.printed),
        places=tuple(state.tables.places),
        debug=_debug_info(state, imports),
    )
    return Built(program, found.modules)


def _debug_info(state: LayoutState, imports: ImportPaths) -> DebugInfo:
    tables = state.tables
    return DebugInfo(
        sources=tuple(_sources(imports)),
        types=tuple(tables.types),
        variables=tuple(tables.variables),
        functions=tuple(tables.functions),
        layout=state.constants,
    )


def _sources(imports: ImportPaths) -> Iterator[Source]:
    """The files that were read, in that order."""
    for path, (tree, _) in imports.parsed.items():
        digest = hashlib.sha256(imports.content(path) or b"").hexdigest()
        yield Source(display_name(path), str(path), digest, tree.span.source.text)


def _is_refused(warning: Diagnostic, options: CompileOptions) -> bool:
    """Whether it is about what the vendor forbids, where that is an error."""
    return options.is_strict and warning.code == RESERVED


_FIRST_RELEASES: Final = (b"comptime_struct", b"@concat_structs")
"""Words that the SDK has lost with 2.10."""


def _is_second_release(
    layout: Path, state: LayoutState, options: CompileOptions, imports: ImportPaths
) -> bool:
    """Whether the program is for the SDK from 2.10 on, by what only that has."""
    if options.release:
        return options.release != "1.4"
    paths = {layout, *(tiles.path for tiles in state.tiles)}
    texts = [imports.content(path) or b"" for path in paths]
    is_first = any(word in text for text in texts for word in _FIRST_RELEASES)
    return state.has_numbered_streams and not is_first


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
    missing = np.flatnonzero(state.tiles_of == 0)
    if missing.size:
        y, x = divmod(int(missing[0]), width)
        more = missing.size - 1
        others = f" and {counted(more, 'more PE')}" if more else ""
        verb = "have" if more else "has"
        raise error(
            "csl-no-tile-code",
            f"PE ({x}, {y}){others} of the {width} x {height} rectangle {verb} no code",
            help="call @set_tile_code once for each PE",
        )
    return state.rectangle


def _routes(state: LayoutState) -> tuple[tuple[_Routes, ...], NDArray[np.int32]]:
    """The distinct sets of color configurations, and for each PE the number of its own."""
    sets: list[_Routes] = [()]
    set_of = np.zeros(state.num_pes, np.int64)
    for color, numbers in sorted(state.configs_of.items()):
        pairs, set_of = np.unique(set_of * (len(state.configs) + 1) + numbers, return_inverse=True)
        before, given = np.divmod(pairs, len(state.configs) + 1)
        sets = [
            (*sets[old], (color, state.configs[new - 1][0])) if new else sets[old]
            for old, new in zip(before.tolist(), given.tolist(), strict=True)
        ]
    distinct = list(dict.fromkeys(sets))
    places = np.array([distinct.index(one) for one in sets], np.int32)
    return tuple(distinct), places[set_of]


def _check_overlap(state: LayoutState, found: ImagesOfTiles) -> None:
    assert state.rectangle is not None
    for number, image in enumerate(found.images):
        for color, _ in image.colors:
            given = state.configs_of_color(color) * (found.image_of == number)
            if given.any():
                pe = int(np.flatnonzero(given)[0])
                y, x = divmod(pe, state.rectangle.size[0])
                raise error(
                    "csl-color-twice",
                    f"color {color} of PE ({x}, {y}) is configured by its code, too",
                    span=state.configs[given[pe] - 1][1],
                    help="keep one of @set_color_config and @set_local_color_config",
                )
