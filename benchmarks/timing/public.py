"""Programs of public repositories, run as they are, and the cycles that their authors published.

The stencils are those of Elia-Belli/stencil-cerebras, whose tables of runs lie beside the programs;
the products on 2 x 2 PEs those of pr0f3ss/SpMM_Cerebras, folder `benchmarks/memory_access_latency`;
the products by broadcasts and sums around a ring those of da-luce/cs5220_hw4, whose output of all
runs lies beside the program; the stencil of tiles in register operations that of Jorineg/cerebras;
the products in f16 those of junesookang/WaferLLM, folder `MeshGEMM/WSE-3-col-major`.
"""

import csv
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.timing.rows import Row
from openwafer.sdk.arch.generation import GENERATIONS, Arch

_TILED_COMMIT: Final = "cd54d0e"
_HALO_COMMIT: Final = "248fe47"
_PRODUCT_COMMIT: Final = "3d6b4ca"
_SIZES: Final = (32, 28, 24, 20, 16, 12, 8, 4)
_FASTEST: Final[Mapping[Arch, tuple[int, ...]]] = {
    Arch.WSE2: (1420, 2087, 2599, 2804, 3495, 7936, 10452, 33374),
    Arch.WSE3: (1582, 2258, 2426, 3038, 3779, 8300, 10787, 34061),
}
_SLOWEST: Final[Mapping[Arch, tuple[int, ...]]] = {
    Arch.WSE2: (1797, 2546, 3437, 3375, 4140, 8782, 11501, 35052),
    Arch.WSE3: (2034, 2802, 3005, 3720, 4599, 9395, 12350, 36679),
}
"""Cycles of the slowest PE, by the PEs along each side; 256 x 256 cells."""
_HALO: Final = (
    *(("1r-star2d", 1, 906), ("star2d", 2, 2127), ("star2d", 3, 2407)),
    *(("1r-box2d", 1, 1380), ("box2d", 3, 8718)),
)
"""Folder, radius and cycles of a step on 2 x 2 PEs with 8 x 8 cells each."""
_RING_SIZE: Final = re.compile(r"sizeX=(\d+), sizeY=(\d+), M=(\d+), H=(\d+), N=(\d+)")
_RING_MEAN: Final = re.compile(r"Mean: ([\d.]+)")
_PRODUCTS: Final = ((16, 32, 9756), (64, 32, 88795), (16, 128, 38844), (64, 128, 357853))
"""Rows of the square matrix, columns of the other one, cycles; on 2 x 2 PEs."""
_TILES: Final = (
    *(((5, 5), (1, 1), 1, 127, 157), ((8, 8), (2, 2), 1, 141, 177)),
    *(((11, 11), (3, 3), 1, 188, 197), ((14, 14), (4, 4), 1, 220, 131)),
    *(((17, 17), (5, 5), 1, 286, 191), ((14, 14), (6, 6), 1, 338, 244)),
    *(((18, 18), (8, 8), 1, 551, 356), ((32, 32), (10, 10), 1, 790, 558)),
    *(((44, 29), (14, 9), 1, 841, 676), ((62, 62), (20, 20), 1, 2669, 1788)),
    *(((10, 10), (2, 2), 2, 271, 339), ((13, 13), (3, 3), 2, 371, 419)),
    *(((19, 19), (5, 5), 2, 593, 635), ((34, 34), (10, 10), 2, 1679, 1712)),
    *(((14, 14), (6, 6), 3, 894, 939), ((20, 20), (4, 4), 4, 775, 808)),
)
"""Cells of the grid, cells of a PE, radius, cycles a step of both generations."""
_HALF_ROWS: Final = (1, 3, 8, 10, 12, 15, 16)
_HALF_MEAN: Final = re.compile(r"Mean cycle count: ([\d.]+)")


