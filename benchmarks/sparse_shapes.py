"""Do the orders that the literature reports hold here, on a small transformer at 75% sparsity?

Held-out loss at equal steps of dense, RigL, SET and static runs; of RigL on a wider model
(Sparse-Wide, arXiv 2303.11525) at equal steps and at the FLOPs of the dense run; of a run that is
sparse for its first half (variable SPDF); and of the dense and the static model after dense
fine-tuning on a corpus of another kind (SPDF, arXiv 2303.10464): trained on the sources of Python's
library, fine-tuned on the prose of its language reference.

One run after the other, its results in a JSON file as soon as it ends: a script that was stopped
goes on where it was. Draws a picture from what is there. A run takes about a minute of one core, a
wide one four.
"""

import argparse
import json
import os
import pydoc_data.topics
import shutil
import statistics
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich.console import Console

from openwafer.training.data import DataSource, TokenizerTraining
from openwafer.training.data.sources import SourceKind, list_files
from openwafer.training.metrics import load_run
from openwafer.training.models import CheckpointFolder, GptConfig
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    OptimizerConfig,
    ScheduleConfig,
    TokensConfig,
)
from openwafer.training.sparsity.masks.schedules import Cosine, Cycling, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup

SPARSITY = 0.75
WIDENING = 2  # 1 / sqrt(1 - SPARSITY)
DENSE = GptConfig(
    vocab_size=512, context_length=128, hidden_size=64, num_layers=4, num_heads=4, mlp_size=192
)
WIDE = replace(
    DENSE,
    hidden_size=DENSE.hidden_size * WIDENING,
    num_heads=DENSE.num_heads * WIDENING,
    mlp_size=DENSE.mlp_units * WIDENING,
)
BATCH = BatchConfig(size=8, sequence_length=128)
# Every run learns at the one rate, every fine-tuning at the other; neither was tuned.
RATE, FINE_TUNING_RATE = 3e-3, 1e-3
PRETRAINED = ("dense", "static")
TUNED = "fine-tuned-static"
MARKS = {
    "dense": "black",
    "rigl": "tab:blue",
    "set": "tab:orange",
    "static": "tab:red",
    "wide": "tab:green",
    "wide-steps": "tab:olive",
    "variable": "tab:purple",
}
LABELS = {
    "dense": "dense",
    "rigl": "RigL",
    "set": "SET",
    "static": "static",
    "wide": "Sparse-Wide, equal FLOPs",
    "wide-steps": "Sparse-Wide, equal steps",
    TUNED: "SPDF: static,\nfine-tuned dense",
    "variable": "75%, then dense",
}


@dataclass(frozen=True)
class Result:
    """What a run has found.

    Attributes:
        steps: at which the held-out loss was taken.
        losses: held-out, one each.
        seconds: the run took.
    """

    steps: list[int]
    losses: list[float]
    seconds: float


def forward_flops(model: GptConfig, density: float) -> float:
    """Of one token, multiplications and additions; attention over whole sequences."""
    width, units = model.hidden_size, model.mlp_units
    linear = model.num_layers * (4 * width**2 + 3 * width * units)
    attention = model.num_layers * 2 * model.context_length * width
    assert model.vocab_size is not None
    return 2 * (density * linear + attention + model.vocab_size * width)


def wide_steps(steps: int) -> int:
    """Steps that cost the wide model what `steps` cost the dense one."""
    return round(steps * forward_flops(DENSE, 1.0) / forward_flops(WIDE, 1.0 - SPARSITY))


