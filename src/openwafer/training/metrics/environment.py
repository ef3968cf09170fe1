"""environment.json of a run folder: the machine and the releases that a run ran on."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from openwafer import __version__
from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.training.metrics.json_records import (
    check_format,
    parse_json,
    parse_record,
    read_text,
)
from openwafer.training.metrics.units import format_bytes

FORMAT = "openwafer-environment"
VERSION = 1
_PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True)
class _Environment:
    facts: dict[str, str]


def write_environment(run_folder: PathLike, *, device: str) -> None:
    """Write environment.json; `device` is the name of the training device, for people."""
    run_folder = path_of(run_folder, "run_folder")
    document = {"format": FORMAT, "version": VERSION, "facts": _describe_machine(device)}
    write_text(run_folder / "environment.json", json.dumps(document, indent=1) + "\n")


def read_environment(path: Path) -> Mapping[str, str]:
    """The facts in the order they were written, each a name and a text."""
    value = parse_json(read_text(path), str(path))
    check_format(value, FORMAT, VERSION, str(path))
    return parse_record(_Environment, value, str(path)).facts


def _describe_machine(device: str) -> Mapping[str, str]:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "device": device,
        "processor": f"{name_processor()}, {len(os.sched_getaffinity(0))} cores",
        "host memory": format_bytes(memory_bytes),
        "system": platform.platform(),
        "openwafer": __version__,
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def name_processor() -> str:
    """What the processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
