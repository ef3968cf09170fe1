"""Cycles of kernels beside their plans, published models and the datapath's peak.

    python benchmarks/bench_kernels.py --collectives 16 64 --gemm 4 8

Lines of PEs are columns, which the host starts at the same cycle. With ``--suite``, a clone of
Cerebras/csl-examples, the official examples and ours run from the launch to rest; a further example
is a function that yields its row and ours, called by ``official_rows``. Other cycles are those of
the PEs' own clocks, from the first start to the last end.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.wafer_demos.wave import cycles_of_a_step
from openwafer.sdk import kernels
from openwafer.sdk.door.compiled import Compiled
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels import Shape, Tree
from openwafer.sdk.kernels.products import Product
from openwafer.sdk.kernels.running import compiled

STAR = [tuple(way * np.eye(3, dtype=int)[axis]) for axis in range(3) for way in (-1, 1)]
"""The neighbours of a stencil of 7 points."""
HEAD = "| kernel | generation | size | cycles | plan | ratio | share of peak |\n|" + " --- |" * 7


def row(name: str, arch: str, size: str, cycles: int, planned: int, peak: float = 0) -> str:
    """A line of the table."""
    share = f"{peak / cycles:.0%}" if peak else ""
    figures = f"{cycles:,} | {planned:,} | {cycles / planned:.2f} | {share}"
    return f"| {name} | {arch} | {size} | {figures} |"


def collective_rows(num_pes: int, lengths: list[int]) -> Iterator[str]:
    """Sums along a column by each tree, and the sum for all by the best one."""
    group = max(2, round(num_pes**0.5))
    trees = [*map(Tree, list(Shape)[:3]), Tree(Shape.TWO_PHASE, group), None]
    for arch in ("wse2", "wse3"):
        for length in lengths:
            for tree in trees:
                what = "reduce" if tree else "all-reduce"
                size = (num_pes, 1)
                plan = kernels.plan_collective(what, size, length, arch=arch, tree=tree)
                cycles = plan.run(np.ones((*size, length), np.float32)).cycles
                name = f"{what}, {plan.column_tree.shape if plan.column_tree else ''}"
                yield row(name, arch, f"{num_pes} PEs, {length} f32", cycles, plan.cycles)


def product_rows(num_pes: int, tile: int) -> Iterator[str]:
    """Products on squares of PEs with large tiles."""
    for arch in ("wse2", "wse3"):
        for precision in kernels.Precision:
            size, n = (num_pes, num_pes), num_pes * tile
            values = np.ones((n, n), precision.given)
            gemv = kernels.plan_gemv((n, n), size, arch=arch, precision=precision)
            cycles = gemv.run(values, values[0]).cycles
            text = f"{n} x {n} {precision} on {num_pes} x {num_pes} PEs"
            yield row("gemv", arch, text, cycles, gemv.cycles, gemv.product.peak_cycles(arch))
            gemm = kernels.plan_gemm((n, n, n), size, arch=arch, precision=precision)
            cycles = gemm.run(values, values).cycles
            peak = gemm.num_panels * gemm.product.peak_cycles(arch)
            yield row("gemm", arch, text, cycles, gemm.cycles, peak)


def mesh_rows(num_pes: int) -> Iterator[str]:
    """Shapes of arXiv 2502.04563 by plan, and tiles like theirs on a smaller square, run."""
    rng, whole = np.random.default_rng(0), 720
    for precision in (kernels.Precision.F16, kernels.Precision.F32):
        for n in (2048, 4096, 8192, 16384, 32768):
            large = kernels.plan_gemm((n, n, n), (whole, whole), arch="wse2", precision=precision)
            text = f"{n} x {n} {precision} on {whole} x {whole} PEs"
            useful = Product(n, n, n, precision).peak_cycles("wse2") / whole**2
            yield f"| gemm | wse2 | {text} | | {large.cycles:,} | | {useful / large.cycles:.0%} |"
            size, m = (num_pes, num_pes), num_pes * max(large.tile)
            gemm = kernels.plan_gemm((m, m, m), size, arch="wse2", precision=precision)
            a, b = rng.standard_normal((2, m, m)).astype(precision.given)
            peak = gemm.num_panels * gemm.product.peak_cycles("wse2")
            text = f"{m} x {m} {precision} on {num_pes} x {num_pes} PEs"
            yield row("gemm", "wse2", text, gemm.run(a, b).cycles, gemm.cycles, peak)
        for n in (16384, 32768):
            across = kernels.plan_gemv((n, n), (whole, whole), arch="wse2", precision=precision)
            text = f"{n} x {n} {precision} on {whole} x {whole} PEs"
            yield f"| gemv | wse2 | {text} | | {across.cycles:,} | | |"
            m = num_pes * max(across.tile)
            gemv = kernels.plan_gemv((m, m), (num_pes, num_pes), arch="wse2", precision=precision)
            a = rng.standard_normal((m, m)).astype(precision.given)
            text = f"{m} x {m} {precision} on {num_pes} x {num_pes} PEs"
            yield row("gemv", "wse2", text, gemv.run(a, a[0]).cycles, gemv.cycles)


def official_rows(suite: Path) -> Iterator[str]:
    """From launch to rest by the fabric's clock, the same sizes: the official example, and ours.

    The official gemv takes x from one PE and gathers y on one; ours begins and ends with parts.
    """
    params = {"gemv": {"kernel_rows": 4, "kernel_cols": 4, "matrix_rows": 32, "matrix_cols": 16}}
    params["gemm"] = {"P": 4, "Mt": 14, "Kt": 14, "Nt": 14}
    plans = {
        "gemv": kernels.plan_gemv((32, 16), (4, 4)),
        "gemm": kernels.plan_gemm((56, 56, 56), (4, 4)),
    }
    for name, plan in plans.items():
        layout = suite / "benchmarks" / f"{name}-collectives_2d" / "layout.csl"
        official = wafer.compile(layout, arch="wse3", params=params[name])
        text = str(params[name])
        yield row(f"official {name}", "wse3", text, launched_cycles(official), plan.cycles)
        own = launched_cycles(compiled(name, plan.arch, plan.params))
        yield row(f"{name}, to rest", "wse3", text, own, plan.cycles)
    for n, num_pes, of_pe in ((64, 4, 4), (256, 8, 4), (1024, 8, 16)):
        yield from sparse_rows(suite, n, num_pes, of_pe)
    for num_pes, tile in ((10, 4), (4, 16)):
        yield from cholesky_rows(suite, num_pes, tile)
    for method in SOLVERS:
        yield from solver_rows(suite, method, (5, 5, 5))
    for depth in (10, 100):
        yield from stencil_rows(suite, depth)
    for num_dims in (1, 2):
        yield from fft_rows(suite, 8 * num_dims, num_dims)


def cholesky_rows(suite: Path, num_pes: int, tile: int) -> Iterator[str]:
    """A positive definite matrix on a square of PEs of WSE-2, the official one on half of it."""
    n = num_pes * tile
    half = np.tril(np.random.default_rng(0).uniform(0.1, 1, (n, n))) + n * np.eye(n)
    a = (half @ half.T).astype(np.float32)
    plan = kernels.plan_factorization("cholesky", n, (num_pes, num_pes), arch="wse2")
    layout = suite / "benchmarks" / "cholesky" / "layout.csl"
    params = {"P": num_pes, "Nt": tile}
    tiles = a.reshape(num_pes, tile, num_pes, tile).swapaxes(1, 2).reshape(num_pes, num_pes, -1)
    text = f"{n} x {n} on {num_pes} x {num_pes} PEs"
    with wafer.compile(layout, arch="wse2", params=params).run() as run:
        for y, x in zip(*np.tril_indices(num_pes), strict=True):
            run["tile", y, x] = tiles[y, x]
        cycles = cycles_to_rest(run, "f_chol")
        corner = run["tile", num_pes - 1, 0].reshape(tile, tile)
    found = plan.run(a)
    assert np.allclose(corner, found.values[-tile:, :tile], rtol=1e-3), "the official one is wrong"
    yield row("official cholesky", "wse2", text, cycles, plan.cycles)
    yield row("cholesky", "wse2", text, found.cycles, plan.cycles)


SOLVERS = {
    "conjugate-gradients": ("conjugate-gradient", "cg"),
    "preconditioned": ("preconditioned-conjugate-gradient", "pcg"),
    "bicgstab": ("bicgstab", "bicgstab"),
    "power": ("power-method", "power"),
}
"""Folder and function of the official examples that run on the device alone."""


def solver_rows(suite: Path, method: str, shape: tuple[int, int, int]) -> Iterator[str]:
    """An iteration for a stencil of WSE-2, two of four less two."""
    stencil = kernels.Stencil({(0, 0, 0): 6.0} | dict.fromkeys(STAR, -1.0))
    b = 1 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    own, official = [], []
    for iterations in (2, 4):
        plan = kernels.plan_solver(method, shape, iterations, arch="wse2")
        own.append(plan.run(stencil, b).cycles)
        official.append(official_solver_cycles(suite, method, b, iterations))
    text = f"{shape}, an iteration"
    for name, (two, four) in ((f"official {method}", official), (method, own)):
        yield row(name, "wse2", text, (four - two) // 2, (own[1] - own[0]) // 2)


def official_solver_cycles(
    suite: Path, method: str, b: NDArray[np.float32], iterations: int
) -> int:
    """Of the official example that runs on the device alone."""
    folder, name = SOLVERS[method]
    rows, columns, depth = b.shape
    params = {f"C{n}_ID": n for n in range(9)} | {"BLOCK_SIZE": 2, "MAX_ZDIM": depth}
    params |= {"width": columns, "height": rows}
    layout = suite / "benchmarks" / folder / "src" / f"layout_{name}.csl"
    with wafer.compile(layout, arch="wse2", params=params).run() as run:
        if method == "power":
            run["x"] = b
        else:
            run["b"], run["x"] = b, np.zeros_like(b)
        run["stencil_coeff"] = np.broadcast_to(
            np.array([-1] * 6 + [6], np.float32), (rows, columns, 7)
        )
        tolerance = () if method == "power" else (np.float32(0),)
        return cycles_to_rest(run, f"f_{name}", np.int16(depth), *tolerance, np.int16(iterations))


def stencil_rows(suite: Path, depth: int) -> Iterator[str]:
    """A step of the 25-point wave on 9 x 9 PEs of WSE-2, a quarter of six steps less two."""
    own = round(cycles_of_a_step(depth, "wse2"))
    layout = suite / "benchmarks" / "25-pt-stencil" / "layout.csl"
    params = {"width": 9, "height": 9, "zDim": depth, "sourceLength": 10, "dx": 20}
    params |= {f"src{axis}": 0 for axis in "XYZ"}
    program = wafer.compile(layout, arch="wse2", params=params)
    cycles = []
    for steps in (2, 6):
        with program.run() as run:
            cycles.append(cycles_to_rest(run, "f_activate_comp", np.uint32(steps)))
    few, more = cycles
    text = f"{depth} cells a PE, a step"
    yield row("official 25-pt-stencil", "wse2", text, (more - few) // 4, own)
    yield row("wave", "wse2", text, own, own)


def fft_rows(suite: Path, length: int, num_dims: int) -> Iterator[str]:
    """A transform on WSE-2: of f32 on a PE, or of f16 on a row of PEs, ours on a square of them.

    The official example does one at once, ours as many as fill a cube.
    """
    width = 1 if num_dims == 1 else round(length**0.5)
    kind = np.float32 if num_dims == 1 else np.float16
    precision = "f32" if num_dims == 1 else "f16"
    plan = kernels.plan_fft(length, num_dims, (width, width), arch="wse2", precision=precision)
    values = np.random.default_rng(0).uniform(size=(length,) * num_dims).astype(kind)
    params = {"DIM": num_dims, "Nz": length, "FP": np.dtype(kind).itemsize // 2}
    layout = suite / "benchmarks" / "fft-1d-2d" / "layout.csl"
    num_pes = 1 if num_dims == 1 else length
    angles = np.pi * np.arange(length // 2) / (length // 2)
    twiddles = np.stack([np.cos(angles), np.sin(angles)], -1).ravel().astype(kind)
    with wafer.compile(layout, arch="wse2", params=params).run() as run:
        complexes = np.stack([values, np.zeros_like(values)], -1)
        run["X"] = complexes.reshape(1, num_pes, -1)
        run["f_twiddle"] = np.broadcast_to(twiddles, (1, num_pes, length))
        cycles = cycles_to_rest(run, "f_fft")
        found = run["X"].astype(np.float64).reshape(-1, 2) @ np.array([1, 1j])
    wanted = np.fft.fftn(values.astype(np.float64)).ravel()
    share = abs(found).max() / abs(wanted).max()
    num, size = plan.most_transforms, " x ".join([str(length)] * num_dims)
    text, planned = f"{size} numbers of {precision}, {width**2} PEs", plan.cycles // num
    yield row(f"official fft, {share:.3f} of the sums", "wse2", text, cycles, planned)
    own = plan.run(np.stack([values.astype(np.complex64)] * num)).cycles
    yield row(f"fft, one of {num}", "wse2", text, own // num, planned)


def sparse_rows(suite: Path, n: int, num_pes: int, of_pe: int) -> Iterator[str]:
    """An n x n matrix with some `of_pe` non-zeros for each of a square of PEs, of WSE-2.

    The official one begins and ends with vectors spread over all PEs, ours with those of an edge.
    """
    places = np.random.default_rng(0).integers(0, n, (2, of_pe * num_pes**2))
    ones = np.ones(places.shape[1], np.float32)
    a = scipy.sparse.csr_array(scipy.sparse.coo_array((ones, places), (n, n)))
    plan = kernels.plan_spmv(a, (num_pes, num_pes), arch="wse2")
    text = f"{n} x {n}, {a.nnz} non-zeros, {num_pes} x {num_pes} PEs"
    official = official_sparse_cycles(suite / "benchmarks" / "spmv-hypersparse", a, num_pes)
    yield row("official spmv-hypersparse", "wse2", text, official, plan.cycles)
    with compiled("spmv", plan.arch, plan.params).run() as run:
        plan.fill(run, np.ones(n, np.float32))
        yield row("spmv, to rest", "wse2", text, cycles_to_rest(run, "main"), plan.cycles)


def official_sparse_cycles(folder: Path, a: scipy.sparse.csr_array, num_pes: int) -> int:
    """Of the official example, with what its script makes of the matrix; the result is checked."""
    by_rows, by_columns, n = a, a.tocsc(), a.shape[0]
    script = run_path(str(folder / "preprocess.py"))
    structure = by_rows.indptr, by_rows.indices, by_columns.indptr, by_columns.indices
    found = script["preprocess"](n, n, a.nnz, num_pes, num_pes, *structure, by_columns.data)
    of_line = -(-n // num_pes)
    length = -(-of_line // num_pes)
    params = {name: value for name, value in found.items() if name.startswith("max_local")}
    params |= {"ncols": n, "nrows": n, "pcols": num_pes, "prows": num_pes}
    params |= {"local_vec_sz": length, "local_out_vec_sz": length, "y_pad_start_row_idx": of_line}
    program = wafer.compile(folder / "src" / "layout.csl", arch="wse2", params=params)
    with program.run() as run:
        for name, values in found.items():
            if np.ndim(values):
                kind = np.float32 if name == "mat_vals_buf" else np.uint16
                run[name] = np.asarray(values).reshape(num_pes, num_pes, -1).astype(kind)
        run["x_tx_buf"] = np.ones((num_pes, num_pes, length), np.float32)
        cycles = cycles_to_rest(run, "f_spmv")
        lines = run["y_local_buf"].reshape(num_pes, -1)[:, :of_line]
    assert np.allclose(lines.ravel()[:n], a.sum(axis=1)), "the official example is wrong"
    return cycles


def launched_cycles(program: Compiled) -> int:
    """From the launch of ``main``, with zeros in all arrays, until the fabric rests."""
    with program.run() as run:
        return cycles_to_rest(run, "main")


def cycles_to_rest(run: Run, function: str, *arguments: np.generic) -> int:
    """From the launch of a function until the fabric rests."""
    before = run.cycles
    run.launch(function, *arguments)
    return run.cycles - before


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collectives", type=int, nargs="*", default=[16])
    parser.add_argument("--lengths", type=int, nargs="*", default=[16, 256])
    parser.add_argument("--gemm", type=int, nargs="*", default=[2])
    parser.add_argument("--tile", type=int, default=48)
    parser.add_argument("--mesh", type=int, nargs="*", default=[])
    parser.add_argument("--suite", type=Path)
    given = parser.parse_args()
    print(HEAD)
    for num_pes in given.collectives:
        for line in collective_rows(num_pes, given.lengths):
            print(line, flush=True)
    for num_pes in given.gemm:
        for line in product_rows(num_pes, given.tile):
            print(line, flush=True)
    for num_pes in given.mesh:
        for line in mesh_rows(num_pes):
            print(line, flush=True)
    if given.suite:
        for line in official_rows(given.suite):
            print(line, flush=True)


if __name__ == "__main__":
    main()
