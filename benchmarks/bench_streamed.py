"""Cycles of products whose weights stream in, by their share of zeros, beside the published model.

    python benchmarks/bench_streamed.py --picture docs/images/speedup-by-zeros-on-the-wafer.png

Weights are random, dealt sorted and unsorted, in folds of one row of PEs and two, by a port for
each fold and by one port. Cycles are those of the PEs' own clocks. The published model is
S(s) = (F k/R + 4) / (F k (1 - s)/R + 4) for F features, R rows of PEs and folds of k.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

from openwafer.sdk import kernels
from openwafer.sdk.kernels import StreamedPlan, Streaming

HEAD = (
    "| generation | precision | F k/R | fold, ports, dealt | zeros | cycles | plan | speed-up "
    "| published | ratio |\n|" + " --- |" * 10
)
ROWS = 4


@dataclass(frozen=True)
class Case:
    """What is multiplied, but for the share of zeros.

    Attributes:
        arch: the generation.
        precision: of the elements.
        streaming: folds, ports and dealing.
        of_row: features of a PE.
        tokens: of a PE.
    """

    arch: str
    precision: str
    streaming: Streaming
    of_row: int
    tokens: int

    def plan(self, share: float, num_outputs: int) -> StreamedPlan:
        """With random weights, of which all stream where there are no zeros."""
        fold = self.streaming.fold or 1
        rng = np.random.default_rng(1)
        shape = num_outputs, self.of_row * ROWS // fold
        w = rng.normal(size=shape).astype(np.float32)
        given = scipy.sparse.csr_array(w * (rng.random(shape) >= share)) if share else w
        options = {"arch": self.arch, "precision": self.precision}
        tokens = self.tokens * fold
        return kernels.plan_streamed(given, tokens, (ROWS, 1), **options, streaming=self.streaming)

    def speedups(
        self, shares: list[float], num_outputs: int
    ) -> Iterator[tuple[StreamedPlan, int, float]]:
        """Plan, cycles and speed-up of each share of zeros."""
        whole = 0
        for share in [0.0, *shares]:
            plan = self.plan(share, num_outputs)
            cycles = plan.forward(np.ones(plan.shape[1:], plan.precision.given)).cycles
            whole = whole or cycles
            yield plan, cycles, whole / cycles

    @property
    def ways(self) -> str:
        """How the weights come."""
        dealt = "sorted" if self.streaming.is_sorted else "unsorted"
        return f"{self.streaming.fold}, {self.streaming.num_ports}, {dealt}"


def streamings() -> Iterator[Streaming]:
    """With a port for each fold of rows, sorted and not, and with one port for all."""
    for fold in (1, 2):
        for is_sorted in (True, False):
            yield Streaming(fold, ROWS // fold, is_sorted)
        yield Streaming(fold, 1)


def table(features: int, tokens: int, num_outputs: int, shares: list[float]) -> None:
    """Print a line for each case and share."""
    print(HEAD)
    for arch in ("wse2", "wse3"):
        for precision in ("f32", "f16-f32"):
            for streaming in streamings():
                case = Case(arch, precision, streaming, features, tokens)
                found = case.speedups(shares, num_outputs)
                for share, (plan, cycles, speedup) in zip([0.0, *shares], found, strict=True):
                    published = plan.published_speedup
                    print(
                        f"| {arch} | {precision} | {features} | {case.ways} | {share:.1%} "
                        f"| {cycles:,} | {plan.cycles / cycles:.2f} | {speedup:.2f} "
                        f"| {published:.2f} | {speedup / published:.2f} |",
                        flush=True,
                    )


def picture(path: Path, features: list[int], tokens: int, num_outputs: int) -> None:
    """Speed-ups of two precisions over the share of zeros, with the published curves."""
    shares = [0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    lines = 1 - np.geomspace(1, 0.001, 200)
    for axis, precision in zip(axes, ("f16-f32", "f32"), strict=True):
        for number, of_row in enumerate(features):
            color = f"C{number}"
            axis.plot(1 - lines, (of_row + 4) / (of_row * (1 - lines) + 4), color=color, lw=1)
            for arch, marker in (("wse2", "o"), ("wse3", "s")):
                case = Case(arch, precision, Streaming(1, ROWS), of_row, tokens)
                found = [speedup for *_, speedup in case.speedups(shares, num_outputs)]
                label = f"{of_row} features a PE, {arch}"
                zeros = [1.0, *(1 - np.array(shares))]
                axis.plot(zeros, found, marker, color=color, ms=5, mfc="none", label=label)
        axis.set(xscale="log", yscale="log", title=precision, xlabel="share of weights that stream")
        axis.invert_xaxis()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("speed-up over all weights")
    axes[0].legend(fontsize=8)
    figure.suptitle("Simulated (marks) and published (lines): S(s) = (f + 4) / (f (1 - s) + 4)")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--features", type=int, nargs="+", default=[32, 128, 320])
    parser.add_argument("--tokens", type=int, default=32, help="of a PE")
    parser.add_argument("--outputs", type=int, default=32)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.9, 0.95, 0.99])
    parser.add_argument("--picture", type=Path, help="draw it in the place of the table")
    given = parser.parse_args()
    if given.picture:
        picture(given.picture, given.features, given.tokens, given.outputs)
    else:
        for features in given.features:
            table(features, given.tokens, given.outputs, given.shares)


if __name__ == "__main__":
    main()
