"""The plan for a system as JSON, as docs/formats/openwafer-system-plan.md describes it."""

from dataclasses import dataclass

from openwafer.atomic_file import write_bytes
from openwafer.config import PathLike, path_of
from openwafer.json_files import encode
from openwafer.planning.system_plan.system_plan import SystemPlan

FORMAT = "openwafer-system-plan"
VERSION = 1


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    plan: SystemPlan


def write_system_plan(path: PathLike, plan: SystemPlan) -> None:
    """Replace the file `path` by the plan. Raises OSError."""
    path = path_of(path, "path")
    write_bytes(path, encode(_File(FORMAT, VERSION, plan)) + b"\n")
