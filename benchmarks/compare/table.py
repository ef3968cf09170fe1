"""Results of the comparison: JSON for machines, a Markdown table for people."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from process import MemoryPeaks
from workload import Workload

GIB = 1 << 30


@dataclass
class SystemResult:
    """What one system did.

    Attributes:
        name: for people.
        setup_seconds: from the start of the process to its first step.
        turn_seconds: seconds a step, by timed turn, until nothing was under way any more.
        step_seconds: seconds of each timed step, as the loop saw it.
        processor_seconds: of all threads, in the timed turns.
        losses: of all steps.
        disk_bytes: read and written in the timed turns.
        num_steps: timed steps.
        peaks: memory while steps ran.
        distance: of the final parameters from those of the plain loop.
    """

    name: str
    setup_seconds: float
    turn_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    processor_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    disk_bytes: int = 0
    num_steps: int = 0
    peaks: MemoryPeaks = field(default_factory=MemoryPeaks)
    distance: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Median over the turns."""
        return statistics.median(self.turn_seconds)


def to_json(workload: Workload, num_parameters: int, results: Sequence[SystemResult]) -> str:
    """All figures; bytes and seconds, without units of their own."""
    record = {
        "workload": asdict(workload),
        "parameters": num_parameters,
        "systems": [asdict(result) | {"seconds": result.seconds} for result in results],
    }
    return json.dumps(record, indent=1) + "\n"


def to_markdown(workload: Workload, num_parameters: int, results: Sequence[SystemResult]) -> str:
    """The table, with ratios to the first system."""
    first = results[0]
    heads = (
        "system", "s/step", "x", "own GiB", "x", "B/param", "PSS GiB", "peak RSS GiB",
        "disk B/param/step", "loss off by", "weights off by",
    )  # fmt: skip
    rows = [heads, ("---",) * len(heads)]
    rows += [_row(result, first, num_parameters) for result in results]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return f"{workload}, {num_parameters / 1e6:.1f} M parameters\n\n" + "\n".join(lines) + "\n"


def _row(result: SystemResult, first: SystemResult, num_parameters: int) -> tuple[str, ...]:
    peaks = result.peaks
    low, high = min(result.turn_seconds), max(result.turn_seconds)
    off = max(abs(a - b) for a, b in zip(result.losses, first.losses, strict=True))
    return (
        result.name,
        f"{result.seconds:.2f} ({low:.2f} to {high:.2f})",
        f"{result.seconds / first.seconds:.2f}",
        f"{peaks.anonymous / GIB:.2f}",
        f"{peaks.anonymous / first.peaks.anonymous:.2f}",
        f"{peaks.anonymous / num_parameters:.1f}",
        f"{peaks.proportional / GIB:.2f}",
        f"{peaks.resident / GIB:.2f}",
        f"{result.disk_bytes / result.num_steps / num_parameters:.1f}",
        f"{off:.1e}" if off else "0",
        f"{result.distance['relative_distance']:.1e}" if result.distance["num_unequal"] else "0",
    )


def ratios_to_markdown(results: Sequence[SystemResult], pairs: Sequence[tuple[str, str]]) -> str:
    """Time and memory of one system over another's, for the pairs of names that both ran."""
    by_name = {result.name: result for result in results}
    lines = ["| system | against | step time | own memory |", "| --- | --- | --- | --- |"]
    for name, other in pairs:
        if name in by_name and other in by_name:
            ours, theirs = by_name[name], by_name[other]
            memory = ours.peaks.anonymous / theirs.peaks.anonymous
            seconds = ours.seconds / theirs.seconds
            lines.append(f"| {name} | {other} | {seconds:.2f} | {memory:.2f} |")
    return "\n".join(lines) + "\n"
