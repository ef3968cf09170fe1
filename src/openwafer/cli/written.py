"""What it took to write texts with weights from disk: the rate beside the disk's, and memory."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from openwafer.training.host_memory import read_host_memory
from openwafer.training.metrics.units import format_bytes, format_duration, format_rate
from openwafer.training.stream.plan.machine import measure_disk_now

if TYPE_CHECKING:
    from openwafer.training.session.opened_model import GeneratedTexts

NUM_MEASUREMENTS: Final = 3
"""Of the disk, whose rate differs from one moment to the next."""


def tell_reading(written: "GeneratedTexts", folder: Path) -> str | None:
    """Two lines on passes that read from disk; ``None`` where they did not.

    The first pass reads prompts, and finds in memory what came before, so it counts only where
    there is no other.
    """
    passes = list(zip(written.pass_seconds, written.pass_read_bytes, strict=True))
    counted = passes[1:] or passes
    if not any(num_bytes for _, num_bytes in counted):
        return None
    seconds = median(each for each, _ in counted)
    read = median(num_bytes for _, num_bytes in counted)
    rate = median(num_bytes / each for each, num_bytes in counted)
    peak = written.device_bytes_peak
    held = "bytes that it does not tell" if peak is None else f"at most {format_bytes(peak)}"
    return (
        f"a pass took {format_duration(seconds)} and read {format_bytes(read)} from disk: "
        f"{format_rate(rate)}, {_beside_disk(rate, folder)}\n"
        f"of {format_bytes(written.weight_bytes)} of weights the device held {held}, with all "
        f"else there; this process has taken {format_bytes(read_host_memory().peak_bytes)}"
    )


def _beside_disk(rate: float, folder: Path) -> str:
    """A rate beside that of the disk of a folder, by direct I/O and as many threads."""
    measured = [measure_disk_now(folder) for _ in range(NUM_MEASUREMENTS)]
    alone = [disk.read for disk in measured if disk is not None]
    if not alone:
        return "and the disk's own rate could not be measured"
    own = median(alone)
    return f"{rate / own:.2f} of the {format_rate(own)} that it gives alone"
