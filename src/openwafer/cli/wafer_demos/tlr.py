"""A seismic operator, compressed by tiles of low rank, times a wavefield.

The operator of one frequency is what receivers at a depth hear of sources at the surface. Its tiles
are nearly of low rank, and U V^H of each is kept (doi 10.1145/3581784.3627042): the product reads a
fraction of the dense matrix, on PEs that need nothing of each other but the sums of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.precision import gamma
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    STRICT,
    check_finite,
    check_memory,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.trees import best_tree

SIZE: Final = 512
"""Sources and receivers."""
TILE: Final = 32
TILES_OF_PE: Final = 4
SPACING: Final = 10.0
"""Of sources and of receivers, in metres."""
DEPTH: Final = 400.0
SPEED: Final = 2000.0
"""Of sound, in metres a second."""
FREQUENCY: Final = 20.0
TOLERANCE: Final = 1e-3
"""Of the compression: part of the operator's Frobenius norm."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Compressed:
    """A square matrix of tiles U V^H.

    Attributes:
        u: (tiles, tiles) of (rows, rank), complex64.
        v: the same, (columns, rank).
        tile: rows and columns of a tile.
    """

    u: list[list[Array]]
    v: list[list[Array]]
    tile: int

    @property
    def ranks(self) -> NDArray[np.int64]:
        """(tiles, tiles)."""
        return np.array([[one.shape[1] for one in row] for row in self.u])

    @property
    def matrix(self) -> Array:
        """What it stands for, complex128."""
        pairs = [zip(*row, strict=True) for row in zip(self.u, self.v, strict=True)]
        return np.block(
            [[u.astype(complex) @ v.astype(complex).conj().T for u, v in row] for row in pairs]
        )

    @property
    def magnitudes(self) -> Array:
        """Sums of the magnitudes of all products that a real part is made of, by tiles."""
        return self._tile_by_tile(lambda u, v: _parts(u) @ _parts(v).T)

    def _tile_by_tile(self, of_pair: Callable[[Array, Array], Array]) -> Array:
        pairs = (zip(*row, strict=True) for row in zip(self.u, self.v, strict=True))
        return np.block([[of_pair(u, v) for u, v in row] for row in pairs])


def _parts(values: Array) -> Array:
    wide = values.astype(complex)
    return np.asarray(np.abs(wide.real) + np.abs(wide.imag))


def operator(size: int = SIZE) -> Array:
    """What receivers at :data:`DEPTH` hear of sources above: spherical waves of one frequency."""
    places = SPACING * np.arange(size)
    distances = np.hypot(places[:, None] - places, DEPTH)
    wave = np.exp(-2j * np.pi * FREQUENCY * distances / SPEED)
    return np.asarray(wave * DEPTH / distances)


def compress(matrix: Array, tile: int, tolerance: float) -> Compressed:
    """Tiles of the lowest ranks whose errors together are `tolerance` of the matrix's norm at most.

    Args:
        matrix: (n, n), complex, n a multiple of `tile`.
        tile: rows and columns of a tile.
        tolerance: of the Frobenius norm.
    """
    num = len(matrix) // tile
    allowed = tolerance * np.linalg.norm(matrix) / num
    u: list[list[Array]] = [[] for _ in range(num)]
    v: list[list[Array]] = [[] for _ in range(num)]
    tiles = matrix.reshape(num, tile, num, tile).swapaxes(1, 2)
    for i in range(num):
        for j in range(num):
            left, values, right = np.linalg.svd(tiles[i, j])
            tails = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
            rank = max(1, int((tails > allowed).sum()))
            u[i].append((left[:, :rank] * values[:rank]).astype(np.complex64))
            v[i].append(right[:rank].conj().T.astype(np.complex64))
    return Compressed(u, v, tile)


@dataclass(frozen=True)
class Product:
    """A product of a compressed matrix.

    Attributes:
        values: (n,), complex64.
        cycles: of all phases.
        multiply_adds: of the PE that has most.
        most_bytes: of U and V on the PE that has most.
    """

    values: NDArray[np.complex64]
    cycles: int
    multiply_adds: int
    most_bytes: int


