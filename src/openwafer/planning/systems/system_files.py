"""A system as people describe it in a YAML file, see docs/formats/openwafer-system.md."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from openwafer.config import Bytes, InvalidFieldError, PathLike, load, path_of
from openwafer.diagnostics import error, suggestion
from openwafer.figures import Figure, Origin
from openwafer.planning.systems.published import (
    ALIASES,
    SYSTEMS,
    core_memory,
    no_recomputing,
    ramp_cycles,
    sum_cycles,
    usual_hop,
)
from openwafer.planning.systems.system import Fabric, Server, System

FORMAT = "openwafer-system"
VERSION = 1


@dataclass(frozen=True)
class StatedFigure:
    """A number, and where it comes from."""

    value: float
    origin: Origin = Origin.GIVEN
    source: str = ""

    def __post_init__(self) -> None:
        if self.origin is not Origin.GIVEN and not self.source.strip():
            raise InvalidFieldError(
                "source",
                f"a figure that is {self.origin} has to say where it is from",
                help="name the data sheet, the publication or the measurement",
            )


Stated = float | StatedFigure
StatedBytes = float | Bytes | StatedFigure


def _require(description: object, name: str, most: float = math.inf) -> None:
    stated = getattr(description, name)
    value = stated.value if isinstance(stated, StatedFigure) else stated
    if value is not None and not (0 < value <= most and value < math.inf):
        upper = "finite" if most == math.inf else f"{most:g} or less"
        raise InvalidFieldError(name, f"{value:g} is not above 0 and {upper}")


@dataclass(frozen=True)
class FabricFile:
    """The fabric of a wafer as a file has it."""

    columns: Stated
    rows: Stated
    lanes: Stated
    clock_hertz: Stated
    sum_cycles: Stated | None = None
    ramp_cycles: Stated | None = None
    core_memory_bytes: StatedBytes | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            _require(self, field.name)


@dataclass(frozen=True)
class ServerFile:
    """The host of several systems as a file has it."""

    systems: Stated
    peer_bytes_per_second: StatedBytes
    host_memory_bytes: StatedBytes
    host_bytes_per_second: StatedBytes

    def __post_init__(self) -> None:
        for field in fields(self):
            _require(self, field.name)


@dataclass(frozen=True)
class SystemFile:
    """The content of a file; a field is a key of it."""

    format: Literal["openwafer-system"]
    version: int
    name: str
    peak_flops_per_second: Stated
    utilisation: Stated
    memory_bytes: StatedBytes
    memory_bytes_per_second: StatedBytes
    link_bytes_per_second: StatedBytes
    network_bytes_per_second: StatedBytes
    power_watts: Stated
    title: str | None = None
    forwards_again: Stated | None = None
    hop_seconds: Stated | None = None
    store_bytes: StatedBytes | None = None
    store_bytes_per_second: StatedBytes | None = None
    max_systems: Stated | None = None
    fabric: FabricFile | None = None
    server: ServerFile | None = None
    streams_weights: bool = True

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InvalidFieldError(
                "version", f"{self.version}; this program reads {FORMAT} {VERSION}"
            )
        for name in _KEYS.values():
            _require(self, name, 1.0 if name == "utilisation" else math.inf)
        if (self.store_bytes is None) != (self.store_bytes_per_second is None):
            given = "store_bytes" if self.store_bytes is not None else "store_bytes_per_second"
            raise InvalidFieldError(
                given,
                "a parameter store has both a size and a rate",
                help="give both store_bytes and store_bytes_per_second, or neither",
            )


_KEYS = {
    "peak": "peak_flops_per_second",
    "utilisation": "utilisation",
    "forwards_again": "forwards_again",
    "memory": "memory_bytes",
    "memory_rate": "memory_bytes_per_second",
    "link": "link_bytes_per_second",
    "network": "network_bytes_per_second",
    "hop": "hop_seconds",
    "power": "power_watts",
    "store": "store_bytes",
    "store_rate": "store_bytes_per_second",
    "max_systems": "max_systems",
}
_FABRIC_KEYS = {
    "columns": "columns",
    "rows": "rows",
    "lanes": "lanes",
    "clock": "clock_hertz",
    "sum_cycles": "sum_cycles",
    "ramp_cycles": "ramp_cycles",
    "core_memory": "core_memory_bytes",
}
_SERVER_KEYS = {
    "systems": "systems",
    "peers": "peer_bytes_per_second",
    "host_memory": "host_memory_bytes",
    "host_rate": "host_bytes_per_second",
}
_UNITS = {
    "systems": "systems",
    "peers": "B/s",
    "host_memory": "B",
    "host_rate": "B/s",
    "peak": "FLOP/s",
    "memory": "B",
    "memory_rate": "B/s",
    "link": "B/s",
    "network": "B/s",
    "hop": "s",
    "power": "W",
    "store": "B",
    "store_rate": "B/s",
    "max_systems": "systems",
    "columns": "cores",
    "rows": "cores",
    "lanes": "multiply-adds",
    "clock": "Hz",
    "sum_cycles": "cycles",
    "ramp_cycles": "cycles",
    "core_memory": "B",
}


def find_system(name: PathLike) -> System:
    """The published system of a name, or the one that a .yaml file describes.

    Raises:
        OpenwaferError: ``system-unknown`` for what is neither; see `read_system` for files.
    """
    name = str(path_of(name, "name"))
    if name.endswith((".yaml", ".yml")):
        return read_system(name)
    known = {**SYSTEMS, **{alias: SYSTEMS[whole] for alias, whole in ALIASES.items()}}
    if name.lower() not in known:
        raise error(
            "system-unknown",
            f"no system '{name}' is known; {', '.join(known)} are",
            help=suggestion(name, known)
            or f"describe it in a .yaml file: docs/formats/{FORMAT}.md",
        )
    return known[name.lower()]


def read_system(path: PathLike) -> System:
    """The system that a file describes.

    Raises:
        OpenwaferError: every mistake of the file with its place; ``config-file`` where it cannot
            be read; ``system-too-busy`` for more than the peak.
    """
    path = path_of(path, "path")
    content = load(path, SystemFile)
    told = dict(_figures(content, _KEYS, path))
    fabric = None
    if content.fabric is not None:
        cores = {
            "sum_cycles": sum_cycles(),
            "ramp_cycles": ramp_cycles(),
            "core_memory": core_memory(),
        }
        fabric = Fabric(**cores | dict(_figures(content.fabric, _FABRIC_KEYS, path)))
    server = None
    if content.server is not None:
        server = Server(**dict(_figures(content.server, _SERVER_KEYS, path)))
    system = System(
        name=content.name,
        title=content.title or content.name,
        fabric=fabric,
        simulated=None,
        server=server,
        streams_weights=content.streams_weights,
        **{"hop": usual_hop(), "forwards_again": no_recomputing()} | told,
    )
    if system.busy_share > 1:
        raise error(
            "system-too-busy",
            f"{path}: with {system.forwards_again.value:g} forwards again a utilisation of "
            f"{system.utilisation.value:g} is {system.busy_share:.3g} of the peak",
            help="count a forward and a backward alone in utilisation, or lower forwards_again",
        )
    return system


def _figures(
    description: SystemFile | FabricFile | ServerFile, keys: dict[str, str], path: Path
) -> Iterator[tuple[str, Figure]]:
    for name, key in keys.items():
        stated = getattr(description, key)
        if stated is None:
            continue
        if not isinstance(stated, StatedFigure):
            stated = StatedFigure(float(stated))
        source = stated.source or str(path)
        yield name, Figure(name, stated.value, _UNITS.get(name, ""), stated.origin, source)
