"""Trains a sparse model in DRAM whose dense weights and optimizer states do not fit this machine.

Reads how much memory there is, makes the model so deep that 12 bytes a weight are more than that,
and does what a user would do: plans the dense model, which is refused; trains the sparse one and
resumes it for one more step. Prints what each of these programs held in memory at most, by the
kernel's own count, beside what the plan said. Needs 8 bytes of disk for each dense parameter.

    python benchmarks/sparse_larger_than_memory.py --sparsity 0.9 --init-method random
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from termination import clean_up_when_terminated

STORE_BYTES = 12
"""Of a dense weight: fp32, and AdamW's two states."""

CONFIG = """
name: {name}
folder: {folder}/runs
steps: {steps}
log_every: 1
model:
  hidden_size: {hidden}
  num_layers: {layers}
  num_heads: {heads}
  context_length: {tokens}
  has_tied_embeddings: false
data:
  source: {{kind: text, paths: [{folder}/texts]}}
  tokenizer: {{vocab_size: 512}}
  folder: {folder}/tokens
batch: {{size: {samples}, sequence_length: {tokens}}}
optimizer: {{learning_rate: {learning_rate}}}
schedule: {{name: constant}}
device_memory: {device_memory}
streaming: {{device: cpu, store: dram}}
"""
SPARSITY = "sparsity: {{sparsity: {sparsity}, init_method: {init_method}}}\n"


@dataclass(frozen=True)
class Program:
    """A program that has ended: its status, what it wrote, its time, and its memory at most."""

    status: int
    text: str
    seconds: float
    peak_bytes: int


def main() -> None:
    """Run the programs and print the table."""
    clean_up_when_terminated()
    arguments = _arguments()
    with TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        _write_texts(folder / "texts")
        layers = arguments.layers or _num_layers(arguments.hidden)
        values = vars(arguments) | {"folder": folder, "layers": layers}
        dense, sparse = folder / "dense.yaml", folder / "sparse.yaml"
        dense.write_text(CONFIG.format(name="dense", **values), encoding="utf-8")
        sparse.write_text((CONFIG + SPARSITY).format(name="sparse", **values), encoding="utf-8")
        rows = dict(_rows(dense, sparse, folder / "runs/sparse", arguments.steps))
    for row, (said, measured) in rows.items():
        print(f"| {row} | {said} | {measured} |")
    if arguments.layers is None and rows["dense: plan refused, status"][1] == 0:
        raise SystemExit("the dense model was to exceed this machine's memory, and its plan fits")


def _rows(
    dense: Path, sparse: Path, run: Path, steps: int
) -> Iterator[tuple[str, tuple[object, object]]]:
    """Each figure: what the plan says, and what was measured."""
    memory = psutil.virtual_memory().total
    refused = _openwafer("plan", dense)
    yield "dense: memory, GB", (_refusal(refused.text), f"{memory / 1e9:.1f} in the machine")
    yield "dense: plan refused, status", ("", refused.status)
    yield "dense: plan's own memory, GB", ("", f"{refused.peak_bytes / 1e9:.2f}")
    trained = _openwafer("train", sparse)
    _require(trained)
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    sizes = plan["sparse"]
    elements = sum(weight["rows"] * weight["columns"] for weight in sizes["weights"])
    kept = sum(weight["capacity"] for weight in sizes["weights"])
    stored = sizes["values_bytes"] + sizes["states_bytes"] + sizes["pattern_bytes"]
    yield "dense parameters, millions", (f"{sizes['parameters'] / 1e6:.0f}", "")
    dense_bytes = STORE_BYTES * sizes["parameters"]
    yield "dense weights and states, GB", (f"{dense_bytes / 1e9:.1f}", "")
    yield "kept of sparse weights", (f"{kept / elements:.4f}", "")
    yield "store of sparse weights, GB", (f"{stored / 1e9:.3f}", "")
    yield "of it patterns, GB", (f"{sizes['pattern_bytes'] / 1e9:.3f}", "")
    saved = sum(path.stat().st_size for path in (run / "checkpoints").rglob("*.safetensors"))
    yield "checkpoint, GB", (f"{_store_bytes(plan) / 1e9:.3f}", f"{saved / 1e9:.3f}")
    yield "train: memory at most, GB", _peaks(plan, trained)
    yield from _steps(run, trained, plan)
    resumed = _openwafer("resume", run, "--set", f"steps={steps + 1}")
    _require(resumed)
    yield "resume: memory at most, GB", _peaks(plan, resumed)
    yield "resume: last loss", ("", _read_steps(run)[-1]["loss"])
    yield "resume: whole program, s", ("", f"{resumed.seconds:.0f}")


def _steps(
    run: Path, trained: Program, plan: Mapping[str, float]
) -> Iterator[tuple[str, tuple[object, object]]]:
    steps = _read_steps(run)
    seconds = [row["seconds"] for row in steps]
    yield "losses", ("", " ".join(f"{row['loss']:.3f}" for row in steps))
    yield (
        "a step, s",
        (
            f"{plan['predicted_step_seconds']:.1f}",
            f"{statistics.median(seconds):.1f} (first {seconds[0]:.1f})",
        ),
    )
    yield "all but steps, s", ("", f"{trained.seconds - sum(seconds):.0f}")


def _openwafer(*words: object) -> Program:
    """Run a command to its end."""
    command = [str(Path(sys.executable).with_name("openwafer")), *map(str, words)]
    started = time.perf_counter()
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )
    assert running.stdout is not None
    text = running.stdout.read()
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    return Program(running.returncode, text, seconds, usage.ru_maxrss * 1024)


def _require(program: Program) -> None:
    if program.status:
        raise SystemExit(program.text)


def _refusal(text: str) -> str:
    """The first sentence of an error, as the terminal broke it."""
    return " ".join(text.partition("= help")[0].split())


def _store_bytes(plan: Mapping[str, list[Mapping[str, int]]]) -> int:
    return sum(layer["weights_bytes"] + layer["states_bytes"] for layer in plan["layers"])


def _peaks(plan: Mapping[str, float], program: Program) -> tuple[str, str]:
    return f"{plan['predicted_host_bytes'] / 1e9:.2f}", f"{program.peak_bytes / 1e9:.2f}"


def _read_steps(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def _num_layers(hidden: int) -> int:
    """Of 12 hidden^2 weights each, so many that they exceed the machine's memory by a fifth."""
    layer_bytes = STORE_BYTES * 12 * hidden**2
    return math.ceil(1.2 * psutil.virtual_memory().total / layer_bytes)


def _write_texts(folder: Path) -> None:
    """Texts that a few steps learn something of."""
    folder.mkdir()
    numbers = chain(range(1, 400), range(1, 400))
    for index in range(64):
        text = " ".join(f"{next(numbers)} is a number." for _ in range(10))
        (folder / f"{index:02d}.txt").write_text(text * 20, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--layers", type=int, help="default: as many as exceed the memory")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--init-method", default="random")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--learning-rate", default="3e-6")
    parser.add_argument("--device-memory", default="2GiB")
    return parser.parse_args()


if __name__ == "__main__":
    main()
