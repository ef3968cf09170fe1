"""A profile for speedscope, a viewer that shows tasks, functions and lines by their cycles."""

from collections.abc import Iterator
from typing import Final

from openwafer import __version__, json_files
from openwafer.sdk.profile import tables
from openwafer.sdk.profile.model import PeGroup, Profile

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope_text(profile: Profile) -> str:
    """JSON in the format of speedscope: a profile for each group of PEs, weights in cycles.

    A stack is the task, where only one reaches the function, the function, and the line.
    """
    frames: dict[tuple[str, str, int], int] = {}
    profiles = [_of_group(profile, group, frames) for group in profile.groups]
    named = [
        {"name": name, **({"file": file, "line": line} if file else {})}
        for name, file, line in frames
    ]
    whole = {
        "$schema": _SCHEMA,
        "exporter": f"openwafer {__version__}",
        "name": f"{profile.cycles:,} cycles of {profile.arch}",
        "shared": {"frames": named},
        "profiles": profiles,
    }
    return json_files.encode(whole).decode() + "\n"


def _of_group(
    profile: Profile, group: PeGroup, frames: dict[tuple[str, str, int], int]
) -> dict[str, object]:
    stacks, weights = [], []
    for stack, cycles in _stacks(profile, group):
        stacks.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(cycles)
    return {
        "type": "sampled",
        "name": group.name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": stacks,
        "weights": weights,
    }


def _stacks(
    profile: Profile, group: PeGroup
) -> Iterator[tuple[tuple[tuple[str, str, int], ...], int]]:
    """Stacks of frames, each a name, a file and a line, and the cycles of the last."""
    task_of, names = tables.task_of(profile), tables.short_names(profile)
    for one in group.lines:
        task = (task_of(one.function), "", 0)
        function = (one.function, one.file, 0)
        line = (f"{names[one.file]}:{one.line}", one.file, one.line)
        yield (task, function, line), one.cycles + one.operation
