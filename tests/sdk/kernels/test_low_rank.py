"""Tiles of low rank times vectors, against numpy and scipy."""

from functools import cache

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import LowRankTiles, Precision, Shape, TlrMvmPlan, Tree

ARCHS = ("wse2", "wse3")
ONE = np.ones((4, 1), np.float32)


def drawn_tiles(
    shape: tuple[int, int], tile: tuple[int, int], most: int, *, is_complex: bool, seed: int = 1
) -> LowRankTiles:
    """Tiles of random ranks up to `most`, zero among them."""
    rng = np.random.default_rng(seed)
    down, along = (
        [min(t, n - at) for at in range(0, n, t)] for n, t in zip(shape, tile, strict=True)
    )
    ranks = rng.integers(0, most + 1, (len(down), len(along)))

    def factor(*size: int) -> np.ndarray:
        values = rng.normal(size=size) + 1j * rng.normal(size=size)
        return values.astype(np.complex64) if is_complex else values.real.astype(np.float32)

    u = [[factor(n, r) for r in row] for n, row in zip(down, ranks, strict=True)]
    v = [[factor(n, r) for n, r in zip(along, row, strict=True)] for row in ranks]
    return LowRankTiles(shape, tile, u, v)


def vector_for(plan: TlrMvmPlan, seed: int) -> np.ndarray:
    """Random numbers of the plan's type."""
    rng, n = np.random.default_rng(seed), plan.a.shape[1]
    values = rng.normal(size=n) + 1j * plan.a.is_complex * rng.normal(size=n)
    values = values if plan.a.is_complex else values.real
    return values.astype(np.complex64 if plan.a.is_complex else plan.precision.given)


def check_product(plan: TlrMvmPlan, seed: int) -> None:
    """Multiply, looking for mistakes, and compare."""
    x = vector_for(plan, seed)
    result = plan.run(x, check=True)
    off = result.values - plan.a.matrix @ x.astype(plan.a.matrix.dtype)
    bound = plan.error_bound(x)
    assert result.values.dtype == (x.dtype if plan.a.is_complex else plan.precision.sums)
    assert (np.abs(off.real) <= bound).all()
    assert (np.abs(off.imag) <= bound).all()
    assert np.array_equal(plan.run(x).values, result.values)


@cache
def small_plans() -> tuple[TlrMvmPlan, ...]:
    """Several tiles a PE both ways and shorter last ones; PEs without tiles."""
    several = drawn_tiles((22, 15), (5, 4), 3, is_complex=True)
    few = drawn_tiles((6, 9), (4, 3), 2, is_complex=False)
    return (
        kernels.plan_tlr_mvm(several, (2, 2), arch="wse2"),
        kernels.plan_tlr_mvm(few, (3, 4), precision="f16-f32", tree=Tree(Shape.TREE)),
    )


@settings(max_examples=2)
@given(st.sampled_from((0, 1)), st.integers(0, 2**32 - 1))
def test_tiles_of_low_rank_multiply_as_numpy_up_to_their_bound(number: int, seed: int) -> None:
    check_product(small_plans()[number], seed)


