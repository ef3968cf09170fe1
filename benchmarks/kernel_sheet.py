"""Every kernel on a small rectangle: where its PEs' cycles went, as pictures and as a table.

    python benchmarks/kernel_sheet.py --picture docs/images/kernel-sheet.png

A square shows each PE's share of the kernel's cycles in which its datapath had a beat, and the bar
below it what the cycles of all PEs went to. The table has the
cycles beside the plan and beside what a PE's datapath must do at one a cycle, and the plan for a
whole wafer with as much on a PE. All are of WSE-2 in f32.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
from bench_kernels import STAR
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from openwafer.cli.wafer_demos.shown import by_the_clock
from openwafer.sdk import kernels
from openwafer.sdk.fabric import Account, SlotState

ARCH = "wse2"
WHOLE = (994, 750)
SEVEN = kernels.Stencil({(0, 0, 0): 7.0} | dict.fromkeys(STAR, -1.0))
STEPS = 10
Size = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """A kernel with a load of each PE.

    Attributes:
        name: of it.
        load: of a PE, in words.
        bound: cycles of a PE's operations and words, one a cycle; 0 where none is counted.
        plan: for a rectangle of PEs.
        run: with drawn operands, what the plan is for.
        whole: the rectangle of a wafer; None where a plan wants operands of that size.
    """

    name: str
    load: str
    bound: int
    plan: Callable[[Size], Any]
    run: Callable[[Any, np.random.Generator], Any]
    whole: Size | None = WHOLE

    def planned(self, size: Size) -> int:
        """Cycles of the plan."""
        plan = self.plan(size)
        return int(plan.cycles(STEPS) if callable(plan.cycles) else plan.cycles)


def f32(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Normal numbers."""
    return rng.normal(size=shape).astype(np.float32)


def vector(operation: str, bound: int) -> Case:
    """On 500 elements of each PE."""

    def plan(size: Size) -> Any:
        return kernels.plan_vector(operation, 500 * size[0] * size[1], size, arch=ARCH)

    def run(of: Any, rng: np.random.Generator) -> Any:
        x, y = f32(rng, 2, of.length)
        return of.run(x) if operation == "nrm2" else of.run(x, y)

    return Case(operation, "500", bound, plan, run)


def collective(what: str, length: int) -> Case:
    """Of a message of so many words."""

    def plan(size: Size) -> Any:
        return kernels.plan_collective(what, size, length, arch=ARCH)

    def run(of: Any, rng: np.random.Generator) -> Any:
        shape = (of.rows, of.columns) if of.collective.has_sum else ()
        return of.run(f32(rng, *shape, length))

    return Case(what, f"{length}", length, plan, run)


def moved(name: str, *, is_scatter: bool) -> Case:
    """16 words of each PE to one, or from it."""

    def plan(size: Size) -> Any:
        return kernels.plan_gather(size, 16, is_scatter=is_scatter, arch=ARCH)

    def run(of: Any, rng: np.random.Generator) -> Any:
        return of.run(f32(rng, of.rows, of.columns, 16))

    # The PE that all words come to, or go from.
    return Case(name, "16", 16 * (NUM_PES - 1), plan, run, None)


def factors(name: str, share: float) -> Case:
    """Of a matrix with tiles of 8 x 8."""

    def plan(size: Size) -> Any:
        return kernels.plan_factorization(name, 8 * size[0], size, arch=ARCH)

    def run(of: Any, rng: np.random.Generator) -> Any:
        half = np.tril(rng.uniform(0.1, 1, (of.order, of.order))) + of.order * np.eye(of.order)
        return of.run((half @ half.T).astype(np.float32))

    n = 8 * SIDE
    return Case(name, "8 x 8", round(share * n**3 / NUM_PES), plan, run, (750, 750))


def solver(name: str, of_cell: int) -> Case:
    """Ten iterations for a stencil of 7 points on 16 cells of each PE."""

    def plan(size: Size) -> Any:
        return kernels.plan_solver(name, (*size, 16), STEPS, arch=ARCH)

    def run(of: Any, rng: np.random.Generator) -> Any:
        return of.run(SEVEN, f32(rng, *of.shape))

    return Case(name, f"16 cells, {STEPS} iterations", 16 * of_cell * STEPS, plan, run)


def sparse(rng: np.random.Generator, size: Size) -> scipy.sparse.csr_array:
    """64 non-zeros for each PE."""
    shape = (32 * size[0], 32 * size[1])
    chosen = rng.choice(shape[0] * shape[1], 64 * size[0] * size[1], replace=False)
    places = np.unravel_index(chosen, shape)
    return scipy.sparse.coo_array((f32(rng, len(chosen)), places), shape).tocsr()


def smooth(size: Size) -> kernels.LowRankTiles:
    """Of low rank away from the diagonal, a tile of 32 x 32 on each PE."""
    down, along = np.arange(32 * size[0]), np.arange(32 * size[1])
    return kernels.compress(1 / (1 + np.abs(down[:, None] - along)), (32, 32), 1e-4)


