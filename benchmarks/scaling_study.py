"""A study of a family of models, by commands: tune small, fit small, predict large, train large.

A sweep finds the learning rate of the narrowest model. Wider ones take it over by muP and are
trained on as many tokens a parameter. A law is fitted to four sizes and says what the fifth will
reach, before it is trained. The texts are the sources of Python's own library. Goes on where it
ended; two cores need less than two hours.

    python benchmarks/scaling_study.py FOLDER --picture study.png
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from openwafer.training.methods.step_count import count_step
from openwafer.training.metrics import VALIDATION_FORMAT, read_lines
from openwafer.training.session import load_config

WIDTHS = (32, 48, 64, 96, 128)
HEAD_SIZE, MLP_RATIO, VOCAB_SIZE, BATCH, LENGTH = 16, 3, 512, 16, 64
RATES = "2e-3,4e-3,8e-3,1.6e-2,3.2e-2"
SEEDS = 3


@dataclass(frozen=True)
class Study:
    """Where everything is.

    Attributes:
        folder: of the study.
        widths: of the models, rising; the last one is predicted.
        tokens_a_parameter: that each is trained on.
    """

    folder: Path
    widths: tuple[int, ...]
    tokens_a_parameter: float

    @property
    def transferred(self) -> Path:
        """The config that the sweep writes, of the widest model."""
        return self.folder / "transferred.yaml"

    def runs(self, width: int) -> list[Path]:
        """The folders of the runs of a width, one a seed."""
        return [self.folder / "runs" / f"width-{width}-seed-{seed}" for seed in range(SEEDS)]


def command(*words: object) -> str:
    """Run openwafer; returns what it printed."""
    print("$ openwafer", *words, flush=True)
    line = [sys.executable, "-m", "openwafer", *map(str, words)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


def shape(width: int) -> dict[str, int]:
    """Widths of a model, by the fields of its config."""
    heads = width // HEAD_SIZE
    return {"hidden_size": width, "num_heads": heads, "mlp_size": MLP_RATIO * width}


def sized(study: Study, path: Path, width: int) -> tuple[list[str], float]:
    """What a config changes for a model of this width and its tokens, and the FLOPs of that run."""
    sets = [f"model.{key}={value}" for key, value in shape(width).items()]
    count = count_step(load_config(path, tuple(sets)))
    steps = max(round(study.tokens_a_parameter * count.parameters / (BATCH * LENGTH)), 1)
    flops = (count.forward_flops + count.backward_flops) * steps * BATCH * LENGTH
    return [*sets, f"steps={steps}"], flops


def proxy(study: Study) -> Path:
    """Write the config of the narrowest model."""
    path = study.folder / "proxy.yaml"
    made: dict[str, Any] = {
        "steps": 1,
        "model": {**shape(study.widths[0]), "num_layers": 2, "context_length": LENGTH},
        "data": {
            "source": {"kind": "standard-library"},
            "tokenizer": {"vocab_size": VOCAB_SIZE},
            "validation_share": 0.02,
            "folder": str(study.folder / "tokens"),
        },
        "batch": {"size": BATCH, "sequence_length": LENGTH},
        "optimizer": {"name": "adamw", "weight_decay": 0.1, "options": {"betas": [0.9, 0.95]}},
        "schedule": {"name": "cosine", "options": {"final_factor": 0.1}},
        "evaluate": {"every": 1_000_000, "batches": 64},
        "checkpoint": {"at_end": False},
        "trace_steps": [],
    }
    path.write_text(yaml.safe_dump(made))
    steps = sized(study, path, study.widths[0])[0][-1]
    made["steps"] = int(steps.removeprefix("steps="))
    path.write_text(yaml.safe_dump(made))
    return path


def tune(study: Study) -> None:
    """Sweep the learning rate of the narrowest model; write the config of the widest."""
    widths = ",".join(f"{key}={value}" for key, value in shape(study.widths[-1]).items())
    print(
        command(
            *("sweep", proxy(study), "--grid", f"optimizer.learning_rate={RATES}"),
            *("--seeds", SEEDS, "--folder", study.folder / "sweep"),
            *("--widths", widths, "--transfer", study.transferred),
        )
    )


def train(study: Study, width: int, *more: str) -> None:
    """Train the runs of a width that have not ended, by the config that the sweep wrote."""
    sets, flops = sized(study, study.transferred, width)
    for seed, run in enumerate(study.runs(width)):
        if not losses(run):
            own = [*sets, f"seed={seed}", f"name={run.name}", f"folder={run.parent}", *more]
            command("train", study.transferred, *(word for one in own for word in ("--set", one)))
        print(f"width {width}, {flops:.3g} FLOPs, seed {seed}: {losses(run)[-1]:.4f}", flush=True)


def losses(run: Path) -> list[float]:
    """Those on held-out documents, which are taken once, at a run's end."""
    path = run / "validation.jsonl"
    return [row.loss for row in read_lines(path, VALIDATION_FORMAT).rows] if path.exists() else []


def predict(study: Study) -> dict[str, float]:
    """What the law of all widths but the last says of the last, with the bounds of its interval."""
    path = study.folder / "fit.json"
    runs = [run for width in study.widths[:-1] for run in study.runs(width)]
    _, flops = sized(study, study.transferred, study.widths[-1])
    print(command("fit", *runs, "--flops", flops, "--json", path))
    found = json.loads(path.read_text())["fit"]["expectations"][0]["figures"][0]
    return {key: found[key] for key in ("value", "low", "high")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--tokens-a-parameter", type=float, default=20)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    widths = tuple(map(int, asked.widths.split(",")))
    study = Study(asked.folder.absolute(), widths, asked.tokens_a_parameter)
    study.folder.mkdir(parents=True, exist_ok=True)
    tune(study)
    for width in study.widths[:-1]:
        train(study, width)
    predicted = predict(study)
    largest = study.widths[-1]
    print(f"predicted of width {largest}, before it is trained: {predicted}", flush=True)
    train(study, largest, f"law={study.folder / 'fit.json'}")
    runs = study.runs(largest)
    loss = fmean(losses(run)[-1] for run in runs)
    print(
        f"width {largest}: predicted {predicted['value']:.4f} ({predicted['low']:.4f} to "
        f"{predicted['high']:.4f}), reached {loss:.4f} over {len(runs)} seeds: "
        f"{predicted['value'] / loss - 1:+.2%}"
    )
    if asked.picture is not None:
        every = [run for width in study.widths for run in study.runs(width)]
        picture = ("--picture", asked.picture, "--hold-out", f"width-{largest}-*")
        print(command("fit", *every, *picture))


if __name__ == "__main__":
    main()
