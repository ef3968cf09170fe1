"""Trains a model whose weights and optimizer state exceed this machine's memory.

Takes real steps on the sources of the Python standard library with the store on disk, samples the
process's resident memory all along, and holds the step time against what the disk limit predicts
for the bytes that the step really moved, at the rate at which a raw probe reads and writes in the
same run. Draws a picture of memory over time. Needs about 28 bytes of disk a parameter.
"""

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import psutil
from bench_disk import RawProbe
from process_settings import clean_up_when_terminated, restart_with_settings

from openwafer.training.metrics import compute_share, read_trace
from openwafer.training.metrics.host_memory import read_host_memory
from openwafer.training.session import Session

GIB = 1 << 30
CONFIG = """
name: beyond-memory
folder: {folder}
steps: {steps}
log_every: 1
model:
  hidden_size: {hidden}
  num_layers: {layers}
  num_heads: {heads}
  context_length: {tokens}
  has_tied_embeddings: false
data: {{source: {{kind: standard-library}}, tokenizer: {{vocab_size: 8192}}}}
batch: {{size: 1, sequence_length: {tokens}}}
optimizer: {{learning_rate: 1e-5}}
clip_norm: null
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


def main() -> None:
    """Run, print the figures, draw the picture."""
    restart_with_settings()
    clean_up_when_terminated()
    arguments = _arguments()
    with TemporaryDirectory(dir=arguments.folder) as folder:
        rate = _disk_rate(Path(folder) / "probe")
        sampler = MemorySampler()
        sampler.start()
        session = Session(_config(arguments, Path(folder)))
        plan = session.plan()
        session.train()
        sampler.is_over.set()
        run = Path(folder) / "beyond-memory"
        lines = (run / "metrics.jsonl").read_text().splitlines()
        share = compute_share(read_trace(run / "trace.json").select(step=3))
    steps = [row for row in map(json.loads, lines) if "loss" in row][1:]
    result = _figures(plan.parameters, steps, rate, sampler)
    result["share of a step without a wait for the disk"] = share.share
    print(json.dumps(result, indent=1))
    _draw(sampler, 12 * plan.parameters, arguments.picture)


def _disk_rate(path: Path) -> float:
    """Bytes a second that direct I/O reads and writes at once."""
    probe = RawProbe(path, 2 * GIB, num_threads=2)
    seconds = [probe.both() for _ in range(3)]
    probe.close()
    path.unlink()
    return 2 * probe.num_bytes / statistics.median(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--picture", type=Path, default=Path("beyond-memory.png"))
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device-memory", default="1GiB")
    parser.add_argument("--host-memory", default="5.5GiB")
    return parser.parse_args()


def _config(arguments: argparse.Namespace, folder: Path) -> Path:
    values = vars(arguments) | {"folder": folder}
    path = folder / "beyond-memory.yaml"
    path.write_text(CONFIG.format(**values), encoding="utf-8")
    return path


def _figures(
    parameters: int, steps: list[dict[str, float]], rate: float, sampler: MemorySampler
) -> dict[str, object]:
    seconds = statistics.median(row["seconds"] for row in steps)
    read = statistics.median(row["disk_read_bytes"] for row in steps)
    written = statistics.median(row["disk_write_bytes"] for row in steps)
    predicted = (read + written) / rate
    return {
        "parameters": parameters,
        "weights and optimizer state, GB": 12 * parameters / 1e9,
        "memory of the machine, GB": psutil.virtual_memory().total / 1e9,
        "largest resident set, GB": max(resident for _, resident in sampler.samples) / 1e9,
        "bytes a parameter and step": (read + written) / parameters,
        "raw disk, reading and writing at once, GB/s": rate / 1e9,
        "step, s": seconds,
        "disk limit, s": predicted,
        "step / disk limit": seconds / predicted,
        "losses": [row["loss"] for row in steps],
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
