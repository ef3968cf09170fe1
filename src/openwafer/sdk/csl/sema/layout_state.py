"""What the layout block says: the rectangle, the code of each PE, routes, and the host's names."""

from dataclasses import dataclass, field
from pathlib import Path

from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.program.program import HostName
from openwafer.sdk.program.routing import ColorConfig
from openwafer.source import Span


@dataclass(frozen=True)
class Rectangle:
    """Where a program lies; pairs are (x, y), columns before rows."""

    size: tuple[int, int]
    fabric: tuple[int, int]
    offset: tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """Code of one PE.

    Attributes:
        path: of the file.
        params: values that the layout gives.
        span: of the call that says so.
    """

    path: Path
    params: dict[str, Comptime]
    span: Span


@dataclass(frozen=True)
class Surroundings:
    """What the code of a PE may ask of the layout.

    Attributes:
        names: exported to the host, by name.
    """

    rectangle: Rectangle
    names: dict[str, HostName]


@dataclass
class LayoutState:
    """Filled by the builtins of the layout block.

    Attributes:
        rectangle: None before `@set_rectangle`.
        tiles: by (x, y).
        colors: configurations by (x, y) and color, each with the place that made it.
        streams: color of each stream between host and PEs, by its name.
        has_memcpy: the memcpy library was configured.
        files: of tiles, by the name as written and the file that says so.
        configs: color configurations read before, by struct and color.
        printed: lines of `@comptime_print`, of the layout before those of each image.
    """

    rectangle: Rectangle | None = None
    tiles: dict[tuple[int, int], Tile] = field(default_factory=dict)
    colors: dict[tuple[int, int], dict[int, tuple[ColorConfig, Span]]] = field(default_factory=dict)
    names: dict[str, HostName] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    has_memcpy: bool = False
    files: dict[tuple[str, Path], Path] = field(default_factory=dict)
    configs: dict[tuple[Comptime, int], ColorConfig] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