def sparsity(name: str, steps: int) -> float | SparsityGroup | None:
    """The sparsity of a run: updates as in RigL's paper, none in the last quarter."""
    if name == "dense":
        return None
    if name == "static":
        return SPARSITY
    if name == "variable":
        update = EverySteps(freq=steps // 2, stop=steps)
        return SparsityGroup(Cycling((SPARSITY, 0.0)), AlgorithmName.GMP, update=update)
    last = 3 * steps // 4
    return SparsityGroup(
        SPARSITY,
        AlgorithmName.SET if name == "set" else AlgorithmName.RIGL,
        update=EverySteps(freq=max(1, steps // 75), stop=last),
        drop_fraction=Cosine(0.3, last),
    )


def write_corpora(folder: Path) -> None:
    """The sources of the library, and the topics of its reference, a JSON line a document."""
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    files = list_files(DataSource(SourceKind.STANDARD_LIBRARY))
    sources = [file for file in files if "pydoc_data" not in file.relative_to(library).parts]
    texts = [file.read_text("utf-8", errors="replace") for file in sources]
    _write_lines(folder / "sources.jsonl", texts)
    _write_lines(folder / "reference.jsonl", list(pydoc_data.topics.topics.values()))


def _write_lines(path: Path, texts: list[str]) -> None:
    if not path.exists():
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def config(name: str, seed: int, steps: int, folder: Path) -> RunConfig:
    """A run of pre-training."""
    steps = wide_steps(steps) if name == "wide" else steps
    source = DataSource(SourceKind.JSONL, (str(folder / "sources.jsonl"),))
    return RunConfig(
        steps=steps,
        data=TokensConfig(
            source, TokenizerTraining(512), validation_share=0.05, folder=folder / "data"
        ),
        name=f"{name}-{seed}",
        folder=folder / "runs",
        seed=seed,
        log_every=100,
        model=replace(WIDE if name.startswith("wide") else DENSE, vocab_size=None),
        batch=BATCH,
        optimizer=OptimizerConfig("adamw", RATE, weight_decay=0.1, options={"betas": [0.9, 0.95]}),
        schedule=ScheduleConfig("cosine", {"final_factor": 0.05}),
        sparsity=sparsity(name, steps),
        checkpoint=CheckpointConfig(every=10 * steps),
        evaluate=EvaluateConfig(every=max(1, steps // 5), batches=24),
    )


def fine_tuning(name: str, seed: int, steps: int, folder: Path) -> RunConfig:
    """Dense training of a pre-trained model on the reference's prose."""
    before = config(name, seed, steps, folder)
    source = DataSource(SourceKind.JSONL, (str(folder / "reference.jsonl"),))
    return replace(
        before,
        steps=steps // 4,
        name=f"fine-tuned-{name}-{seed}",
        data=TokensConfig(source, validation_share=0.2, folder=folder / "data"),
        model=CheckpointFolder(exported(name, seed, folder)),
        optimizer=replace(before.optimizer, learning_rate=FINE_TUNING_RATE),
        sparsity=None,
        evaluate=EvaluateConfig(every=max(1, steps // 20), batches=24),
    )


def exported(name: str, seed: int, folder: Path) -> Path:
    """Where the weights of a pre-trained model are."""
    return folder / "exported" / f"{name}-{seed}"


def train(run: RunConfig) -> tuple[Session, Result]:
    """A whole run; one that was broken off before begins again."""
    shutil.rmtree(run.path, ignore_errors=True)
    session = Session(run, console=Console(quiet=True))
    start = time.perf_counter()
    if not session.train().is_complete:
        raise SystemExit("interrupted; the same command goes on")
    seconds = time.perf_counter() - start
    found = load_run(run.path).validation
    assert found is not None
    rows = found.rows
    return session, Result([row.step for row in rows], [row.loss for row in rows], seconds)


def runs(seeds: int, shapes: list[str]) -> Iterator[tuple[str, int, bool]]:
    """Name and seed of each run, and whether it is a fine-tuning, which come last."""
    for seed in range(seeds):
        for name in shapes:
            yield name, seed, False
    for seed in range(seeds):
        for name in PRETRAINED:
            if name in shapes:
                yield name, seed, True


def read_results(path: Path) -> dict[str, Result]:
    """Results by the names of their runs."""
    known = json.loads(path.read_text()) if path.exists() else {}
    return {key: Result(**value) for key, value in known.items()}


def measure(arguments: argparse.Namespace, folder: Path, path: Path) -> None:
    """Train what is not in the file of results yet."""
    write_corpora(folder)
    results = read_results(path)
    for name, seed, is_fine_tuning in runs(arguments.seeds, arguments.shapes):
        run = (fine_tuning if is_fine_tuning else config)(name, seed, arguments.steps, folder)
        assert run.name is not None
        if run.name in results:
            continue
        session, results[run.name] = train(run)
        if name in PRETRAINED and not is_fine_tuning:
            shutil.rmtree(exported(name, seed, folder), ignore_errors=True)
            session.export(exported(name, seed, folder))
        shutil.rmtree(run.path)
        written = path.with_suffix(".new")
        written.write_text(json.dumps({key: asdict(each) for key, each in results.items()}))
        os.replace(written, path)
        print(
            run.name, results[run.name].losses[-1], f"{results[run.name].seconds:.0f} s", flush=True
        )


def last_losses(results: dict[str, Result], name: str) -> list[float]:
    """Of all seeds, in their order."""
    found = {key: each for key, each in results.items() if key.rpartition("-")[0] == name}
    return [found[key].losses[-1] for key in sorted(found)]


def print_table(results: dict[str, Result]) -> None:
    """Mean and spread of the last held-out losses, and of their distance from dense."""
    for name in (*MARKS, *(f"fine-tuned-{name}" for name in PRETRAINED)):
        losses = last_losses(results, name)
        if not losses:
            continue
        prefix = "fine-tuned-" if name.startswith("fine-tuned") else ""
        dense = last_losses(results, f"{prefix}dense")
        apart = [a - b for a, b in zip(losses, dense, strict=False)]
        print(
            f"{name:18} {statistics.mean(losses):.4f}  {min(losses):.4f} to {max(losses):.4f}  "
            f"above dense {statistics.mean(apart):+.4f}  {min(apart):+.4f} to {max(apart):+.4f}"
        )


def draw(results: dict[str, Result], steps: int, picture: Path) -> None:
    """Loss over FLOPs on the left, what is left of the distance from dense on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2))
    for name, color in MARKS.items():
        curves = [each for key, each in results.items() if key.rpartition("-")[0] == name]
        if not curves:
            continue
        losses = torch.tensor([each.losses for each in curves])
        at = torch.tensor(curves[0].steps) * (steps / curves[0].steps[-1])
        left.plot(at, losses.mean(0), color=color, label=LABELS[name], linewidth=1.2)
        left.fill_between(at, losses.amin(0), losses.amax(0), color=color, alpha=0.2, linewidth=0)
    late = [each.losses[1] for each in results.values() if len(each.losses) > 1]
    left.set_ylim(top=max(late))
    left.set_xlabel("training step (Sparse-Wide: share of the dense run's FLOPs)")
    left.set_ylabel("held-out loss")
    left.legend(frameon=False, fontsize=8)
    names = [name for name in (*MARKS, TUNED) if name != "dense" and last_losses(results, name)]
    for row, name in enumerate(names):
        dense = last_losses(results, "fine-tuned-dense" if name == TUNED else "dense")
        apart = [a - b for a, b in zip(last_losses(results, name), dense, strict=False)]
        right.plot(apart, [row] * len(apart), "o", color=MARKS.get(name, "tab:red"), markersize=4)
    right.axvline(0, color="black", linewidth=0.8)
    right.set_yticks(range(len(names)), [LABELS[name] for name in names])
    right.set_xlabel("last held-out loss above the dense run's")
    right.invert_yaxis()
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    """Train what is missing, print the figures, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("sparse-shapes"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=MARKS, default=list(MARKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only-draw", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = arguments.folder.absolute()
    path = folder / f"results-{arguments.steps}.json"
    if not arguments.only_draw:
        measure(arguments, folder, path)
    results = read_results(path)
    print_table(results)
    if arguments.picture is not None:
        draw(results, arguments.steps, arguments.picture)


if __name__ == "__main__":
    main()
