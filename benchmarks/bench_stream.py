"""Streamed training against the plain PyTorch loop and the disk, in alternating turns.

Five ratios, each the median over rounds in which everybody has one turn:

- streamed from host memory / plain loop, and from disk / plain loop, both clipped and not;
- clipped by the exact global norm / not clipped, both streamed from host memory, and both from
  disk, where the bytes planned and moved stand beside each other;
- disk tier / the larger of the plain loop and the time that raw direct I/O takes for the same
  bytes, once at a step of thousands of tokens and once at so few that the disk has no rest;
- disk tier / the plain loop and raw direct I/O of the same bytes at the same time, which depend on
  nothing of each other: what this machine can do at all, where compute and disk share its memory.

A turn ends when nothing is under way any more: updates are applied, commits are on disk.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from bench_disk import RawProbe
from termination import clean_up_when_terminated

sys.path.insert(0, str(Path(__file__).parent / "compare"))

from adapter_openwafer import OpenWafer
from adapter_resident import Resident
from run_tokens import make_tokens
from system import Setup, System, disk_bytes
from workload import Workload

from openwafer.atomic_file import write_text
from openwafer.cli.environment import restart_with_defaults
from openwafer.training.store import StoreOptions

ROOT = Path(__file__).parents[1]
CLIP_NORM = 1.0
MAX_BYTES_EACH = 24.0
PROBE_BYTES = 512 << 20


@dataclass(frozen=True)
class Case:
    """A workload and who runs it.

    Attributes:
        name: for people.
        workload: the steps.
        host_bytes: what the disk tier's store may hold in host memory: its ring, and weights as far
            as they fit.
        names: the contenders.
    """

    name: str
    workload: Workload
    host_bytes: int
    names: tuple[str, ...]


LONG_STEPS = Case(
    "long steps",
    Workload(
        layers=8,
        hidden=512,
        intermediate=1408,
        heads=8,
        vocabulary=8192,
        sequences=4,
        tokens_per_sequence=1024,
    ),
    256 << 20,
    (
        *("plain loop", "plain loop, clipped", "streamed", "streamed, clipped"),
        *("disk tier", "disk tier, clipped"),
    ),
)
SHORT_STEPS = Case(
    "short steps",
    Workload(
        layers=8,
        hidden=1024,
        intermediate=2816,
        heads=16,
        vocabulary=8192,
        sequences=1,
        tokens_per_sequence=32,
    ),
    512 << 20,
    ("plain loop", "plain loop, clipped", "disk tier", "disk tier, clipped"),
)


@dataclass
class Contender:
    """A system and its turns.

    Attributes:
        system: what runs.
        workload: its steps.
        batches: of all steps, [steps, sequences, tokens].
        seconds: a step, by turn.
        disk_bytes: read and written a step, by turn.
        losses: of all steps.
    """

    system: System
    workload: Workload
    batches: torch.Tensor
    seconds: list[float] = field(default_factory=list)
    disk_bytes: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def turn(self, num_steps: int) -> None:
        """Run steps until nothing is under way."""
        before, start = sum(disk_bytes()), time.perf_counter()
        self.train(num_steps)
        self.system.settle()
        self.seconds.append((time.perf_counter() - start) / num_steps)
        self.disk_bytes.append((sum(disk_bytes()) - before) / num_steps)

    def train(self, num_steps: int) -> None:
        """Run steps; their last updates may be under way still."""
        for _ in range(num_steps):
            self.losses.append(self.system.step(self.batches[len(self.losses)]))

    def forget_first_turn(self) -> None:
        """Drop the turn that warmed up."""
        del self.seconds[0], self.disk_bytes[0]


@dataclass(frozen=True)
class Ratio:
    """A figure beside its target.

    Attributes:
        what: for people.
        shape: the workload.
        rounds: the ratio in each round.
        target: the most it should be.
    """

    what: str
    shape: str
    rounds: tuple[float, ...]
    target: float

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Turns:
    """How many rounds there are, and the steps of a turn."""

    rounds: int
    steps: int


@dataclass
class Raw:
    """Raw direct I/O, reading and writing at once, by round.

    Attributes:
        rates: bytes a second of it alone.
        seconds_beside: a step of the plain loop, with as many bytes as the disk tier moves.
    """

    rates: list[float] = field(default_factory=list)
    seconds_beside: list[float] = field(default_factory=list)

    def turn(self, probe: RawProbe, contenders: Mapping[str, Contender], num_steps: int) -> None:
        """Measure both."""
        self.rates.append(2 * probe.num_bytes / probe.both())
        plain, moved = contenders["plain loop"], contenders["disk tier"].disk_bytes[-1]
        train = partial(plain.train, num_steps)
        seconds = probe.both(int(moved * num_steps / 2), beside=[train])
        self.seconds_beside.append(seconds / num_steps)


def alternate(contenders: Mapping[str, Contender], turns: Turns, probe: RawProbe) -> Raw:
    """Give everybody a turn in each round, and the disk a raw one."""
    raw = Raw()
    for number in range(turns.rounds + 1):
        # Every other round runs backwards, so that nobody always follows the same neighbour.
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            contenders[name].turn(turns.steps)
            print(
                f"round {number}: {name:22} {contenders[name].seconds[-1]:7.3f} s/step", flush=True
            )
        raw.turn(probe, contenders, turns.steps)
    for contender in contenders.values():
        contender.forget_first_turn()
    return Raw(raw.rates[1:], raw.seconds_beside[1:])


def over(contenders: Mapping[str, Contender], name: str, other: str) -> tuple[float, ...]:
    """Step time of one over another's, by round."""
    pairs = zip(contenders[name].seconds, contenders[other].seconds, strict=True)
    return tuple(mine / others for mine, others in pairs)