SIDE = 8
NUM_PES = SIDE**2
TOKENS = (32, 64)
DRAWN = np.random.default_rng(0)
SPARSE = sparse(DRAWN, (SIDE, SIDE))
WEIGHTS = np.where(DRAWN.random((64, 64)) < 0.1, DRAWN.normal(size=(64, 64)), 0).astype(np.float32)
TILES = smooth((SIDE, SIDE))
CASES = (
    vector("axpy", 500),
    vector("dot", 500),
    vector("nrm2", 500),
    Case(
        "gemv",
        "32 x 32",
        32 * 32,
        lambda size: kernels.plan_gemv((32 * size[0], 32 * size[1]), size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, *of.shape), f32(rng, of.shape[1])),
    ),
    Case(
        "gemm",
        "24 x 24",
        24**3 * SIDE,
        lambda size: kernels.plan_gemm((24 * size[0],) * 3, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, *of.shape[:2]), f32(rng, *of.shape[1:])),
        (744, 744),
    ),
    Case(
        "batched_gemm",
        "4 of 12 x 12 x 12",
        4 * 12**3,
        lambda size: kernels.plan_batched_gemm(
            4 * size[0] * size[1], (12, 12, 12), size, arch=ARCH
        ),
        lambda of, rng: of.run(
            f32(rng, of.num_products, 12, 12), f32(rng, of.num_products, 12, 12)
        ),
    ),
    Case(
        "transpose",
        "24 x 24",
        24 * 24,
        lambda size: kernels.plan_transpose((24 * size[0], 24 * size[1]), size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, *of.shape)),
        (750, 750),
    ),
    Case(
        "trsm",
        "8 x 8 of L",
        64 * 64 * 64 // 2 // NUM_PES,
        lambda size: kernels.plan_triangular(8 * size[0], 8 * size[1], size, arch=ARCH),
        lambda of, rng: of.run(
            np.tril(f32(rng, of.order, of.order)) + 9 * np.eye(of.order, dtype=np.float32),
            f32(rng, of.order, of.num_columns),
        ),
    ),
    factors("cholesky", 1 / 6),
    factors("lu", 1 / 3),
    Case(
        "spmv",
        "64 non-zeros",
        64,
        lambda size: kernels.plan_spmv(SPARSE, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.shape[1])),
        None,
    ),
    Case(
        "spmm",
        "64 non-zeros, 4 columns",
        256,
        lambda size: kernels.plan_spmv(SPARSE, size, num_vectors=4, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.shape[1], 4)),
        None,
    ),
    Case(
        "sddmm",
        "64 non-zeros, rows of 16",
        1024,
        lambda size: kernels.plan_sddmm(SPARSE, 16, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.shape[0], 16), f32(rng, 16, of.shape[1])),
        None,
    ),
    Case(
        "streamed_gemm",
        "8 features, 32 tokens",
        int(np.count_nonzero(WEIGHTS)) // SIDE * 32,
        lambda size: kernels.plan_streamed(
            scipy.sparse.csr_array(WEIGHTS), 32 * size[1], size, arch=ARCH
        ),
        lambda of, rng: of.forward(f32(rng, *of.shape[1:])),
        None,
    ),
    Case(
        "tlr_mvm",
        "a tile of 32 x 32",
        64 * int(TILES.ranks.max()),
        lambda size: kernels.plan_tlr_mvm(TILES, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.a.shape[1])),
        None,
    ),
    collective("broadcast", 256),
    collective("reduce", 64),
    collective("all-reduce", 64),
    moved("gather", is_scatter=False),
    moved("scatter", is_scatter=True),
    Case(
        "scan",
        "256",
        256,
        lambda size: kernels.plan_scan(256 * size[0] * size[1], size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.length)),
    ),
    Case(
        "sort",
        "16",
        160,
        lambda size: kernels.plan_sort(16 * size[0] * size[1], size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, of.length)),
    ),
    Case(
        "histogram",
        "100, of 64 bins",
        300,
        lambda size: kernels.plan_histogram(100 * NUM_PES, 64, (-4, 4), size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, 100 * NUM_PES)),
        None,
    ),
    Case(
        "fft",
        "2 x 2 pencils of 16, 3 dims",
        3 * 4 * 5 * 16 * 4,
        lambda size: kernels.plan_fft(2 * size[0], 3, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, 1, 16, 16, 16).astype(np.complex64)),
        None,
    ),
    Case(
        "stencil",
        f"32 cells, 7 points, {STEPS} steps",
        11 * 32 * STEPS,
        lambda size: kernels.plan_stencil(SEVEN, (*size, 32), arch=ARCH),
        lambda of, rng: of.run(f32(rng, *of.shape), STEPS),
    ),
    solver("conjugate-gradients", 16),
    solver("bicgstab", 33),
    solver("power", 13),
    Case(
        "layer_norm",
        "4 features, 8 tokens",
        0,
        lambda size: kernels.plan_norm("layer", TOKENS, size, arch=ARCH),
        lambda of, rng: of.forward(f32(rng, *TOKENS), f32(rng, 32), f32(rng, 32)),
        None,
    ),
    Case(
        "gelu",
        "4 features, 8 tokens",
        0,
        lambda size: kernels.plan_activation("gelu", TOKENS, size, arch=ARCH),
        lambda of, rng: of.forward(f32(rng, *TOKENS)),
        None,
    ),
    Case(
        "attention",
        "4 features, 8 tokens, 4 heads",
        0,
        lambda size: kernels.plan_attention(TOKENS, 4, size, arch=ARCH),
        lambda of, rng: of.forward(*(f32(rng, *TOKENS) for _ in range(3))),
        None,
    ),
    Case(
        "cross_entropy",
        "4 classes, 8 tokens",
        0,
        lambda size: kernels.plan_cross_entropy(TOKENS, size, arch=ARCH),
        lambda of, rng: of.run(f32(rng, *TOKENS), rng.integers(0, 32, TOKENS[1])),
        None,
    ),
    Case(
        "embedding",
        "4 features, 8 tokens",
        0,
        lambda size: kernels.plan_embedding(40, TOKENS, size, arch=ARCH),
        lambda of, rng: of.forward(f32(rng, 40, 32), rng.integers(0, 40, TOKENS[1])),
        None,
    ),
)
SPENT = {
    "beat of an operation": ("#2a6f97", (SlotState.BEAT,)),
    "between beats": ("#89c2d9", (SlotState.PAUSE, SlotState.TURN, SlotState.LOST_BEAT)),
    "scalar code": ("#f4a259", (SlotState.SCALAR, SlotState.SWITCH, SlotState.DRAIN)),
}
WAITS = ("waiting", "#d9d9d9")