@st.composite
def plans(draw: st.DrawFn) -> TlrMvmPlan:
    """A plan for a matrix of at most 30 rows and columns, on 3 x 4 PEs at most."""
    length, small = st.integers(1, 30), st.integers(1, 9)
    tiles = drawn_tiles(
        (draw(length), draw(length)),
        (draw(small), draw(small)),
        draw(st.integers(0, 6)),
        is_complex=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
    size = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    arch, precision = draw(st.sampled_from(ARCHS)), draw(st.sampled_from(Precision))
    return kernels.plan_tlr_mvm(tiles, size, arch=arch, precision=precision)


@pytest.mark.slow
@settings(max_examples=40)
@given(plans(), st.integers(0, 2**32 - 1))
def test_tiles_of_any_shape_multiply_as_numpy(plan: TlrMvmPlan, seed: int) -> None:
    check_product(plan, seed)


def test_a_compressed_matrix_of_scipy_is_multiplied_within_its_tolerance() -> None:
    dense = scipy.linalg.hilbert(40)
    a = kernels.compress(dense, (12, 8), 1e-4)
    x = np.cos(np.arange(40)).astype(np.float32)
    off = kernels.tlr_mvm(a, x, (2, 3)).values - dense @ x
    assert a.ranks.sum() < 4 * 5 * 4  # of 8
    assert np.linalg.norm(off) <= 1.01e-4 * np.linalg.norm(dense) * np.linalg.norm(x)


@settings(max_examples=10)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.floats(0, 1),
    st.booleans(),
)
def test_tiles_have_the_ranks_that_their_error_allows(
    shape: tuple[int, int], tile: tuple[int, int], tolerance: float, is_complex: bool
) -> None:
    rng = np.random.default_rng(sum(shape))
    dense = rng.normal(size=shape) + 1j * is_complex * rng.normal(size=shape)
    dense = dense if is_complex else dense.real
    a = kernels.compress(dense, tile, tolerance)
    assert np.linalg.norm(a.matrix - dense) <= (tolerance + 1e-6) * np.linalg.norm(dense)
    assert (a.ranks <= min(tile)).all()


