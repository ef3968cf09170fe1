"""Trains one model with openwafer, plain PyTorch, FSDP2 and DeepSpeed, and compares them.

Every system is a process of its own, and they take turns: the same steps of the same batches,
round after round. docs/guide/comparison.md says how to install DeepSpeed and to read the table.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from process import AdapterProcess
from run_tokens import make_tokens
from table import SystemResult, ratios_to_markdown, to_json, to_markdown
from workload import Workload, build_model

from openwafer.atomic_file import write_text

ROOT = Path(__file__).parents[2]
FULL = Workload(
    layers=16,
    hidden=768,
    intermediate=2048,
    heads=12,
    vocabulary=8192,
    sequences=2,
    tokens_per_sequence=256,
)
QUICK = replace(FULL, layers=4, hidden=512, intermediate=1408, heads=8)
# What the disk tier's store may hold in host memory.
HOST_BYTES = 512 << 20


@dataclass(frozen=True)
class Contestant:
    """A system under test: its adapter, its tier, and whether it needs DeepSpeed's environment.

    With `device_bytes` it may take no more of its device.
    """

    name: str
    script: str
    tier: str
    needs_deepspeed: bool = False
    device_bytes: int = 0


CONTESTANTS = {
    "resident": Contestant("plain loop", "adapter_resident.py", "dram"),
    "fsdp2": Contestant("FSDP2, CPU offload", "adapter_fsdp2.py", "dram"),
    "deepspeed": Contestant("DeepSpeed, CPU offload", "adapter_deepspeed.py", "dram", True),
    "openwafer": Contestant("openwafer, DRAM", "adapter_openwafer.py", "dram"),
    "deepspeed-disk": Contestant("DeepSpeed, NVMe offload", "adapter_deepspeed.py", "disk", True),
    "openwafer-disk": Contestant("openwafer, disk", "adapter_openwafer.py", "disk"),
}
PAIRS = (
    ("openwafer, DRAM", "plain loop"),
    ("openwafer, DRAM", "FSDP2, CPU offload"),
    ("openwafer, DRAM", "DeepSpeed, CPU offload"),
    ("openwafer, disk", "DeepSpeed, NVMe offload"),
)


@dataclass(frozen=True)
class Entry:
    """A contestant that runs."""

    contestant: Contestant
    process: AdapterProcess
    result: SystemResult

    def turn(self, first: int, count: int, *, is_timed: bool) -> None:
        """Run steps and note what they took."""
        done = self.process.steps(first, count, is_timed=is_timed)
        self.result.losses += done["losses"]
        if is_timed:
            self.result.turn_seconds.append(done["seconds"] / count)
            self.result.step_seconds += done["step_seconds"]
            self.result.processor_seconds += done["processor_seconds"]
            self.result.disk_bytes += done["read"] + done["written"]
            self.result.num_steps += count
        print(f"{self.contestant.name:24} {done['seconds'] / count:7.2f} s/step", flush=True)


@dataclass(frozen=True)
class Rounds:
    """The order of play.

    Attributes:
        number: timed turns of everybody, after one that is not timed.
        steps: of a turn.
    """

    number: int
    steps: int


@contextmanager
def entries(
    chosen: Sequence[Contestant], workload: Workload, pythons: Mapping[bool, Path], scratch: Path
) -> Iterator[list[Entry]]:
    """Start all contestants, one after the other; their folders are removed at the end."""
    with ExitStack() as stack:
        started = []
        for contestant in chosen:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
            setup = {
                "workload": asdict(workload),
                "tokens": str(scratch / "tokens"),
                "tier": contestant.tier,
                "folder": str(folder),
                "host_bytes": HOST_BYTES,
                "device_bytes": contestant.device_bytes,
            }
            python = pythons[contestant.needs_deepspeed]
            start = time.perf_counter()
            process = stack.enter_context(
                AdapterProcess(python, contestant.script, setup, folder / "log.txt")
            )
            process.answer()
            result = SystemResult(contestant.name, time.perf_counter() - start)
            result.peaks = process.peaks
            print(f"{contestant.name:24} {result.setup_seconds:7.2f} s to set up", flush=True)
            process.ask("forget peak")
            started.append(Entry(contestant, process, result))
        yield started


def compare(running: Sequence[Entry], rounds: Rounds, scratch: Path) -> None:
    """Let the contestants take turns, then compare their parameters with the first one's."""
    for number in range(rounds.number + 1):
        # Every other round runs backwards, so that nobody always follows the same neighbour.
        for entry in running if number % 2 == 0 else reversed(running):
            entry.turn(number * rounds.steps, rounds.steps, is_timed=number > 0)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "parameters.pt"
        running[0].process.ask("save", path=str(path))
        for entry in running:
            entry.result.distance = entry.process.ask("compare", path=str(path))
            entry.process.end()


def report(workload: Workload, results: Sequence[SystemResult], folder: Path) -> None:
    """Print the tables and write results.json and results.md."""
    num_parameters = sum(parameter.numel() for parameter in build_model(workload).parameters())
    markdown = to_markdown(workload, num_parameters, results)
    markdown += "\n" + ratios_to_markdown(results, PAIRS)
    print("\n" + markdown)
    write_text(folder / "results.json", to_json(workload, num_parameters, results))
    write_text(folder / "results.md", markdown)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, help="timed turns of every system")
    parser.add_argument("--steps", type=int, help="steps of a turn")
    parser.add_argument("--clip", type=float, help="clip by this global norm")
    parser.add_argument(
        "--deepspeed-python",
        type=Path,
        default=ROOT.parent / "compare-venv/bin/python",
        help="interpreter of the environment with DeepSpeed",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/compare")
    return parser.parse_args(arguments)


def main() -> None:
    """Compare as the command line says."""
    options = parse(sys.argv[1:])
    # The plain loop is what everything is measured against, so it always runs.
    chosen = [CONTESTANTS[name] for name in CONTESTANTS if name in {"resident", *options.only}]
    if any(c.needs_deepspeed for c in chosen) and not options.deepspeed_python.exists():
        sys.exit(
            f"{options.deepspeed_python} is missing: install DeepSpeed as docs/guide/comparison.md "
            "says, name its interpreter with --deepspeed-python, or leave DeepSpeed out with --only"
        )
    workload = replace(QUICK if options.quick else FULL, clip_norm=options.clip)
    number = options.rounds or (2 if options.quick else 3)
    rounds = Rounds(number, options.steps or (2 if options.quick else 3))
    pythons = {False: Path(sys.executable), True: options.deepspeed_python}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as scratch:
        make_tokens(workload, Path(scratch) / "tokens", rounds.steps * (rounds.number + 1))
        with entries(chosen, workload, pythons, Path(scratch)) as running:
            compare(running, rounds, Path(scratch))
            results = [entry.result for entry in running]
    report(workload, results, options.out)


if __name__ == "__main__":
    main()
