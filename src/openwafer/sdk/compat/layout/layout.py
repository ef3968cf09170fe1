"""The vendor's layout class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from openwafer.atomic_file import write_text
from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.compat.geometry import IntVector
from openwafer.sdk.compat.layout import csl_text
from openwafer.sdk.compat.layout.ports import Port, write_ports
from openwafer.sdk.compat.layout.region import CodeRegion, Place, PortHandle
from openwafer.sdk.compat.layout.routes import Color, Position
from openwafer.sdk.compat.layout.symbols import with_symbols
from openwafer.sdk.compat.layout.wiring import HOST_INPUT, HOST_OUTPUT, ColorValues, Grid
from openwafer.sdk.compat.platform import SdkCompileArtifacts, SdkExecutionPlatform, SdkTarget
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.compiler.compilations import clear
from openwafer.sdk.compiler.pipeline import compile_program
from openwafer.sdk.csl.files import check_file
from openwafer.sdk.csl.imports import beside_link
from openwafer.sdk.csl.options import CompileOptions

_MARGIN = 2
"""Tiles around the regions, for paths."""


class FP16TYPE(Enum):
    """Format of 16-bit floats."""

    F16 = "f16"
    BF16 = "bf16"
    CB16 = "cb16"


@dataclass(frozen=True)
class _Stream:
    port: PortHandle
    place: Place | None


class SdkLayout:
    """A program whose layout Python says; methods as the vendor documents them."""

    def __init__(self, platform: SdkExecutionPlatform | SdkTarget, **options: Any) -> None:
        target = platform if isinstance(platform, SdkTarget) else platform.target
        self._arch: Arch = target.arch
        self._regions: list[CodeRegion] = []
        self._connections: list[tuple[PortHandle, PortHandle]] = []
        self._streams: dict[str, _Stream] = {}

    def create_code_region(self, source: str, name: str, width: int, height: int) -> CodeRegion:
        """Return a new region of PEs that run a file."""
        if any(region.name == name for region in self._regions):
            raise error("layout-region", f"there is a region {name} already")
        region = CodeRegion(source, name, width, height)
        self._regions.append(region)
        return region

    def connect(self, tx: PortHandle, rx: PortHandle) -> None:
        """Let what leaves over `tx` come in over `rx`; the way is found when compiling."""
        if tx.is_input or not rx.is_input:
            raise error("layout-connect", f"{tx.name} is no output or {rx.name} no input")
        self._connections.append((tx, rx))

    def create_input_stream(
        self, port: PortHandle, io_loc: IntVector | None = None, io_buffer_size: int = 1024
    ) -> str:
        """Let the host send to an input port; return the stream's name."""
        return self._add_stream(port, io_loc, is_input=True)

    def create_output_stream(
        self, port: PortHandle, io_loc: IntVector | None = None, io_buffer_size: int = 1024
    ) -> str:
        """Let the host receive from an output port; return the stream's name."""
        return self._add_stream(port, io_loc, is_input=False)

    def hstack(self, children: Sequence[CodeRegion], origin: IntVector | None = None) -> int:
        """Place regions side by side and return their width."""
        x, y = (origin.x, origin.y) if origin else children[0].origin
        for child in children:
            child.place(x, y)
            x += child.width
        return sum(child.width for child in children)

    def vstack(self, children: Sequence[CodeRegion], origin: IntVector | None = None) -> int:
        """Place regions one below the other and return their height."""
        x, y = (origin.x, origin.y) if origin else children[0].origin
        for child in children:
            child.place(x, y)
            y += child.height
        return sum(child.height for child in children)

    def compile(
        self,
        out_prefix: str,
        libs: Sequence[str] = (),
        cslc_prefix: str = "",
        save_port_map: bool = False,
        f16_type: FP16TYPE = FP16TYPE.F16,
    ) -> SdkCompileArtifacts:
        """Compile into a folder.

        Raises OpenwaferError where regions overlap, a connection finds no way, or code is wrong.
        """
        folder = Path(out_prefix)
        clear(folder)
        generated = folder / "generated"
        generated.mkdir(parents=True, exist_ok=True)
        write_text(generated / "idle.csl", csl_text.IDLE)
        write_text(generated / "forward.csl", csl_text.FORWARD)
        wired = self._wire()
        text = csl_text.layout_text(wired.size, self._tiles(wired, generated), wired.routes)
        write_text(generated / "layout.csl", text)
        options = CompileOptions(
            arch=self._arch,
            fabric_dims=wired.size,
            fabric_offsets=(0, 0),
            import_paths=tuple(Path(path) for path in libs),
            fp16_format=f16_type.value,
            release=self._release(),
        )
        program = compile_program(generated / "layout.csl", options)
        streams = (("MEMCPYH2D_1", HOST_INPUT), ("MEMCPYD2H_1", HOST_OUTPUT))
        program = replace(with_symbols(program, self._regions), streams=streams)
        compilation_of(program).write(folder)
        write_ports(wired.ports, folder / "bin")
        return SdkCompileArtifacts(out_prefix)

    def _add_stream(self, port: PortHandle, place: IntVector | None, *, is_input: bool) -> str:
        if port.is_input is not is_input:
            word = "input" if is_input else "output"
            raise error("layout-stream", f"{port.name} is no {word} port")
        self._streams[port.name] = _Stream(port, (place.x, place.y) if place else None)
        return port.name

    def _wire(self) -> "_Wired":
        values = ColorValues()
        for color in self._colors():
            values.add(color)
        for tx, rx in self._connections:
            values.join(tx.color, rx.color)
        numbers = values.assign(self._switched(), GENERATIONS[self._arch])
        grid = Grid(self._size(), self._occupied())
        for tx, rx in self._connections:
            grid.connect(tx, rx, numbers[tx.color])
        ports: list[Port] = []
        for name, stream in self._streams.items():
            taken = {(port.x, port.y) for port in ports}
            free = frozenset(taken) if stream.place is None else _all_but(stream.place, grid.size)
            x, y = grid.reach(stream.port, numbers[stream.port.color], free)
            host_color = HOST_INPUT if stream.port.is_input else HOST_OUTPUT
            ports.append(Port(name, stream.port.is_input, host_color, x, y))
        return _Wired(grid, numbers, tuple(ports), self._painted(numbers))

    def _release(self) -> str:
        """The SDK that the code is for: since 2.10 a color comes as a number."""
        given = {
            name in csl_text.integer_params(_source_of(region))
            for region in self._regions
            for params in region.params.values()
            for name, value in params.items()
            if isinstance(value, Color)
        }
        return "2.10" if given == {True} else ""

    def _colors(self) -> list[Color]:
        painted = [c for region in self._regions for p in region.paints.values() for c in p]
        given = [
            value
            for region in self._regions
            for params in region.params.values()
            for value in params.values()
            if isinstance(value, Color)
        ]
        return painted + given

    def _switched(self) -> list[Color]:
        return [
            color
            for region in self._regions
            for colors in region.paints.values()
            for color, positions in colors.items()
            if len(positions) > 1
        ]

    def _size(self) -> tuple[int, int]:
        width = max(region.origin[0] + region.width for region in self._regions)
        height = max(region.origin[1] + region.height for region in self._regions)
        return width + _MARGIN, height + _MARGIN

    def _occupied(self) -> frozenset[Place]:
        occupied: dict[Place, str] = {}
        for region in self._regions:
            for place in _places(region):
                if place in occupied:
                    raise error(
                        "layout-overlap",
                        f"regions {occupied[place]} and {region.name} both lie on PE {place}",
                    )
                occupied[place] = region.name
        return frozenset(occupied)

    def _painted(self, numbers: dict[Color, int]) -> dict[Place, dict[int, tuple[Position, ...]]]:
        return {
            (region.origin[0] + x, region.origin[1] + y): {
                numbers[color]: positions for color, positions in colors.items()
            }
            for region in self._regions
            for (x, y), colors in region.paints.items()
        }

    def _tiles(self, wired: "_Wired", generated: Path) -> dict[Place, tuple[Path, dict[str, str]]]:
        here = generated.resolve()
        tiles: dict[Place, tuple[Path, dict[str, str]]] = {
            (x, y): (here / "idle.csl", {})
            for y in range(wired.size[1])
            for x in range(wired.size[0])
        }
        for port in wired.ports:
            port_color = wired.numbers[self._streams[port.name].port.color]
            ends = (port.color, port_color) if port.is_input else (port_color, port.color)
            source, target = map(csl_text.color_value, ends)
            tiles[port.x, port.y] = here / "forward.csl", {"source": source, "target": target}
        for region in self._regions:
            path = _source_of(region)
            integers = csl_text.integer_params(path)
            for (x, y), params in region.params.items():
                written = {
                    name: wired.written(value, is_integer=name in integers)
                    for name, value in params.items()
                }
                tiles[region.origin[0] + x, region.origin[1] + y] = path, written
        return tiles