@pytest.mark.parametrize("number", [0, 1])
def test_products_of_tiles_take_what_their_plan_says(number: int) -> None:
    plan = small_plans()[number]
    cycles = plan.run(vector_for(plan, 0)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * cycles


# Generation, shape, tile, rows and columns of PEs, most ranks, whether complex.
SIZES: list[tuple[str, tuple[int, int], tuple[int, int], tuple[int, int], int, bool]] = [
    ("wse2", (64, 64), (8, 8), (2, 4), 6, True),
    ("wse3", (96, 96), (16, 32), (3, 3), 9, True),
    ("wse3", (40, 60), (5, 12), (4, 5), 4, False),
    ("wse2", (256, 256), (32, 32), (4, 8), 8, True),
    ("wse3", (256, 256), (32, 32), (2, 8), 3, False),
    ("wse2", (200, 300), (20, 30), (5, 5), 12, True),
    ("wse3", (320, 320), (16, 64), (20, 5), 16, False),
]


@pytest.mark.slow
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("case", SIZES)
def test_products_of_many_tiles_take_what_their_plan_says(
    case: tuple[str, tuple[int, int], tuple[int, int], tuple[int, int], int, bool],
    precision: Precision,
) -> None:
    arch, shape, tile, size, most, is_complex = case
    tiles = drawn_tiles(shape, tile, most, is_complex=is_complex)
    plan = kernels.plan_tlr_mvm(tiles, size, arch=arch, precision=precision)
    cycles = plan.run(vector_for(plan, 0)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * cycles


def test_a_plan_says_what_lies_on_a_pe() -> None:
    plan = small_plans()[0]
    assert plan.tiles == (3, 2)
    assert plan.tile == (8, 4)
    assert plan.padding == (26, 1)
    assert plan.ranks.sum() == plan.a.ranks.sum()


def test_short_tiles_have_bounds_only_where_their_numbers_fit() -> None:
    tiles = drawn_tiles((8, 8), (4, 4), 2, is_complex=False)
    for precision in (Precision.F16, Precision.F16_F32):
        plan = kernels.plan_tlr_mvm(tiles, (1, 1), precision=precision)
        assert np.isfinite(plan.error_bound(np.ones(8, np.float16))).all()
        # V^H x leaves the range of f16.
        assert np.isinf(plan.error_bound(np.full(8, 65_000, np.float16))).any()


def test_an_imaginary_part_beyond_f16_leaves_the_real_part_as_it_is() -> None:
    a = LowRankTiles((1, 1), (1, 1), [[np.array([[300j + 1]], np.complex64)]], [[ONE[:1] + 0j]])
    result = kernels.tlr_mvm(a, np.array([300], np.complex64), (1, 1), precision="f16")
    assert result.values.tolist() == [complex(300, np.inf)]


def test_tiles_and_vectors_that_f16_cannot_hold_are_refused() -> None:
    long = LowRankTiles((4, 4), (4, 4), [[ONE * 1e5]], [[ONE]])
    with pytest.raises(OpenwaferError, match=r"4 of the 4 values of u of tile \(0, 0\) are beyond"):
        kernels.plan_tlr_mvm(long, (1, 1), precision="f16")
    bent = LowRankTiles((4, 4), (4, 4), *([[ONE.astype(np.complex64)]],) * 2)
    x = np.array([1, 1j, 1e5j, 0], np.complex64)
    with pytest.raises(OpenwaferError, match="1 of the 8 values of x are beyond float16"):
        kernels.tlr_mvm(bent, x, (1, 1), precision="f16-f32")


GOOD = drawn_tiles((8, 8), (4, 4), 2, is_complex=False)


def test_tiles_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="a PE with 1 x 1 tiles of 80 ranks together takes"):
        kernels.plan_tlr_mvm(kernels.compress(np.eye(80), (80, 80), 0), (1, 1))
    with pytest.raises(OpenwaferError, match="1 rows and 900 columns of PEs"):
        kernels.plan_tlr_mvm(GOOD, (1, 900))
    with pytest.raises(
        OpenwaferError, match="values are float64; a kernel takes float32 or float16"
    ):
        kernels.tlr_mvm(GOOD, np.ones(8), (1, 1))
    with pytest.raises(OpenwaferError, match=r"x has the shape \(5,\); the plan is for \(8,\)"):
        kernels.tlr_mvm(GOOD, np.ones(5, np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match="8 of the 8 values of x are no numbers"):
        kernels.tlr_mvm(GOOD, np.full(8, np.nan, np.float32), (1, 1))


MISTAKES = {
    "u has 1 rows of [1] tiles; the matrix has 1 rows of 2": ([[ONE]], [[ONE, ONE]]),
    "v of tile (0, 1) is float64": ([[ONE, ONE]], [[ONE, ONE.astype(float)]]),
    "u of tile (0, 0) has the shape (3, 1); the tile has 4": ([[ONE[:3], ONE]], [[ONE, ONE]]),
    "tile (0, 1) has 2 columns of u and 1 of v": ([[ONE, np.hstack([ONE, ONE])]], [[ONE, ONE]]),
    "some of u and v are complex": ([[ONE, ONE]], [[ONE, ONE.astype(np.complex64)]]),
    "4 of the 4 values of u of tile (0, 0) are infinite": ([[ONE * np.inf, ONE]], [[ONE, ONE]]),
}


@pytest.mark.parametrize(("words", "factors"), MISTAKES.items(), ids=MISTAKES.keys())
def test_factors_that_make_no_matrix_are_refused(
    words: str, factors: tuple[list[list[np.ndarray]], list[list[np.ndarray]]]
) -> None:
    with pytest.raises(OpenwaferError) as caught:
        LowRankTiles((4, 8), (4, 4), *factors)
    assert words in str(caught.value)


def test_what_cannot_be_compressed_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"a matrix of the shape \(4,\) in tiles of \(2, 2\)"):
        kernels.compress(np.ones(4), (2, 2), 0.1)
    with pytest.raises(OpenwaferError, match="1 of the 4 values of the matrix are infinite"):
        kernels.compress(np.array([[1, 2], [np.inf, 0]]), (2, 2), 0.1)
    with pytest.raises(OpenwaferError, match="tolerance is nan"):
        kernels.compress(np.eye(4), (2, 2), np.nan)
    with pytest.raises(
        OpenwaferError, match=r"2 of the 4 values of u of tile \(0, 0\) are infinite"
    ):
        kernels.compress(np.eye(4) * 1e200, (2, 2), 0.1)


@pytest.mark.parametrize("size", [np.float32(1e30), np.float32(1e-30), np.float16(6e4)])
def test_ranks_do_not_depend_on_the_size_of_numbers(size: np.floating) -> None:
    matrix = np.diag([1, 1, 0.5, 0.001]).astype(size.dtype) * size
    assert kernels.compress(matrix, (2, 2), 0.01).ranks.tolist() == [[2, 0], [0, 1]]