def spent(account: Account, cycles: int) -> dict[str, float]:
    """Shares of the kernel's cycles of all PEs, and what is left: waiting for others."""
    main, beats = account.main.cycles, account.main.beats
    found = {"beat of an operation": float(beats.mean())}
    for name, (_, states) in list(SPENT.items())[1:]:
        found[name] = float(main[:, states].sum(1).mean())
    # Scalar code runs beside beats of microthreads, so there may be more than there are cycles.
    total = max(cycles, sum(found.values()))
    shares = {name: one / total for name, one in found.items()}
    return shares | {WAITS[0]: 1 - sum(shares.values())}


def draw(square: Axes, bar: Axes, case: Case, run: tuple[int, Account]) -> None:
    """A kernel: beats of each PE, and where all cycles went."""
    cycles, account = run
    beats = account.main.beats.reshape(-1, account.height).T / cycles
    square.imshow(beats, vmin=0, vmax=1, cmap="viridis")
    square.set(xticks=[], yticks=[])
    load = fill(case.load, 20)
    square.set_title(f"{case.name}\n{load}\n{cycles:,} cycles", fontsize=8)
    left = 0.0
    for name, share in spent(account, cycles).items():
        color = dict([WAITS]).get(name) or SPENT[name][0]
        bar.barh(0, share, left=left, color=color, label=name)
        left += share
    bar.set(xlim=(0, 1), xticks=[], yticks=[])


def measured(case: Case) -> tuple[int, Account]:
    """Cycles of a run, and where they went."""
    with kernels.profiled() as runs:
        plan = case.plan((SIDE, SIDE))
        cycles = case.run(plan, np.random.default_rng(1)).cycles
    return cycles, runs[-1].account()


def row(case: Case, cycles: int) -> str:
    """Of the table."""
    planned = case.planned((SIDE, SIDE))
    bound = f"{case.bound:,} | {case.bound / cycles:.0%}" if case.bound else " | "
    whole = " | "
    if case.whole:
        predicted = case.planned(case.whole)
        whole = f"{predicted:,} | {by_the_clock(predicted, ARCH)}"
    return f"| `{case.name}` | {case.load} | {cycles:,} | {planned:,} | {bound} | {whole} |"


def main() -> None:
    """Run all of them, print the table and draw the sheet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--picture", type=Path, required=True)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    given = parser.parse_args()
    chosen = [case for case in CASES if case.name in given.only]
    columns = min(7, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = plt.figure(figsize=(1.75 * columns, 2.55 * rows + 0.4), layout="constrained")
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[10, 1] * rows)
    print("| kernel | on a PE | cycles | plan | bound | share | whole wafer, plan | by the clock |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for number, case in enumerate(chosen):
        run = measured(case)
        print(row(case, run[0]), flush=True)
        y, x = divmod(number, columns)
        bar = figure.add_subplot(grid[2 * y + 1, x])
        draw(figure.add_subplot(grid[2 * y, x]), bar, case, run)
    scale = ScalarMappable(Normalize(0, 100), "viridis")
    figure.colorbar(scale, ax=figure.axes, label="% of cycles with a beat", shrink=0.4, aspect=40)
    figure.legend(*bar.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(given.picture, dpi=110)


if __name__ == "__main__":
    main()