def half_rows(clone: Path) -> Iterator[Row]:
    """Products in f16 on 3 x 3 PEs, 8 x 8 numbers a PE of one factor, in the mean of the PEs.

    They repeat their loops over 8 columns as often as they are told: not at all, once, twice.
    """
    with _files(clone, "b8f87d0", "MeshGEMM/WSE-3-col-major") as folder:
        runs = json.loads((folder / "col-major-gemm.json").read_text(encoding="utf-8"))
        published = {(one["P"], one["M"], one["L"]): one["mean_cycle"] for one in runs}
        for num in _HALF_ROWS:
            theirs = [published[3, 3 * num, turns] for turns in range(3)]
            ours = [_half_cycles(folder, num, turns) for turns in range(3)]
            name = f"f16 product with columns of {num}"
            yield Row(f"{name}, copies alone", Arch.WSE3, "open", ours[0], theirs[0])
            yield Row(f"{name}, with copies", Arch.WSE3, "open", ours[1], theirs[1])
            a_column = [(cycles[2] - cycles[1]) / 24 for cycles in (ours, theirs)]
            yield Row(f"{name}, a column of 8", Arch.WSE3, "open", *a_column)


def _half_cycles(folder: Path, num: int, turns: int) -> float:
    sizes = map(str, (3, 3 * num, 24, 24, turns, 1))
    found = _HALF_MEAN.search(_call(folder, ["bash", "run_sim.sh", *sizes]))
    assert found, num
    return float(found[1])


def tile_rows(clone: Path) -> Iterator[Row]:
    """Steps of a stencil whose tiles receive while they compute; of WSE-3 from 4 x 4 cells on."""
    with _files(clone, "HEAD", "tiled-stencil") as folder:
        for arch in Arch:
            for grid, tile, radius, *published in _TILES:
                ours = _a_step(folder, arch, grid, tile, radius)
                name = f"tile of {tile[0]} x {tile[1]} cells, radius {radius}, a step"
                yield Row(name, arch, "open", ours, published[arch is Arch.WSE3])


