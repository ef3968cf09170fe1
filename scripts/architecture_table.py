"""Compares every architecture streamed and plain, and writes docs/guide/architectures.md."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from openwafer import atomic_file  # noqa: E402
from openwafer.training.stream.execute.activations import Activations  # noqa: E402
from tests.training.architectures import ARCHITECTURES, Architecture  # noqa: E402
from tests.training.stream_architectures.parity import compare, micro_batches  # noqa: E402

HEAD = """# Architectures

Each row trains a tiny configuration of an architecture of the transformers library for 20
AdamW steps on the CPU in fp32, once in the plain PyTorch loop and once streamed, and compares all
parameters and buffers. The number is how many of them differ in any bit, under each policy for
activations. Weights tied between layers are trained with one micro-batch, because with several
their gradient is summed layer by layer instead of micro-batch by micro-batch; so are models whose
forward keeps running statistics. `python scripts/architecture_table.py` writes this page.

| architecture | class | streamed layers | micro-batches | keep | recompute | offload |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    rows = [row for architecture in ARCHITECTURES for row in _row(architecture)]
    page = ROOT / "docs" / "guide" / "architectures.md"
    atomic_file.write_text(page, HEAD + "\n".join(rows) + "\n")


def _row(architecture: Architecture) -> Iterator[str]:
    count = micro_batches(architecture)
    results = [compare(architecture, policy, count) for policy in Activations]
    differing = " | ".join(str(result.num_differing) for result in results)
    name, kind = architecture.name, architecture.model_class
    print(name, differing, flush=True)
    yield f"| {name} | {kind} | {results[0].num_layers} | {count} | {differing} |"


if __name__ == "__main__":
    main()
