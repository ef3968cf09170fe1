"""The step time that a plan predicts beside the one that is measured, over a matrix of runs.

A model that stays on the device, and one that is streamed from host memory and from disk with its
activations kept, recomputed and offloaded; steps of few and of many tokens; the reference GPT,
whose updates follow each push, a Llama, whose gradients are clipped, and the demo. A run is planned
as `openwafer train --plan-only` does it and then trained for some steps.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import yaml
from rich.console import Console
from termination import clean_up_when_terminated

import openwafer.cli
from openwafer.atomic_file import write_text
from openwafer.cli.environment import restart_with_defaults
from openwafer.training.metrics import load_run
from openwafer.training.session import Session

ROOT = Path(__file__).parents[1]
DEMO = Path(openwafer.cli.__file__).parent / "demo.yaml"
# The first steps are metered, which takes time of its own.
WARM_UP_STEPS = 4
SEQUENCE_LENGTH = 256
TARGET = 1.25
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
class Result:
    """A cell's step, predicted and measured, in seconds."""

    cell: str
    predicted: float
    limit: str
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def cells(num_steps: int, host_memory: str) -> Iterator[Cell]:
    """The matrix, the demo last."""
    data = {
        "source": {"kind": "text", "paths": [str(ROOT / "src/openwafer/training")]},
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
    """Plan the cell's run and train it; ``tokens`` are made once for all runs."""
    source = Path("demo" if cell.name == "demo" else "texts")
    path = folder / "run.yaml"
    config = {
        **cell.config,
        "data": {**cell.config["data"], "folder": str(tokens / source)},
        "folder": str(folder),
        "trace_steps": [],
        "checkpoint": {"every": 1_000_000, "at_end": False},
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    session = Session(path, console=Console(quiet=True))
    plan = session.plan()
    session.train()
    rows = load_run(session.folder.path).metrics.rows[WARM_UP_STEPS:]
    assert plan.predicted_step_seconds is not None
    assert plan.step_limit is not None
    measured = statistics.median(row.seconds for row in rows)
    return Result(cell.name, plan.predicted_step_seconds, plan.step_limit, measured)


def table(results: Sequence[Result]) -> str:
    """A Markdown table, and how far off the worst one is."""
    lines = ["| run | predicted | limit | measured | ratio |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {result.cell} | {result.predicted:.3f} s | {result.limit} | {result.measured:.3f} s "
        f"| {result.ratio:.2f} |"
        for result in results
    ]
    within = sum(1 / TARGET <= result.ratio <= TARGET for result in results)
    ratios = [result.ratio for result in results]
    summary = (
        f"{within} of {len(results)} within a factor of {TARGET}; ratios from "
        f"{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
    )
    return "\n".join([*lines, "", summary])


def main() -> None:
    """Measure the cells that the command line names."""
    restart_with_defaults()
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--steps", type=int, default=7, help="after the first ones")
    parser.add_argument("--host-memory", default="128MiB", help="of the store on disk")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench_prediction.json")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for cell in cells(options.steps, options.host_memory):
        if options.only in cell.name:
            with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
                results.append(run(cell, options.out.parent / "prediction-tokens", Path(folder)))
            print(results[-1], flush=True)
    print("\n" + table(results))
    record = [asdict(result) | {"ratio": result.ratio} for result in results]
    write_text(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
