"""Fuzzes the compiler and the host API for some minutes: all ends well, or with diagnostics.

    python benchmarks/fuzz_csl.py --minutes 30 --seed 1 --suite path/to/public/programs

Each worker process takes a batch of texts, and now and then makes a run of random calls of the host
on a small program. A crash is any other exception, a worker that dies, more than 10 s of the
processor's time for a text, or more than 2 GiB on top of what the worker began with. The text and
the reason go to the folder of `--crashes`. Texts that lead to a diagnostic, or to diagnostics
together, that no text before led to are mutated further.
"""

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.artifacts import compilation_of
from tests.sdk.fuzz import target
from tests.sdk.fuzz.corpus import own_texts, texts_below
from tests.sdk.fuzz.grammar import random_program
from tests.sdk.fuzz.host_calls import HostCalls
from tests.sdk.fuzz.mutations import mutated
from tests.sdk.host.hand_built import PROGRAM, running

BATCH = 200
MAX_SECONDS = 10
MAX_SILENCE_SECONDS = 600
MAX_MORE_BYTES = 2 << 30
MAX_FRESH = 2000
MAX_CODES = 3
GENERATED_SHARE = 0.2
HOST_SHARE = 0.03
CALLS = 12


class SlowError(BaseException):
    """Not an Exception: nothing on the way may take it for one of its own."""


def too_slow(_signal: int, _frame: FrameType | None) -> None:
    """Interrupt what takes too long."""
    raise SlowError(f"more than {MAX_SECONDS} s")


def attempt(act: Callable[[], frozenset[str]]) -> tuple[frozenset[str], str]:
    """Codes of what was found, and what went wrong."""
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        return act(), ""
    except (Exception, SlowError):  # noqa: BLE001 - every kind of crash is a finding
        return frozenset(), traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def call_host(seed: int, folder: Path) -> frozenset[str]:
    """One run of random calls."""
    # The simulator reserves far more address space than it uses.
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, old[1]))
    calls = HostCalls(Random(seed), folder)
    calls.begin()
    for _ in range(CALLS):
        calls.make()
    calls.end()
    del calls
    resource.setrlimit(resource.RLIMIT_AS, old)
    return frozenset(("host",))


def work(pipe: Connection, seed: int, texts: list[str], text_file: Path) -> None:
    """Try one batch; sends the codes and the problem of each text."""
    signal.signal(signal.SIGPROF, too_slow)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_MORE_BYTES, resource.RLIM_INFINITY))
    random = Random(seed)
    with tempfile.TemporaryDirectory(prefix="openwafer-fuzz-") as name:
        folder = Path(name)
        os.chdir(folder)
        compilation_of(PROGRAM).write(folder / "out")
        for number in range(BATCH):
            if random.random() < HOST_SHARE:
                text = f"run {number} of calls of the host, seed {seed}"
                act = partial(call_host, seed * BATCH + number, folder / "out")
            else:
                is_generated = random.random() < GENERATED_SHARE
                text = random_program(random) if is_generated else mutated(random, texts)
                act = partial(target.codes_of, folder, text, random.choice(list(Arch)))
            # What kills the process leaves its text behind.
            text_file.write_text(text, "utf-8", "surrogatepass")
            pipe.send((text, *attempt(act)))
    pipe.send(None)


@dataclass
class Tally:
    """What came out so far."""

    crashes: Path
    num_texts: int = 0
    num_crashes: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    seen: set[frozenset[str]] = field(default_factory=set)
    fresh: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, text: str, codes: frozenset[str], problem: str) -> None:
        """Count one text."""
        self.num_texts += 1
        self.codes.update(codes or {"(none)"})
        if problem:
            self.crash(text, problem)
        elif len(codes) <= MAX_CODES and codes not in self.seen:
            self.seen.add(codes)
            self.fresh = [*self.fresh, text][-MAX_FRESH:]

    def take(self, pipe: Connection) -> str:
        """Count the texts of a worker; what is wrong with the worker itself."""
        try:
            while pipe.poll(MAX_SILENCE_SECONDS):
                item = pipe.recv()
                if item is None:
                    return ""
                self.add(*item)
        except EOFError:
            return "the process died"
        return "the process hangs"

    def crash(self, text: str, problem: str) -> None:
        """Keep a text that crashed, once for each reason."""
        self.num_crashes += 1
        lines = [line.strip() for line in problem.splitlines() if line.strip()]
        reason = " | ".join(lines[-3:])
        self.reasons[reason] += 1
        if self.reasons[reason] == 1:
            self.crashes.mkdir(parents=True, exist_ok=True)
            name = f"crash-{len(self.reasons)}"
            (self.crashes / f"{name}.csl").write_text(text, "utf-8", "surrogatepass")
            (self.crashes / f"{name}.txt").write_text(problem, "utf-8", "surrogatepass")
            print(f"CRASH {name}: {reason}", flush=True)


def run_batch(tally: Tally, seed: int, texts: list[str]) -> None:
    """Run one worker to its end, whatever that is."""
    with tempfile.NamedTemporaryFile(prefix="openwafer-fuzz-") as file:
        here, there = multiprocessing.Pipe(duplex=False)
        arguments = (there, seed, [*texts, *tally.fresh], Path(file.name))
        worker = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        worker.start()
        there.close()
        problem = tally.take(here)
        worker.join(MAX_SECONDS)
        if worker.exitcode is None:
            worker.kill()
            worker.join()
        if problem:
            text = Path(file.name).read_text("utf-8", "surrogatepass")
            tally.crash(text, f"{problem}, exit code {worker.exitcode}")


def main() -> None:
    """Run for the time asked for and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suite", type=Path, action="append", default=[], help="more programs")
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"))
    given = parser.parse_args()
    texts = own_texts() + [text for folder in given.suite for text in texts_below(folder)]
    tally = Tally(given.crashes.resolve())
    # Compiling the simulator takes longer than any text may.
    first = multiprocessing.get_context("fork").Process(target=lambda: running().stop())
    first.start()
    first.join()
    end = time.monotonic() + 60 * given.minutes
    seed = given.seed
    while time.monotonic() < end:
        run_batch(tally, seed, texts)
        seed += 1
        print(
            f"seed {seed - 1}: {tally.num_texts} texts, {len(tally.codes)} codes, "
            f"{len(tally.seen)} sets of codes, {tally.num_crashes} crashes",
            flush=True,
        )
    for reason, count in tally.reasons.most_common():
        print(f"{count:6} {reason}")
    print(", ".join(f"{code} {count}" for code, count in tally.codes.most_common(20)))
    print(f"{tally.num_texts} texts of {len(texts)} programs, {tally.num_crashes} crashes")
    raise SystemExit(1 if tally.num_crashes else 0)


if __name__ == "__main__":
    main()
