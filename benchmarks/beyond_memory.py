"""Trains a model whose weights and optimizer state exceed this machine's memory.

Takes real steps on the sources of the Python standard library with the store on disk, samples the
process's resident memory all along, and holds the step time against what the disk limit predicts
for the bytes that the step really moved. The rate of the disk is that of a raw probe which reads
and writes at once; it has its turn before the run, between two turns of the run and after it, for
disks that are shared change their rate within minutes. Each turn but the first resumes the run from
its store, and counts without its first step. Draws a picture of memory over time. Needs about 28
bytes of disk a parameter.
"""

import argparse
import json
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import psutil
from bench_disk import RawProbe
from termination import clean_up_when_terminated

from openwafer.cli.environment import restart_with_defaults
from openwafer.training.host_memory import read_host_memory
from openwafer.training.metrics import read_trace
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.metrics.step_trace import compute_share
from openwafer.training.plan_record import PlanRecord
from openwafer.training.session import Session

GIB = 1 << 30
CONFIG = """
name: beyond-memory
folder: {folder}
steps: {steps}
log_every: 1
trace_steps: [2]
model:
  hidden_size: {hidden}
  num_layers: {layers}
  num_heads: {heads}
  context_length: {tokens}
  has_tied_embeddings: false
data: {{source: {{kind: standard-library}}, tokenizer: {{vocab_size: 8192}}}}
batch: {{size: 1, sequence_length: {tokens}}}
optimizer: {{learning_rate: 1e-5}}
clip_norm: {clip_norm}
device_memory: {device_memory}
streaming: {{store: disk, host_memory: {host_memory}}}
checkpoint: {{at_end: false, every: 1000000}}
"""


class MemorySampler(threading.Thread):
    """Resident bytes of this process four times a second, with their times."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        start = time.perf_counter()
        while not self.is_over.wait(0.25):
            now = time.perf_counter() - start
            self.samples.append((now, read_host_memory().resident_bytes))


@dataclass(frozen=True)
class Turn:
    """Steps without the first, and the rates of the raw probe before and after them."""

    steps: list[dict[str, float]]
    rate_before: float
    rate_after: float

    @property
    def seconds(self) -> float:
        """Median step."""
        return statistics.median(row["seconds"] for row in self.steps)

    @property
    def num_bytes(self) -> float:
        """Read and written, median step."""
        return statistics.median(
            row["disk_read_bytes"] + row["disk_write_bytes"] for row in self.steps
        )

    @property
    def limit_seconds(self) -> float:
        """What raw direct I/O would take for the bytes of a step."""
        return self.num_bytes * (1 / self.rate_before + 1 / self.rate_after) / 2


def main() -> None:
    """Run, print the figures, draw the picture."""
    restart_with_defaults()
    clean_up_when_terminated()
    arguments = _arguments()
    with TemporaryDirectory(dir=arguments.folder) as folder:
        probe = RawProbe(Path(folder) / "probe", 2 * GIB, num_threads=2)
        sampler = MemorySampler()
        sampler.start()
        run = Path(folder) / "beyond-memory"
        turns, rates = [], [_disk_rate(probe)]
        for number in range(arguments.turns):
            _train(arguments, run, number)
            rates.append(_disk_rate(probe))
            steps = _steps_of(run)[number * arguments.steps + 1 :]
            turns.append(Turn(steps, rates[-2], rates[-1]))
        sampler.is_over.set()
        probe.close()
        plan = PLAN.read(run)
        parameters = plan.parameters
        share = compute_share(read_trace(run / "trace.json").select())
        result = _figures(parameters, turns, sampler)
        result["planned and moved bytes a parameter"] = _kinds_of_step(plan, _steps_of(run))
        result["losses"] = [row["loss"] for row in _steps_of(run)]
    result["share of a step without a wait for the disk"] = share.share
    print(json.dumps(result, indent=1))
    _draw(sampler, 12 * parameters, arguments.picture)


def _train(arguments: argparse.Namespace, run: Path, number: int) -> None:
    """Begin the run, or resume it for as many steps again."""
    num_steps = (number + 1) * arguments.steps
    if number == 0:
        Session(_config(arguments, run.parent)).train()
    else:
        Session(run, [f"steps={num_steps}"]).resume()


def _steps_of(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def _kinds_of_step(plan: PlanRecord, steps: list[dict[str, float]]) -> dict[str, list[float]]:
    """Planned bytes a parameter of each kind of step, read and written, and those of every step."""
    planned = {
        "planned": plan.step_bytes,
        "planned, if clipped": plan.undone_step_bytes,
        "planned, gradients kept": plan.kept_step_bytes,
    }
    known = {name: moved for name, moved in planned.items() if moved is not None}
    return {
        **{name: [(b.disk_read + b.disk_write) / plan.parameters] for name, b in known.items()},
        "moved": [
            (row["disk_read_bytes"] + row["disk_write_bytes"]) / plan.parameters for row in steps
        ],
        "norms": [row["grad_norm"] or 0.0 for row in steps],
    }


def _disk_rate(probe: RawProbe) -> float:
    """Bytes a second that direct I/O reads and writes at once."""
    seconds = statistics.median([probe.both() for _ in range(3)])
    return 2 * probe.num_bytes / seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--picture", type=Path, default=Path("beyond-memory.png"))
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clip-norm", default="1.0", help="as in a config; null never clips")
    parser.add_argument("--device-memory", default="1GiB")
    parser.add_argument("--host-memory", default="5.5GiB")
    return parser.parse_args()


def _config(arguments: argparse.Namespace, folder: Path) -> Path:
    values = vars(arguments) | {"folder": folder}
    path = folder / "beyond-memory.yaml"
    path.write_text(CONFIG.format(**values), encoding="utf-8")
    return path


def _figures(parameters: int, turns: list[Turn], sampler: MemorySampler) -> dict[str, object]:
    rates = [turns[0].rate_before, *(turn.rate_after for turn in turns)]
    return {
        "parameters": parameters,
        "weights and optimizer state, GB": 12 * parameters / 1e9,
        "memory of the machine, GB": psutil.virtual_memory().total / 1e9,
        "largest resident set, GB": max(resident for _, resident in sampler.samples) / 1e9,
        "bytes a parameter and step": statistics.median(turn.num_bytes for turn in turns)
        / parameters,
        "raw disk, reading and writing at once, GB/s": [rate / 1e9 for rate in rates],
        "step, s": [turn.seconds for turn in turns],
        "disk limit, s": [turn.limit_seconds for turn in turns],
        "step / disk limit": statistics.median(turn.seconds / turn.limit_seconds for turn in turns),
    }


def _draw(sampler: MemorySampler, model_bytes: int, path: Path) -> None:
    times, resident = zip(*sampler.samples, strict=True)
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.fill_between(times, [value / 1e9 for value in resident], color="#3b6ea5", alpha=0.8)
    # The model is the larger one, often by little, so that its label stands above both lines.
    for value, label, offset in (
        (model_bytes, "weights and optimizer state", 4),
        (psutil.virtual_memory().total, "memory of the machine", -12),
    ):
        axes.axhline(value / 1e9, color="#444", linewidth=1, linestyle="--")
        axes.annotate(label, (0, value / 1e9), xytext=(4, offset), textcoords="offset points")
    axes.set(xlabel="seconds", ylabel="resident memory, GB", xlim=(0, times[-1]), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
