"""What a plan predicts beside what is measured, over a matrix of runs: step time, peaks of memory.

A model that stays on the device, and one that is streamed from host memory and from disk with its
activations kept, recomputed and offloaded; steps of few and of many tokens; the reference GPT,
whose updates follow each push, a Llama, whose gradients are clipped, and the demo. Each is
a process of `openwafer train`, whose plan is made as it begins.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import yaml
from termination import clean_up_when_terminated

import openwafer.cli
from openwafer.atomic_file import write_text
from openwafer.cli.environment import restart_with_defaults
from openwafer.training.metrics import load_run
from openwafer.training.metrics.step_lines import measured_peaks

ROOT = Path(__file__).parents[1]
DEMO = Path(openwafer.cli.__file__).parent / "demo.yaml"
# The first steps are metered, which takes time of its own.
WARM_UP_STEPS = 4
SEQUENCE_LENGTH = 256
MB = 1e6
MODELS: dict[str, dict[str, object]] = {
    "gpt": {
        "model": {"kind": "reference-gpt", "hidden_size": 512, "num_layers": 8, "num_heads": 8},
        "clip_norm": None,
    },
    "llama": {
        "model": {
            "kind": "transformers",
            "architecture": "llama",
            "config": {
                "hidden_size": 640,
                "intermediate_size": 1728,
                "num_hidden_layers": 6,
                "num_attention_heads": 10,
                "num_key_value_heads": 10,
            },
        },
        "clip_norm": 1.0,
    },
}
RESIDENT = {"resident": {"mode": "resident"}}
STREAMED = {
    f"{store}, {activations}": {"mode": "streamed", "store": store, "activations": activations}
    for store, activations in product(("dram", "disk"), ("keep", "recompute", "offload"))
}


@dataclass(frozen=True)
class Cell:
    """A run of the matrix, and the keys of its config."""

    name: str
    config: dict[str, object]


@dataclass(frozen=True)
class Compared:
    """A figure as it was predicted, and as it was measured."""

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    def __str__(self) -> str:
        return f"{self.predicted:.4g} / {self.measured:.4g} | {self.ratio:.3f}"


@dataclass(frozen=True)
class Result:
    """A cell's step in seconds, and its peaks of memory in MB."""

    cell: str
    step: Compared
    device: Compared
    host: Compared


def cells(num_steps: int, host_memory: str) -> Iterator[Cell]:
    """The matrix, the demo last."""
    data = {
        "source": {"kind": "text", "paths": [str(ROOT / "src/openwafer/training/**/*.py")]},
        "tokenizer": {"vocab_size": 4096},
    }
    for model, tokens, (how, streaming) in product(
        MODELS, (32, 256, 2048), (RESIDENT | STREAMED).items()
    ):
        length = min(tokens, SEQUENCE_LENGTH)
        memory = {"host_memory": host_memory} if "disk" in how else {}
        config = {
            "data": data,
            "batch": {"size": tokens // length, "sequence_length": length},
            "streaming": {"device": "cpu", **streaming, **memory},
            **MODELS[model],
        }
        yield Cell(f"{model}, {tokens}, {how}", {**config, "steps": WARM_UP_STEPS + num_steps})
    demo = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    del demo["evaluate"]
    yield Cell("demo", {**demo, "steps": WARM_UP_STEPS + 4 * num_steps})


def run(cell: Cell, tokens: Path, folder: Path) -> Result:
    """Train the cell's run by the command; ``tokens`` are made once for all runs."""
    source = Path("demo" if cell.name == "demo" else "texts")
    path = folder / "run.yaml"
    config = {
        **cell.config,
        "data": {**cell.config["data"], "folder": str(tokens / source)},
        "folder": str(folder),
        "name": "run",
        "trace_steps": [],
        "checkpoint": {"every": 1_000_000, "at_end": False},
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "openwafer", "train", str(path)]
    with (folder / "terminal.txt").open("w") as terminal:
        process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.STDOUT)
        # It alone has the peak of this process; the sizes of Linux are in KiB.
        _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit((folder / "terminal.txt").read_text(encoding="utf-8"))
    record = load_run(folder / "run")
    plan, rows = record.plan, record.metrics.rows
    assert plan.predicted_step_seconds is not None
    assert plan.predicted_host_bytes is not None
    return Result(
        cell.name,
        Compared(
            plan.predicted_step_seconds,
            statistics.median(row.seconds for row in rows[WARM_UP_STEPS:]),
        ),
        Compared(plan.predicted_peak_bytes / MB, max(measured_peaks(rows).values()) / MB),
        Compared(plan.predicted_host_bytes / MB, used.ru_maxrss * 1024 / MB),
    )


def table(results: Sequence[Result]) -> str:
    """A Markdown table, and how far off the worst figures are."""
    lines = [
        "| run | step, s | | device, MB | | host, MB | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {one.cell} | {one.step} | {one.device} | {one.host} |" for one in results]
    for what in ("step", "device", "host"):
        ratios = [getattr(one, what).ratio for one in results]
        worst = max(abs(ratio - 1) for ratio in ratios)
        lines += [f"{what}: {min(ratios):.3f} to {max(ratios):.3f}, at most {worst:.1%} off"]
    return "\n".join(lines)


def main() -> None:
    """Measure the cells that the command line names."""
    restart_with_defaults()
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="cells whose name has one in it")
    parser.add_argument("--steps", type=int, default=7, help="after the first ones")
    parser.add_argument("--host-memory", default="128MiB", help="of the store on disk")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench_prediction.json")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for cell in cells(options.steps, options.host_memory):
        if any(part in cell.name for part in options.only):
            with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
                results.append(run(cell, options.out.parent / "prediction-tokens", Path(folder)))
            print(results[-1], flush=True)
    print("\n" + table(results))
    write_text(options.out, json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
