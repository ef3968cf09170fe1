"""Whenever launches reach its PEs, a kernel ends, and its result has the same bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.host.delays import DELAYS_VARIABLE

Kernel = Callable[[str], Any]
SIZE = (3, 4)
RNG = np.random.default_rng(5)


def values(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


MATRIX, VECTOR, SQUARE = values(12, 8), values(8), values(12, 12) + 20 * np.eye(12, dtype="f4")
POINTS: dict[tuple[int, ...], float] = {
    (-1, 0, 0): -1.0,
    (1, 0, 0): -1.0,
    (0, -1, 0): -1.0,
    (0, 1, 0): -1.0,
}
STAR = kernels.Stencil(POINTS | {(0, 0, 1): -1.0, (0, 0, -1): -1.0}, own=7.0)
FLAT = kernels.Stencil({(0, 1): 0.5, (-1, 0): 0.25, (1, 0): 0.125}, own=0.5)
WAVES = (values(4, 8) + 1j * values(4, 8)).astype(np.complex64)
CELLS, SPREAD, LINE = values(3, 4, 6), values(3, 4, 5), values(48)
TILES = kernels.compress(SQUARE, (3, 4), 0.5)
NON_ZEROS = scipy.sparse.random(16, 16, 0.3, "csr", np.float32, random_state=5)

KERNELS: dict[str, Kernel] = {
    "gemv": lambda arch: kernels.gemv(MATRIX, VECTOR, SIZE, arch=arch).values,
    "gemm": lambda arch: kernels.gemm(MATRIX, MATRIX.T.copy(), (3, 3), arch=arch).values,
    "lu": lambda arch: kernels.lu(SQUARE, SIZE, arch=arch).values,
    "trsm": lambda arch: kernels.trsm(SQUARE, MATRIX, SIZE, arch=arch).values,
    "dot": lambda arch: kernels.dot(LINE, LINE, SIZE, arch=arch).values,
    "all_reduce": lambda arch: kernels.all_reduce(SPREAD, arch=arch).values,
    "reduce": lambda arch: kernels.reduce(SPREAD, arch=arch).values,
    "broadcast": lambda arch: kernels.broadcast(LINE, SIZE, arch=arch).values,
    "scatter": lambda arch: kernels.scatter(SPREAD, arch=arch).values,
    "gather": lambda arch: kernels.gather(SPREAD, arch=arch).values,
    "scan": lambda arch: kernels.scan(LINE, SIZE, arch=arch).values,
    "sort": lambda arch: kernels.sort(LINE, SIZE, arch=arch).values,
    "histogram": lambda arch: kernels.histogram(LINE, 8, (-2.0, 2.0), SIZE, arch=arch).values,
    "transpose": lambda arch: kernels.transpose(SQUARE, (3, 3), arch=arch).values,
    "spmv": lambda arch: kernels.spmv(NON_ZEROS, values_of(16), SIZE, arch=arch).values,
    "stencil": lambda arch: kernels.stencil(STAR, CELLS, 3, arch=arch).values,
    "tiles": lambda arch: kernels.plan_stencil(FLAT, (12, 12), size=(3, 4), arch=arch).run(
        SQUARE, 3
    ).values,
    "sddmm": lambda arch: kernels.sddmm(NON_ZEROS, values_of(16, 4), values_of(4, 16), SIZE,
                                        arch=arch).values.data,
    "tlr_mvm": lambda arch: kernels.tlr_mvm(TILES, values_of(12), SIZE, arch=arch).values,
    "fft": lambda arch: kernels.fft(WAVES, (2, 2), arch=arch).values,
    "bicgstab": lambda arch: kernels.bicgstab(STAR, CELLS, 3, arch=arch).values,
    "streamed_gemm": lambda arch: kernels.streamed_gemm(NON_ZEROS, values_of(16, 8), SIZE,
                                                        arch=arch).values,
}  # fmt: skip


def values_of(*shape: int) -> Any:
    """The same ones each time."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


@cache
def undisturbed(name: str, arch: str) -> Any:
    return KERNELS[name](arch)


@contextmanager
def delays(seed: int, cycles: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DELAYS_VARIABLE, f"{seed},{cycles}")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("name", KERNELS)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**31), cycles=st.integers(1, 3000))
def test_the_result_does_not_depend_on_when_pes_begin(
    name: str, arch: str, seed: int, cycles: int
) -> None:
    wanted = undisturbed(name, arch)
    with delays(seed, cycles):
        found = KERNELS[name](arch)
    np.testing.assert_array_equal(found, wanted)
