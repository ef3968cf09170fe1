"""A profile for speedscope, a viewer that shows tasks, functions and lines by their cycles."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from openwafer import __version__, json_files
from openwafer.sdk.profile import tables
from openwafer.sdk.profile.model import PeGroup, Profile

Frame: TypeAlias = tuple[str, str, int]
"""A name, a file and a line."""
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope_text(profile: Profile) -> str:
    """JSON in the format of speedscope: a profile for each group of PEs, weights in cycles.

    A stack is the task, where only one reaches the function, the function, and the line.
    """
    frames: dict[Frame, int] = {}
    task_of, names = tables.task_of(profile), tables.short_names(profile)
    profiles = [
        _of_group(group.name, _stacks(group, task_of, names), frames) for group in profile.groups
    ]
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
    name: str, group: Iterable[tuple[Sequence[Frame], int]], frames: dict[Frame, int]
) -> dict[str, object]:
    stacks, weights = [], []
    for stack, cycles in group:
        stacks.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(cycles)
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": stacks,
        "weights": weights,
    }


def _stacks(
    group: PeGroup, task_of: Callable[[str], str], names: Mapping[str, str]
) -> Iterator[tuple[Sequence[Frame], int]]:
    """Stacks of frames, and the cycles of the last of each."""
    for one in group.lines:
        task = (task_of(one.function), "", 0)
        function = (one.function, one.file, 0)
        line = (f"{names[one.file]}:{one.line}", one.file, one.line)
        yield (task, function, line), one.cycles + one.operation
