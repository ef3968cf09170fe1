"""How large the training wing is, and how much of it a step goes through: files, functions, moves.

What a reader has to follow, counted on the thread that calls. A tiny GPT trains on made text in
three ways: a run on disk, an own loop, and a run on two systems. A walk is what happens from one
forward of the model to its next; `open` is what happens before the first. The trunk is what is
neither a method nor used by methods alone.

    python benchmarks/walks.py [--names]

With `--names`, it prints the files of each walk, and how many calls each had.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import yaml
from torch import Tensor, nn

import openwafer
from openwafer.cli import main as openwafer_main
from openwafer.training.models import GptConfig, build
from openwafer.training.models.build import with_vocab_size

TINY: Final = GptConfig(hidden_size=16, num_layers=2, num_heads=2, mlp_size=24, context_length=16)
WING: Final = str(Path(openwafer.__file__).parent / "training")
METHODS: Final = ("methods", "sparsity", "parametrization", "noise_scale", "sweep")
"""Folders of the wing beside its trunk."""
STEADY: Final = 3
"""The first two steps measure themselves."""
NUM_STEPS: Final = 5


@dataclass
class Walk:
    """Calls of the training wing."""

    calls: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)
    moves: int = 0
    last: str = ""

    def enter(self, frame: FrameType) -> None:
        """Note a call."""
        file = frame.f_code.co_filename
        if not file.startswith(WING) or not frame.f_code.co_flags & CO_OPTIMIZED:
            return  # Bodies of modules and classes are no functions.
        self.calls[file] += 1
        self.functions.add(f"{file}:{frame.f_code.co_qualname}")
        self.moves += file != self.last
        self.last = file

    def row(self) -> Mapping[str, Any]:
        """What is told of it."""
        names = {str(Path(file).relative_to(WING)): n for file, n in self.calls.most_common()}
        return {
            "files": len(names),
            "functions": len(self.functions),
            "calls": sum(names.values()),
            "moves": self.moves,
            "names": names,
        }


class Walked(nn.Module):
    """A tiny GPT whose forwards begin walks."""

    def __init__(self, vocab_size: int = 300) -> None:
        super().__init__()
        self.gpt = build(with_vocab_size(TINY, vocab_size), seed=0)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        """Logits, and the loss of the next tokens where labels are given."""
        return self.gpt(input_ids=input_ids, labels=labels)


class Walks:
    """Watches a thread; a walk ends and the next begins where real tokens enter the model.

    Args:
        folder: where each walk is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count, self._walk = folder, 0, Walk()

    def watch(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; a profile function."""
        if event != "call":
            return
        if frame.f_code.co_name == "forward" and frame.f_code.co_filename == __file__:
            if type(frame.f_locals["input_ids"]) is Tensor:
                self.end()
        else:
            self._walk.enter(frame)

    def end(self) -> None:
        """Write a walk, and begin the next."""
        rank = os.environ.get("RANK", "0")
        row = json.dumps(self._walk.row())
        (self._folder / f"{rank}-{self._count}.json").write_text(row)
        self._count, self._walk = self._count + 1, Walk()


def run_walks(folder: Path, *, systems: int) -> Mapping[str, Mapping[str, Any]]:
    """Of a run on disk that clips."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    (texts / "text.txt").write_text(" ".join(f"{n} squared is {n * n};" for n in range(4000)))
    config = {
        "steps": NUM_STEPS,
        "folder": str(folder),
        "name": "run",
        "systems": systems,
        "model": {"kind": "module", "factory": "walks:Walked", "kwargs": {"vocab_size": 300}},
        "data": {
            "source": {"kind": "text", "paths": [str(texts)]},
            "tokenizer": {"vocab_size": 300},
        },
        "batch": {"size": 4, "sequence_length": 12, "micro_batches": systems},
        "streaming": {"device": "cpu", "store": "disk", "mode": "streamed"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    found = walked(folder / "walks", "run", str(folder / "config.yaml"))
    if systems > 1:
        return {"two systems, the first": found[f"0-{STEADY}"], "the second": found[f"1-{STEADY}"]}
    return {"open": found["0-0"], "run, a step": found[f"0-{STEADY}"]}


def loop_walks(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Of an own loop that clips."""
    found = walked(folder / "walks", "loop")
    return {"own loop, a step": found[f"0-{STEADY}"]}


def walked(folder: Path, *what: str) -> Mapping[str, Mapping[str, Any]]:
    """The walks of a process of its own, and of those that it starts, by rank and number."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, __file__, "--folder", str(folder), "--walk", *what]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {one.stem: json.loads(one.read_text()) for one in folder.glob("*.json")}


def train_run(config: str) -> None:
    """A run, as its command makes it."""
    sys.argv = ["openwafer", "train", config]
    openwafer_main()


def train_loop() -> None:
    """An own loop."""
    model: Any = Walked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    openwafer.stream_weights(model, optimizer, device_memory="300kB")
    tokens = torch.arange(48).reshape(4, 12)
    for _ in range(NUM_STEPS):
        model(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def print_sizes() -> None:
    """Print a table of the lines and files of each folder of the wing."""
    sizes: dict[str, Counter[str]] = {}
    for file in sorted(Path(WING).rglob("*.py")):
        folder, *inside = file.relative_to(WING).parts
        num_lines = len(file.read_text(encoding="utf-8").splitlines())
        of_trunk = [] if folder in METHODS else ["trunk"]
        for name in (folder if inside else "door", *of_trunk, "wing"):
            sizes.setdefault(name, Counter()).update(lines=num_lines, files=1)
    print("| part | lines | files |\n|---|---|---|")
    for name, size in sorted(sizes.items(), key=lambda one: one[1]["lines"]):
        print(f"| {name} | {size['lines']} | {size['files']} |")


def main() -> None:
    """Print tables of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--walk", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.walk:
        sys.setprofile(Walks(asked.folder).watch)
        way, *config = asked.walk
        if way == "run":
            train_run(*config)
        else:
            train_loop()
        return
    print_sizes()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            **run_walks(Path(folder, "one"), systems=1),
            **loop_walks(Path(folder, "loop")),
            **run_walks(Path(folder, "two"), systems=2),
        }
    print("\n| walk | files | functions | calls | moves |")
    print("|---|---|---|---|---|")
    for name, row in found.items():
        print(f"| {name} | {row['files']} | {row['functions']} | {row['calls']} | {row['moves']} |")
    if asked.names:
        print(json.dumps({name: row["names"] for name, row in found.items()}, indent=1))


if __name__ == "__main__":
    main()