def _a_step(
    folder: Path, arch: Arch, grid: tuple[int, int], tile: tuple[int, int], radius: int
) -> float:
    inner = [-(-(all_ - 2 * radius) // own) for all_, own in zip(grid, tile, strict=True)]
    names = ("w", "h", "tile_width", "tile_height", "radius")
    cells = [num * own + 2 * radius for num, own in zip(inner, tile, strict=True)]
    params = dict(zip(names, (*cells, *tile, radius), strict=True))
    _compile(folder, (inner[0] + 2, inner[1] + 2), params, f"--arch={arch}")
    cycles: list[int] = []
    for steps in (2, 4):
        _run(folder, "run.py", "--name", "out", f"--num-iterations={steps}")
        cycles.append(json.loads((folder / "sim_stats.json").read_text())["cycle_count"])
    return (cycles[1] - cycles[0]) / 2


def stencil_rows(clone: Path) -> Iterator[Row]:
    """Stencils with tiles of several sizes, and with halos of several widths."""
    with _files(clone, _TILED_COMMIT, "Stencil2D") as folder:
        for arch in Arch:
            for size, *published in zip(_SIZES, _FASTEST[arch], _SLOWEST[arch], strict=True):
                yield from _tiled(folder, arch, size, published)
    with _files(clone, _HALO_COMMIT, "src/wse") as folder:
        for name, radius, cycles in _HALO:
            yield _halo(folder, name, radius, cycles)


def product_rows(clone: Path) -> Iterator[Row]:
    """Products of dense matrices."""
    with _files(clone, _PRODUCT_COMMIT, "src/gemm") as folder:
        for size, columns, published in _PRODUCTS:
            yield _product(folder, size, columns, published)


def ring_rows(clone: Path) -> Iterator[Row]:
    """Products of matrices whose columns go through data tasks, in the mean of the PEs."""
    with _files(clone, "HEAD", ".") as folder:
        text = (folder / "leaderboard_output.txt").read_text(encoding="utf-8")
        for run in text.split("Running with configuration:")[1:]:
            size, published = _RING_SIZE.search(run), _RING_MEAN.search(run)
            if size and published:
                done = _call(folder, ["bash", "run.sh", *size.groups()])
                ours = _RING_MEAN.search(done)
                assert ours, done
                name = f"ring product {' x '.join(size.groups())}"
                yield Row(name, Arch.WSE2, "open", float(ours[1]), float(published[1]))


@contextmanager
def _files(clone: Path, commit: str, folder: str) -> Iterator[Path]:
    """A folder of a repository as it was at a commit."""
    with TemporaryDirectory() as place:
        git = ("git", "-C", place)
        subprocess.run(["git", "clone", "-q", str(clone), place], check=True)
        subprocess.run([*git, "checkout", "-q", commit], check=True)
        yield Path(place) / folder


def _tiled(folder: Path, arch: Arch, size: int, published: Sequence[int]) -> Iterator[Row]:
    params = {"kernel_dim_x": size, "kernel_dim_y": size, "M": 256, "N": 256, "iterations": 1}
    _compile(folder, (size, size), params, f"--arch={arch}")
    _run(folder, "run.py", "--name", "out")
    *_, low, high = (folder / "run_test_log.csv").read_text().split()[-1].split(",")
    for which, ours, theirs in zip(("fastest", "slowest"), (low, high), published, strict=True):
        name = f"tiled stencil, {size} x {size} PEs, {which}"
        yield Row(name, arch, "open", float(ours), theirs)


def _halo(folder: Path, name: str, radius: int, published: int) -> Row:
    params = {"kernel_dim_x": 2, "kernel_dim_y": 2, "M": 16, "N": 16, "iterations": 1}
    if not name.startswith("1r"):
        params["radius"] = radius
    home = folder / name
    _compile(home, (2, 2), params, "--arch=wse3")
    text = _run(home, "run.py", "--name", "out", "--arch=wse3")
    seconds = next(line.split()[2] for line in text.splitlines() if "Time (device)" in line)
    ours = float(seconds) * GENERATIONS[Arch.WSE3].clock_hertz
    return Row(f"halo stencil {name}, radius {radius}", Arch.WSE3, "open", ours, published)


def _product(folder: Path, size: int, columns: int, published: int) -> Row:
    vectors = folder / "test_vectors"
    vectors.mkdir(exist_ok=True)
    np.savetxt(vectors / "tmp.csv", np.ones((size, size)), delimiter=",")
    params = {"width": 2, "height": 2, "Nt": size // 2, "Kt": size // 2, "M": columns}
    more = ("--width-west-buf=0", "--width-east-buf=0")
    _compile(folder, (2, 2), {**params, "LAUNCH_ID": 4}, "--arch=wse2", *more)
    sizes = (f"-N={size}", f"-K={size}", f"-M={columns}", "-width=2", "-height=2")
    _run(folder, "run_memcpy.py", "--name", "out", "-A_prefix=tmp", *sizes)
    found = next(folder.glob("*benchmark.csv"))
    *_, last = csv.reader(found.read_text().splitlines())
    name = f"product of {size} x {size} by {columns}"
    return Row(name, Arch.WSE2, "open", float(last[6]), published)


def _compile(folder: Path, size: tuple[int, int], params: Mapping[str, int], *more: str) -> None:
    dims = f"--fabric-dims={size[0] + 7},{size[1] + 2}"
    given = ",".join(f"{name}:{value}" for name, value in params.items())
    options = (dims, "--fabric-offsets=4,1", f"--params={given}", "-o=out", "--memcpy")
    _call(folder, ["cslc", "layout.csl", *options, "--channels=1", *more])


def _run(folder: Path, script: str, *arguments: str) -> str:
    return _call(folder, ["cs_python", script, *arguments])


def _call(folder: Path, command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} in {folder.name} failed:\n{done.stderr}")
    return done.stdout