def over_limit(disk: Contender, plain: Contender, rates: Sequence[float]) -> tuple[float, ...]:
    """Step time of the disk tier over the limit, by round; what it moves needlessly counts."""
    needed = MAX_BYTES_EACH * num_parameters(plain)
    rounds = zip(disk.seconds, disk.disk_bytes, plain.seconds, rates, strict=True)
    return tuple(
        mine / max(compute, min(moved, needed) / rate) for mine, moved, compute, rate in rounds
    )


def num_parameters(contender: Contender) -> int:
    """Parameters of the model."""
    return sum(tensor.numel() for _, tensor in contender.system.parameters())


def check_losses(contenders: Mapping[str, Contender]) -> None:
    """Losses under the same clipping must be the same, bit for bit, in all steps."""
    known: dict[Workload, list[float]] = {}
    for name, contender in contenders.items():
        expected = known.setdefault(contender.workload, contender.losses)
        if contender.losses != expected[: len(contender.losses)]:
            sys.exit(f"{name}: losses {contender.losses} differ from {expected}")


def disk_ratios(case: Case, contenders: Mapping[str, Contender], raw: Raw) -> list[Ratio]:
    """The disk tier beside its limits, and its bytes."""
    rates = raw.rates
    disk, plain = contenders["disk tier"], contenders["plain loop"]
    moved = tuple(moved / num_parameters(plain) for moved in disk.disk_bytes)
    limits = [moved / rate for moved, rate in zip(disk.disk_bytes, rates, strict=True)]
    print(
        f"{case.name}: plain loop {statistics.median(plain.seconds):.2f} s, "
        f"disk limit {statistics.median(limits):.2f} s, "
        f"raw disk {statistics.median(rates) / 1e6:.0f} MB/s, "
        f"host memory of the store {case.host_bytes >> 20} MiB"
    )
    shape = str(case.workload)
    beside = zip(disk.seconds, raw.seconds_beside, strict=True)
    return [
        Ratio(f"disk tier / limit, {case.name}", shape, over_limit(disk, plain, rates), 1.10),
        Ratio(
            f"disk tier / plain loop beside raw disk, {case.name}",
            shape,
            tuple(mine / both for mine, both in beside),
            1.10,
        ),
        Ratio(f"disk bytes a parameter and step, {case.name}", shape, moved, MAX_BYTES_EACH),
    ]


