"""How fast do the disks of N systems read the records that are dealt to them, together?

Each system reads its store no faster than a disk of so many bytes a second would, so that a step
waits for reads. The first step fills rings and is left out.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from rich.console import Console

from openwafer.training.collectives.joining import RANK, launched_rank, meet_here
from openwafer.training.data import DataSource, SourceKind, TokenizerTraining
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config import Bytes
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    StreamingConfig,
    TokensConfig,
)
from openwafer.training.session.following import follow
from openwafer.training.session.systems import Systems
from openwafer.training.store.store_file import FileIo
from openwafer.training.stream.plan.placement import StoreTier

NUM_STEPS = 4
TIMEOUT_SECONDS = 600.0
RATE = "OPENWAFER_BENCH_RATE"
LAYER_BYTES = 4 * 12 * 96**2


class SlowDisk:
    """Reads one after the other, each as long as a disk of some rate takes."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._lock = Lock()
        self._read = FileIo.read
        self.num_bytes = 0

    def read(self, file_io: FileIo, descriptor: int, buffer: memoryview, offset: int) -> int:
        """See :meth:`FileIo.read`."""
        with self._lock:
            end = time.perf_counter() + len(buffer) / self._rate
            num_bytes = self._read(file_io, descriptor, buffer, offset)
            self.num_bytes += num_bytes
            time.sleep(max(end - time.perf_counter(), 0))
        return num_bytes


def slow_disk() -> SlowDisk:
    """Make all stores of this process read from one such disk."""
    disk = SlowDisk(float(os.environ[RATE]))

    def read(file_io: FileIo, descriptor: int, buffer: memoryview, offset: int) -> int:
        return disk.read(file_io, descriptor, buffer, offset)

    FileIo.read = read  # type: ignore[method-assign] - followers make their own options
    return disk


def config_of(folder: Path, num_systems: int, num_layers: int) -> RunConfig:
    """A step of many layers that are alike, of which little fits a host."""
    (folder / "text").mkdir()
    for number in range(40):
        text = f"{number} squared is {number * number}; " * 20
        (folder / "text" / f"{number}.txt").write_text(text)
    streaming = StreamingConfig(
        device="cpu",
        store=StoreTier.DISK,
        mode=Mode.STREAMED,
        activations=Activations.KEEP,
        # Each has as much as a host of its own would give it.
        host_memory=Bytes(num_systems * 10 * LAYER_BYTES),
    )
    return RunConfig(
        steps=NUM_STEPS,
        data=TokensConfig(
            DataSource(SourceKind.TEXT, (str(folder / "text"),)), TokenizerTraining(280)
        ),
        folder=folder,
        name="run",
        model=GptConfig(
            hidden_size=96, num_layers=num_layers, num_heads=2, mlp_size=384, context_length=16
        ),
        batch=BatchConfig(size=4, sequence_length=16, micro_batches=4),
        clip_norm=None,
        checkpoint=CheckpointConfig(every=100, at_end=False),
        streaming=streaming,
        trace_steps=(),
    )


def lead(num_systems: int, num_layers: int) -> tuple[float, float]:
    """Seconds of a step, and the share of them in which the first system's disk reads."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        meeting, variables = meet_here(num_systems, TIMEOUT_SECONDS)
        command = [sys.executable, __file__]
        followers = [
            subprocess.Popen(command, env={**os.environ, **variables, RANK: str(rank)})
            for rank in range(1, num_systems)
        ]
        disk, times = slow_disk(), list[tuple[float, int]]()
        session = Session(
            config_of(folder, num_systems, num_layers),
            console=Console(quiet=True),
            systems=Systems(meeting),
        )
        session.between_steps(lambda _: times.append((time.perf_counter(), disk.num_bytes)))
        session.train()
        for follower in followers:
            follower.wait()
        (first, before), (last, after) = times[0], times[-1]
    seconds = last - first
    return seconds / (len(times) - 1), (after - before) / float(os.environ[RATE]) / seconds


def main() -> None:
    """Lead runs on more and more systems, or follow one."""
    if launched_rank() is not None:
        slow_disk()
        follow(Systems.launched(TIMEOUT_SECONDS))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rate", type=float, default=2e6, help="bytes a second of a disk")
    asked = parser.parse_args()
    os.environ[RATE] = str(asked.rate)
    alone = None
    for num_systems in asked.systems:
        seconds, busy = lead(num_systems, asked.layers)
        alone = alone or seconds
        print(
            f"{num_systems} disks: {seconds:.2f} s a step, {alone / seconds:.2f} times as fast, "
            f"the first reads {busy:.0%} of it",
            flush=True,
        )


if __name__ == "__main__":
    main()
