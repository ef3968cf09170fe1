"""Cycles of single kernels beside their plans and published formulas, as a picture.

    python benchmarks/kernel_pictures.py --picture docs/images/kernels.png

Lines are plans and published formulas, marks are runs on the simulated WSE-2, in f32.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from openwafer.sdk import kernels
from openwafer.sdk.kernels import Shape, Tree

WSE2 = "wse2"


def sums_along_a_line(axis: Axes, num_pes: int, run_lengths: list[int]) -> None:
    """Each tree of the published model, by the number of words."""
    lengths = [2**power for power in range(11)]
    group = max(2, round(num_pes**0.5))
    trees = [*map(Tree, (Shape.STAR, Shape.CHAIN, Shape.TREE)), Tree(Shape.TWO_PHASE, group)]
    for number, tree in enumerate(trees):
        plans = {
            length: kernels.plan_collective("reduce", (num_pes, 1), length, arch=WSE2, tree=tree)
            for length in {*lengths, *run_lengths}
        }
        planned = [plans[length].cycles for length in lengths]
        axis.plot(lengths, planned, color=f"C{number}", lw=1, label=str(tree.shape))
        values = [np.ones((num_pes, 1, length), np.float32) for length in run_lengths]
        runs = [plans[of.shape[2]].run(of).cycles for of in values]
        axis.plot(run_lengths, runs, "o", color=f"C{number}", mfc="none", ms=5)
    axis.set(xscale="log", yscale="log", title=f"sum along {num_pes} PEs", xlabel="words")


def products(axis: Axes, run_tiles: list[int]) -> None:
    """Share of the peak of products, by the tile of a PE."""
    for number, width in enumerate((4, 64, 720)):
        shares = []
        tiles = list(range(4, 49, 4))
        for tile in tiles:
            n = width * tile
            plan = kernels.plan_gemm((n, n, n), (width, width), arch=WSE2)
            shares.append(plan.share_of_peak)
        label = f"{width} x {width} PEs"
        axis.plot(tiles, shares, color=f"C{number}", lw=1, label=label)
    found = []
    for tile in run_tiles:
        plan = kernels.plan_gemm((4 * tile,) * 3, (4, 4), arch=WSE2)
        ones = np.ones((4 * tile,) * 2, np.float32)
        peak = plan.num_panels * plan.product.peak_cycles(plan.arch)
        found.append(peak / plan.run(ones, ones).cycles)
    axis.plot(run_tiles, found, "o", color="C0", mfc="none", ms=5)
    axis.set(ylim=(0, 1), title="matrix times matrix", xlabel="rows of a PE's tile")
    axis.set_ylabel("share of the peak")


def transforms(axis: Axes, run_lengths: list[int]) -> None:
    """Passes and transpositions of a pencil on each PE, with the published formulas."""
    lengths = np.array([4, 8, 16, 32, 64, 128])
    plans = [kernels.plan_fft(int(n), 3, (int(n), int(n)), arch=WSE2) for n in lengths]
    levels = np.log2(lengths)
    axis.plot(lengths, [plan.pass_cycles for plan in plans], color="C0", lw=1, label="pass")
    turned = [plan.transposition_cycles(0) for plan in plans]
    axis.plot(lengths, turned, color="C1", lw=1, label="transposition")
    published = 6.5 * lengths * levels + 64 * lengths + 36 * levels, lengths**2 + 27 * lengths
    for number, values in enumerate(published):
        axis.plot(lengths, values, "--", color=f"C{number}", lw=1, label="published")
    for n, (passed, exchanged) in zip(run_lengths, measured(run_lengths), strict=True):
        axis.plot([n], [passed], "o", color="C0", mfc="none", ms=5)
        axis.plot([n], [exchanged], "o", color="C1", mfc="none", ms=5)
    axis.set(xscale="log", yscale="log", title="Fourier transform", xlabel="numbers of a pencil")


def measured(lengths: list[int]) -> Iterator[tuple[float, float]]:
    """Cycles of a pass and of a transposition along rows, of runs in one and in two dims."""
    for n in lengths:
        one, two = (kernels.plan_fft(n, dims, (n, n), arch=WSE2) for dims in (1, 2))
        alone, both = (
            plan.run(np.ones((1, *plan.num_dims * [n]), np.complex64)).cycles for plan in (one, two)
        )
        passed = alone - (one.cycles - one.pass_cycles)
        yield passed, (both - alone - passed) / 2


def on_a_whole_wafer(axis: Axes) -> None:
    """Plans for 750 x 994 PEs, by what lies on a PE, with the bound of their operations."""
    size = (994, 750)
    edges = list(range(8, 97, 8))
    gemv = [kernels.plan_gemv((994 * n, 750 * n), size, arch=WSE2).cycles for n in edges]
    axis.plot([n * n for n in edges], gemv, color="C0", lw=1, label="matrix times vector")
    words = [2**power for power in range(13)]
    for number, what in enumerate(("reduce", "all-reduce", "broadcast"), 1):
        plans = [kernels.plan_collective(what, size, length, arch=WSE2) for length in words]
        cycles = [plan.cycles for plan in plans]
        axis.plot(words, cycles, color=f"C{number}", lw=1, label=what)
    axis.plot(words, words, "k--", lw=1, label="one a cycle")
    axis.set(xscale="log", yscale="log", title="750 x 994 PEs", xlabel="numbers of a PE")


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--pes", type=int, default=32, help="of the line")
    parser.add_argument("--lengths", type=int, nargs="*", default=[4, 64, 512])
    parser.add_argument("--tiles", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--pencils", type=int, nargs="*", default=[4, 8, 16])
    given = parser.parse_args()
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    sums_along_a_line(axes[0, 0], given.pes, given.lengths)
    products(axes[0, 1], given.tiles)
    transforms(axes[1, 0], given.pencils)
    on_a_whole_wafer(axes[1, 1])
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in (axes[0, 0], axes[1, 0], axes[1, 1]):
        axis.set_ylabel("cycles")
    figure.savefig(given.picture, dpi=100)


if __name__ == "__main__":
    main()
