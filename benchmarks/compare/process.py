"""One adapter as a child process: commands to it, answers from it, its memory while it works."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openwafer.cli.environment import DEFAULTS
from openwafer.training.host_memory import read_host_memory

ADAPTERS = Path(__file__).parent
# Adding up the pages of a process stops it for milliseconds, so that only untimed turns do it.
SAMPLE_SECONDS = 0.05
PROPORTIONAL_SAMPLE_SECONDS = 0.25


class AdapterError(Exception):
    """An adapter ended before it answered."""


@dataclass
class MemoryPeaks:
    """Most bytes seen.

    Attributes:
        anonymous: memory of the process's own, pinned memory included.
        pinned: the part of it that is locked.
        proportional: with file pages, each shared page divided by its users; 0 when not sampled.
        resident: the kernel's own peak, shared and file pages whole.
    """

    anonymous: int = 0
    pinned: int = 0
    proportional: int = 0
    resident: int = 0


class AdapterProcess:
    """A running adapter.

    Args:
        python: the interpreter of the environment that has the system.
        script: file name of the adapter.
        setup: its first line of input.
        log: file for what it prints.
    """

    def __init__(self, python: Path, script: str, setup: Mapping[str, object], log: Path) -> None:
        self.peaks = MemoryPeaks()
        self._log = log
        # Extensions are compiled with tools of the adapter's environment.
        # Everybody has the settings of openwafer's command line.
        environment = {
            **DEFAULTS,
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
        }
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                [python, ADAPTERS / script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
            )
        self._proc = Path(f"/proc/{self._process.pid}")
        self._send(setup)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        if raised is not None:
            self._process.kill()
        self._process.communicate()

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._send({"do": do, **arguments})
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            AdapterError: the process ended; the message has the end of its log.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise AdapterError(f"{self._process.args!r} ended without an answer:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def steps(self, first: int, count: int, *, is_timed: bool) -> dict[str, Any]:
        """Run steps and watch the memory meanwhile; an untimed turn watches more of it."""
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, not is_timed))
        watch.start()
        try:
            return self.ask("steps", first=first, count=count)
        finally:
            done.set()
            watch.join()

    def end(self) -> None:
        """Ask the process to end."""
        self._send({"do": "end"})

    def _send(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _watch(self, done: threading.Event, with_proportional: bool) -> None:
        peaks = self.peaks
        while not done.wait(PROPORTIONAL_SAMPLE_SECONDS if with_proportional else SAMPLE_SECONDS):
            memory = read_host_memory(self._proc / "status")
            peaks.anonymous = max(peaks.anonymous, memory.anonymous_bytes + memory.shared_bytes)
            peaks.resident = max(peaks.resident, memory.peak_bytes)
            peaks.pinned = max(peaks.pinned, self._field("status", "VmLck"))
            if with_proportional:
                peaks.proportional = max(peaks.proportional, self._field("smaps_rollup", "Pss"))

    def _field(self, file: str, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", (self._proc / file).read_text(), re.MULTILINE)
        if found is None:
            raise AdapterError(f"{self._proc / file} has no field {name}")
        return 1024 * int(found[1])
