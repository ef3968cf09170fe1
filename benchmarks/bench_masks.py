"""Seconds of deciding a mask, beside a stable sort of the same weight.

A sort is what each decision would cost in the plainest way. Every figure is the median of some
rounds, in which all are measured in turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from openwafer.training.sparsity.masks.algorithms import SET, RigL, updated
from openwafer.training.sparsity.masks.one_shot import (
    checkerboard_mask,
    magnitude_mask,
    random_mask,
)
from openwafer.training.sparsity.masks.schedules import Constant, EverySteps, Target
from openwafer.training.sparsity.masks.structures import Blocks, NOfM

SPARSITY = 0.9


def decisions(size: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name, on a weight of `size` by `size`."""
    shape = (size, size)
    mask = random_mask(shape, SPARSITY, "w", 1)
    weights, gradient = torch.randn(shape) * mask, torch.randn(shape)
    target = Target(Constant(SPARSITY), EverySteps(1))
    rigl, evolving = RigL(target, Constant(0.3)), SET(target, Constant(0.3), 1)
    candidates = rigl.candidates(1, gradient, mask)
    return {
        "stable sort": lambda: gradient.flatten().sort(stable=True),
        "random": lambda: random_mask(shape, SPARSITY, "w", 1),
        "topk": lambda: magnitude_mask(gradient, SPARSITY, "w"),
        "topk 2:4": lambda: magnitude_mask(gradient, 0.5, "w", NOfM(2, 4)),
        "topk 4x4": lambda: magnitude_mask(gradient, SPARSITY, "w", Blocks(4, 4)),
        "checkerboard": lambda: checkerboard_mask(shape, SPARSITY, "w"),
        "RigL, candidates": lambda: rigl.candidates(1, gradient, mask),
        "RigL, update": lambda: updated(rigl, 1, "w", weights, mask, candidates),
        "SET, update": lambda: updated(evolving, 1, "w", weights, mask),
    }


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    runs = decisions(arguments.size)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    for name, found in taken.items():
        print(f"{name:18} {statistics.median(found):7.3f} s  {min(found):7.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
