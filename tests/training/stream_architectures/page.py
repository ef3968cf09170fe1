"""The page of the guide that lists what is trained in every test run, and what by the slow one."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from openwafer.training.plan_record import Activations
from tests.training.architectures import ARCHITECTURES, BY_DEFAULT, Architecture

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "architectures.md"
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
HEAD = """# Architectures

Each row is a tiny configuration of an architecture of the transformers library. Tests train it with
AdamW on the CPU, once in the plain PyTorch loop and once streamed; all parameters and buffers must
then be equal in every bit. `make test-slow` trains each row for {num_steps} steps in fp32, under
bf16 autocast and under fp16 autocast, with activations kept, recomputed and offloaded. `make test`
trains {num_default} of them for {num_default_steps} step in the way that the last column names.
Two micro-batches make a step, or by default one, unless what the model does depends on what it did
before: layers that are skipped and running statistics. An architecture whose forward
writes to its own weights is refused where it would be streamed. I-BERT is not trained under fp16:
its own check for NaN fails on the random weights on which a plan is made.

| architecture | class | in every test run |
|---|---|---|
"""
NUM_STEPS, NUM_DEFAULT_STEPS = 20, 1


class Cell(NamedTuple):
    """A way to train a row."""

    precision: str
    policy: Activations


def default_cells() -> dict[str, Cell]:
    """By row, the way in which it is trained by default; all ways come in turn."""
    names = [row.name for row in ARCHITECTURES if row.name in BY_DEFAULT]
    cells = [Cell(*cell) for cell in product(PRECISIONS, Activations)]
    return {name: cells[index % len(cells)] for index, name in enumerate(names)}


def num_default_micro_batches(row: Architecture) -> int:
    """Several where what a forward does depends on those before it: see :data:`HEAD`."""
    return 2 if row.name == "resnet" or "layerdrop" in row.name else 1


def page() -> str:
    """The page's text."""
    cells = default_cells()
    head = HEAD.format(
        num_steps=NUM_STEPS, num_default=len(cells), num_default_steps=NUM_DEFAULT_STEPS
    )
    rows = []
    for row in ARCHITECTURES:
        cell = cells.get(row.name)
        shown = "" if cell is None else f"{cell.precision}, {cell.policy}"
        if row.writes_weights:
            shown = "refused: writes to weights"
        rows.append(f"| {row.name} | {row.model_class} | {shown} |\n")
    return head + "".join(rows)
