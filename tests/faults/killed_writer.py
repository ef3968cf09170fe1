"""Kill a process that writes a store, again and again; run as a script, it prints what it found.

With `power`, what the process had not flushed is undone at the kill, as by a power failure.

One process imports torch once and forks a writer for each trial; the writer goes on from the last
commit. Prints the problems, one a line, and at last how many commits survived.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from openwafer.training.store.parameter_store import ParameterStore
from tests.faults.power_loss import Disk
from tests.training.store.example_records import QUICK, differing_parts, make_store, write_step

RING_BYTES = 4 * 12288
MAX_COMMITS = 8  # how long a writer may run, in the time of so many commits
STEPS_BEFORE = 4


def write_until_killed(folder: Path, report: int, disk: Disk | None) -> None:
    """Commit step after step, alternately in the foreground and the background; report each."""
    if disk is not None:
        disk.keep_flushes()
    store = ParameterStore.open(folder, ring_bytes=RING_BYTES, options=QUICK)
    step = store.step or 0
    os.write(report, b"\n")
    while True:
        step += 1
        write_step(store, step, ahead=2)
        store.commit_begin(step, {"step": step})
        if step % 3 == 0:
            store.commit_wait()
            os.write(report, f"{step}\n".encode())


def trial(folder: Path, seconds: float, disk: Disk | None) -> int:
    """Let a writer run for a while, kill it; return the last step it reported as durable."""
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        write_until_killed(folder, writing, disk)
    os.close(writing)
    with os.fdopen(reading, "rb") as reports:
        reports.readline()
        time.sleep(seconds)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        return int((reports.read().split() or [b"0"])[-1])


def check(folder: Path, reported: int) -> tuple[int, str]:
    """The committed step, and what is wrong with it."""
    with ParameterStore.open(folder, ring_bytes=RING_BYTES, options=QUICK) as store:
        step = store.step or 0
        wrong = differing_parts(store, step)
        if store.state != {"step": step}:
            wrong.append(f"state {store.state} at step {step}")
        if step < reported:
            wrong.append(f"step {step} after {reported} was reported durable")
        return step, ", ".join(wrong)


def power_trial(folder: Path, seconds: float, chance: random.Random) -> int:
    """As `trial`, and the machine loses power at the kill."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as kept:
        disk = Disk(Path(kept))
        with disk.holding(folder):
            reported = trial(folder, seconds, Disk(Path(kept)))
            disk.fail(folder, chance)
    return reported


def seconds_of_commit(folder: Path) -> float:
    """Make the store with its first steps; return how long one step took in the median."""
    seconds = []
    with make_store(folder, num_records=6, ring_bytes=RING_BYTES, options=QUICK) as store:
        for step in range(STEPS_BEFORE):
            begin = time.perf_counter()
            write_step(store, step)
            store.commit(step, {"step": step})
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main(folder: Path, num_kills: int, seed: int, *, is_power: bool) -> None:
    """Run the trials."""
    chance = random.Random(seed)
    max_seconds = MAX_COMMITS * seconds_of_commit(folder)
    step = 0
    for _ in range(num_kills):
        seconds = chance.uniform(0, max_seconds)
        reported = (
            power_trial(folder, seconds, chance) if is_power else trial(folder, seconds, None)
        )
        step, wrong = check(folder, reported)
        if wrong:
            sys.stdout.write(f"{wrong}\n")
    sys.stdout.write(f"{step} steps survived {num_kills} kills\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), is_power="power" in sys.argv)
