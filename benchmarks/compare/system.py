"""The adapter's side of the comparison: a system under test, driven by lines of JSON.

Commands come on stdin, answers go to stdout, and whatever a library prints goes to stderr.
"""

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TextIO

import torch
from workload import Workload

BATCHES_FILE = "batches.pt"


class System(Protocol):
    """A way to train the workload's model."""

    def step(self, tokens: torch.Tensor) -> float:
        """Run one training step and return its loss."""

    def settle(self) -> None:
        """Finish what the last step left under way."""

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and values of all parameters, whole; a tensor is valid until the next one."""

    def close(self) -> None:
        """Give everything back."""


@dataclass(frozen=True)
class Setup:
    """What an adapter is told.

    Attributes:
        workload: the job.
        tokens: the folder that `run_tokens` made: the batches of all systems.
        tier: home of weights and optimizer state, "dram" or "disk".
        folder: its own.
        host_bytes: host memory for that home on the tier "disk", where a system lets one choose.
        device_bytes: memory of the device for a system that needs no more, or 0 for all of it.
    """

    workload: Workload
    tokens: Path
    tier: str
    folder: Path
    host_bytes: int
    device_bytes: int = 0

    def batches(self) -> torch.Tensor:
        """Tokens of all steps, [steps, sequences, tokens]; read from disk when they are used."""
        batches: torch.Tensor = torch.load(self.tokens / BATCHES_FILE, mmap=True)
        return batches


def serve(build: Callable[[Setup], System]) -> None:
    """Build the system of the first line of stdin, then obey commands until "end"."""
    # Libraries print to stdout, so the answers take a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = time.perf_counter()
    told = json.loads(sys.stdin.readline())
    workload = Workload(**told["workload"])
    folders = Path(told["tokens"]), told["tier"], Path(told["folder"])
    setup = Setup(workload, *folders, told["host_bytes"], told["device_bytes"])
    batches = setup.batches()
    torch.set_num_threads(workload.num_threads)
    system = build(setup)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    if workload.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    _answer(answers, seconds=time.perf_counter() - start)
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "steps":
                _steps(system, batches, command, answers)
            case "forget peak":
                # Not every kernel has it, and then the peak is one from the start.
                with suppress(OSError):
                    Path("/proc/self/clear_refs").write_text("5")
                _answer(answers)
            case "device memory":
                is_cuda = workload.device != "cpu"
                _answer(answers, peak=torch.cuda.max_memory_allocated() if is_cuda else 0)
            case "save":
                torch.save({n: t.clone() for n, t in system.parameters()}, command["path"])
                _answer(answers)
            case "compare":
                _answer(answers, **_distance(system, Path(command["path"])))
            case "end":
                break
            case unknown:
                raise ValueError(f"no command is called {unknown!r}")
    system.close()


def _answer(answers: TextIO, **values: object) -> None:
    answers.write(json.dumps(values) + "\n")


def _steps(system: System, batches: torch.Tensor, command: dict[str, int], answers: TextIO) -> None:
    """Run consecutive steps; the time of the turn ends when nothing is under way any more."""
    losses, marks = [], [time.perf_counter()]
    processor_before = time.process_time()
    disk_before = disk_bytes()
    for step in range(command["first"], command["first"] + command["count"]):
        losses.append(system.step(batches[step]))
        marks.append(time.perf_counter())
    system.settle()
    seconds = time.perf_counter() - marks[0]
    processor_seconds = time.process_time() - processor_before
    read, written = (now - then for now, then in zip(disk_bytes(), disk_before, strict=True))
    _answer(
        answers,
        losses=losses,
        step_seconds=[end - begin for begin, end in pairwise(marks)],
        seconds=seconds,
        processor_seconds=processor_seconds,
        read=read,
        written=written,
    )


def disk_bytes() -> tuple[int, int]:
    """Bytes that this process has had read from and written to storage."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def _distance(system: System, path: Path) -> dict[str, float]:
    reference = torch.load(path, mmap=True, weights_only=True)
    largest, squares, squares_reference, unequal = 0.0, 0.0, 0.0, 0
    for name, value in system.parameters():
        expected = reference.pop(name)
        difference = value.double() - expected.double()
        largest = max(largest, difference.abs().max().item())
        squares += difference.square().sum().item()
        squares_reference += expected.double().square().sum().item()
        unequal += int((difference != 0).sum())
    if reference:
        raise ValueError(f"parameters missing from the system: {', '.join(reference)}")
    return {
        "largest_difference": largest,
        "relative_distance": (squares / squares_reference) ** 0.5,
        "num_unequal": unequal,
    }