def multiply(a: Compressed, x: Array, arch: str, tiles_of_pe: int = TILES_OF_PE) -> Product:
    """A times x on the wafer.

    Args:
        a: a column of tiles for each column of PEs.
        x: (n,), complex64, finite.
        arch: ``"wse2"`` or ``"wse3"``.
        tiles_of_pe: of one column of tiles.

    Raises:
        OpenwaferError: shapes do not fit, numbers are none, or a PE has no room for its tiles.
    """
    num, tile = len(a.u), a.tile
    if x.shape != (num * tile,) or num % tiles_of_pe or tile % 4:
        what = f"x of the shape {x.shape}, {num} x {num} tiles of {tile} rows, {tiles_of_pe} a PE"
        raise error("kernel-shape", what, help="give equal parts, of a multiple of 4 rows")
    check_finite("x", x)
    rows = num // tiles_of_pe
    of_pes = a.ranks.reshape(rows, tiles_of_pe, num).swapaxes(1, 2)
    most = 4 * int(-(-of_pes.sum(2).max() // 4))
    params = sizes(num, tile, tiles_of_pe, most, known_arch(arch))
    layout = Path(__file__).parent / "programs" / "tlr_layout.csl"
    program = wafer.compile(layout, arch=arch, params=params, options=STRICT)
    v, u = stacked(a, rows, most)
    parts = x.astype(np.complex64).reshape(num, tile)
    with program.run() as run:
        run["ranks"] = of_pes.astype(np.uint32)
        run["V_real"], run["V_imag"], run["U_real"], run["U_imag"] = v.real, v.imag, u.real, u.imag
        run["x", 0] = np.concatenate([parts.real, parts.imag], axis=1)
        run.launch("main")
        found = run["y", :, num - 1].reshape(num, 2, tile)
        cycles = cycles_of(run, known_arch(arch))
    values = (found[:, 0] + 1j * found[:, 1]).astype(np.complex64).ravel()
    num_ranks = int(of_pes.sum(2).max())
    return Product(values, cycles, 8 * tile * num_ranks, 16 * tile * num_ranks)


def sizes(num: int, tile: int, tiles_of_pe: int, most: int, arch: Arch) -> dict[str, Param]:
    """Params of the program.

    Raises:
        OpenwaferError: a PE has no room for its tiles.
    """
    length = 2 * tile * tiles_of_pe
    held = 4 * tile * most + 2 * (tile + most) + length
    check_memory(4 * held + CODE_BYTES, f"{tiles_of_pe} tiles of {most} ranks together")
    tree = best_tree(num, length, length, arch)
    return {
        "rows": num // tiles_of_pe,
        "columns": num,
        "tile": tile,
        "num_tiles": tiles_of_pe,
        "most_ranks": most,
        "row_shape": tree.shape.number,
        "row_group": tree.group,
    }


def stacked(a: Compressed, rows: int, most: int) -> tuple[Array, Array]:
    """V and U of each PE's tiles as they lie there: (rows, columns, elements), complex64."""
    num, tile = len(a.u), a.tile
    of_pe = num // rows
    v = np.zeros((rows, num, tile, most), np.complex64)
    u = np.zeros((rows, num, most, tile), np.complex64)
    for y in range(rows):
        for x in range(num):
            mine = range(y * of_pe, (y + 1) * of_pe)
            all_v = np.concatenate([a.v[i][x] for i in mine], axis=1)
            all_u = np.concatenate([a.u[i][x] for i in mine], axis=1)
            v[y, x, :, : all_v.shape[1]] = all_v
            u[y, x, : all_u.shape[1]] = all_u.T
    return v.reshape(rows, num, -1), u.reshape(rows, num, -1)


def error_bound(a: Compressed, x: Array) -> Array:
    """Of each part of the product, against the same tiles: so many roundings at most."""
    longest = 2 * a.tile + 2 * int(a.ranks.max()) + len(a.u) + 2
    majorant = a.magnitudes @ _parts(x)
    return np.asarray(gamma(longest, np.dtype(np.float32)) * majorant)


def run(arch: str) -> Shown:
    """Focus a wavefield at a receiver, and compare it with the dense product."""
    dense = operator()
    a = compress(dense, TILE, TOLERANCE)
    focus = 2 * SIZE // 3
    x = (dense[focus].conj() / SIZE).astype(np.complex64)
    found = multiply(a, x, arch)
    exact = dense @ x.astype(complex)
    drawn = a, found.values, exact
    checked = checks(a, x, found, exact, focus)
    return Shown(figures(a, found, arch), checked, lambda file: draw(file, *drawn))


def figures(a: Compressed, found: Product, arch: str) -> tuple[Line, ...]:
    """Sizes and cycles."""
    share = 2 * a.ranks.sum() / (len(a.u) ** 2 * a.tile)
    return (
        Line("PEs, 4 tiles of 32 x 32 each", f"{len(a.u) // TILES_OF_PE} x {len(a.u)}"),
        Line("ranks: least, mean, most", f"{a.ranks.min()}, {a.ranks.mean():.1f}, {a.ranks.max()}"),
        Line("words of the dense matrix", f"{share:.0%}"),
        Line("cycles of the product", f"{found.cycles:,}, {by_the_clock(found.cycles, arch)}"),
        Line("multiply-adds of a PE, of the cycles", f"{found.multiply_adds / found.cycles:.0%}"),
        Line("bytes a cycle that a PE takes of U and V", f"{found.most_bytes / found.cycles:.2f}"),
    )


def checks(a: Compressed, x: Array, found: Product, exact: Array, focus: int) -> tuple[Check, ...]:
    """Roundings, the compression, and where the wavefield is strongest."""
    off = found.values - a.matrix @ x.astype(complex)
    worst = float((np.maximum(np.abs(off.real), np.abs(off.imag)) / error_bound(a, x)).max())
    norm = np.linalg.norm(operator(len(x))) * np.linalg.norm(x)
    compression = float(np.linalg.norm(found.values - exact) / norm)
    at = int(np.abs(found.values).argmax())
    return (
        Check(
            "errors against the same tiles", f"{worst:.2f} of their bound", "at most 1", worst <= 1
        ),
        Check(
            "error against the dense product",
            f"{compression:.1e} of the norms",
            f"at most {TOLERANCE:g}",
            compression <= TOLERANCE,
        ),
        Check("receiver that hears most", f"{at}", f"{focus}", at == focus),
    )


def draw(file: Path, a: Compressed, values: Array, exact: Array) -> None:
    """Ranks of all tiles, and what receivers hear."""
    with picture(file, (11.0, 3.6), ncols=2, width_ratios=(1, 2)) as (left, right):
        image = left.imshow(a.ranks, cmap="viridis")
        left.figure.colorbar(image, ax=left)
        left.set(title="ranks of tiles", xlabel="sources", ylabel="receivers")
        places = SPACING * np.arange(len(values))
        right.plot(places, np.abs(exact), color=BLUE, linewidth=2, label="dense product")
        right.plot(places, np.abs(values), ".", color=RED, markersize=3, label="on the wafer")
        right.set(title="wavefield focused at a receiver", xlabel="receiver, m")
        right.legend()