def show_bytes(contenders: Mapping[str, Contender]) -> None:
    """Bytes a parameter and step of the disk tier: planned of each kind of step, and moved."""
    for name, contender in contenders.items():
        if not isinstance(contender.system, OpenWafer) or "disk" not in name:
            continue
        plan = contender.system.plan
        kinds = {
            "usual": plan.step_bytes,
            "undone": plan.undone_step_bytes,
            "gradients kept": plan.kept_step_bytes,
        }
        planned = ", ".join(
            f"{kind} {(moved.disk_read + moved.disk_write) / plan.parameters:.2f}"
            for kind, moved in kinds.items()
            if moved is not None
        )
        moved = ", ".join(f"{turn / plan.parameters:.2f}" for turn in contender.disk_bytes)
        print(f"{name}: planned {planned}; moved by turn {moved} bytes a parameter")


def measure(case: Case, turns: Turns, scratch: Path) -> list[Ratio]:
    """Run a case in its own folder."""
    plain, clipped = case.workload, replace(case.workload, clip_norm=CLIP_NORM)
    tokens = scratch / "tokens"
    # The plain loop has a second turn in each round, beside the raw disk.
    make_tokens(plain, tokens, 2 * turns.steps * (turns.rounds + 1))
    setups = {
        name: Setup(
            clipped if "clipped" in name else plain,
            tokens,
            "disk" if "disk" in name else "dram",
            scratch / name,
            case.host_bytes if "disk" in name else 0,
        )
        for name in case.names
    }
    with ExitStack() as stack:
        probe = RawProbe(scratch / "raw.bin", PROBE_BYTES, StoreOptions().num_readers)
        stack.callback(probe.close)
        contenders = {}
        for name in case.names:
            system = (Resident if "plain" in name else OpenWafer)(setups[name])
            stack.callback(system.close)
            contenders[name] = Contender(system, setups[name].workload, setups[name].batches())
        raw = alternate(contenders, turns, probe)
        check_losses(contenders)
        shape = str(plain)
        show_bytes(contenders)
        ratios = [
            Ratio(f"{name} / {other}", shape, over(contenders, name, other), target)
            for name, other, target in (
                ("streamed", "plain loop", 1.03),
                ("streamed, clipped", "plain loop, clipped", 1.03),
                ("disk tier", "plain loop", 1.05),
                ("disk tier, clipped", "plain loop, clipped", 1.05),
                ("streamed, clipped", "streamed", 1.03),
                ("disk tier, clipped", "disk tier", 1.05),
            )
            if name in contenders
        ]
        return ratios + disk_ratios(case, contenders, raw)


def table(ratios: Sequence[Ratio]) -> str:
    """A Markdown table of medians, ranges and targets."""
    lines = ["| figure | median | rounds | target | |", "| --- | --- | --- | --- | --- |"]
    for ratio in ratios:
        verdict = "reached" if ratio.median <= ratio.target else "missed"
        spread = f"{min(ratio.rounds):.3f} to {max(ratio.rounds):.3f}"
        lines.append(
            f"| {ratio.what} | {ratio.median:.3f} | {spread} | {ratio.target} | {verdict} |"
        )
    shapes = dict.fromkeys(ratio.shape for ratio in ratios)
    return "\n".join([*lines, "", *shapes]) + "\n"


def main() -> None:
    """Measure as the command line says, in temporary folders, which are removed."""
    restart_with_defaults()
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller steps and fewer rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", choices=("long", "short"), help="one of the two step lengths")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench_stream.json")
    options = parser.parse_args()
    torch.set_num_threads(LONG_STEPS.workload.num_threads)
    num_rounds = options.rounds or (2 if options.quick else 5)
    # A turn waits for the updates of its last step, which nothing hides: it has several steps.
    compute_bound, turns = LONG_STEPS, Turns(num_rounds, 4)
    if options.quick:
        compute_bound = replace(LONG_STEPS, workload=replace(LONG_STEPS.workload, sequences=1))
        turns = Turns(num_rounds, 1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    ratios = []
    cases = {"long": (compute_bound, turns), "short": (SHORT_STEPS, Turns(num_rounds, 6))}
    for case, case_turns in [cases[options.only]] if options.only else cases.values():
        with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
            ratios += measure(case, case_turns, Path(folder))
    print("\n" + table(ratios))
    record = [asdict(ratio) | {"median": ratio.median} for ratio in ratios]
    write_text(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