@dataclass(frozen=True)
class _Wired:
    """A layout with numbers for its colors and ways for its connections."""

    grid: Grid
    numbers: dict[Color, int]
    ports: tuple[Port, ...]
    painted: dict[Place, dict[int, tuple[Position, ...]]]

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the fabric."""
        return self.grid.size

    @property
    def routes(self) -> dict[Place, dict[int, tuple[Position, ...]]]:
        """Positions of every color on every PE."""
        paths: dict[Place, dict[int, tuple[Position, ...]]] = {
            place: {value: (position,) for value, position in colors.items()}
            for place, colors in self.grid.routes.items()
        }
        return paths | self.painted

    def written(self, value: int | Color, *, is_integer: bool) -> str:
        """Return a parameter's value as CSL."""
        if not isinstance(value, Color):
            return str(value)
        number = self.numbers[value]
        return str(number) if is_integer else csl_text.color_value(number)


def _source_of(region: CodeRegion) -> Path:
    check_file(Path(region.source), f"region {region.name}: ")
    return beside_link(Path(region.source))


def _places(region: CodeRegion) -> list[Place]:
    return [(region.origin[0] + x, region.origin[1] + y) for x, y in region.params]


def _all_but(place: Place, size: tuple[int, int]) -> frozenset[Place]:
    tiles = ((x, y) for y in range(size[1]) for x in range(size[0]))
    return frozenset(tile for tile in tiles if tile != place)
