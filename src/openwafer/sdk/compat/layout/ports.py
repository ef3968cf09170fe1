"""Where the host's streams enter and leave the fabric, as a file beside the program."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from openwafer.atomic_file import write_text
from openwafer.diagnostics import did_you_mean, error

FILE_NAME: Final = "ports.json"
FORMAT: Final = "openwafer-ports"
VERSION: Final = 1


@dataclass(frozen=True)
class Port:
    """One stream of the host.

    Attributes:
        color: between host and PE.
        x: column of the PE.
        y: its row.
    """

    name: str
    is_input: bool
    color: int
    x: int
    y: int


def write_ports(ports: Iterable[Port], folder: Path) -> None:
    """Write the file of a layout's ports."""
    record = {"format": FORMAT, "version": VERSION, "ports": [asdict(port) for port in ports]}
    write_text(folder / FILE_NAME, json.dumps(record, indent=2) + "\n")


def read_ports(folder: Path) -> tuple[Port, ...]:
    """Read the ports of a program; none when it has no such file.

    Raises OpenwaferError when another version wrote it.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return ()
    record = json.loads(path.read_text())
    if (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise error(
            "ports-version",
            f"{path} has version {record.get('version')!r}; this program reads {VERSION}",
        )
    return tuple(Port(**port) for port in record["ports"])


def find_port(ports: tuple[Port, ...], key: str | int) -> Port:
    """Return a port by name or number. Raises OpenwaferError when there is none."""
    for number, port in enumerate(ports):
        if key in (port.name, number):
            return port
    raise error(
        "port-unknown",
        f"the program has no port {key!r}",
        help=did_you_mean(str(key), [port.name for port in ports]),
    )
