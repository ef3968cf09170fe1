"""With few elements on a PE a kernel takes the cycles of its instructions, as its plan says."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.sparse

from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from tests.tables import case

Size: TypeAlias = tuple[int, int]
Planned: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A plan and the operands of a run."""


def scan(size: Size, number: int, arch: Arch) -> Planned:
    length = size[0] * size[1] * number
    return kernels.plan_scan(length, size, arch=arch), (np.ones(length, np.float32),)


def sort(size: Size, number: int, arch: Arch) -> Planned:
    length = size[0] * size[1] * number
    values = np.random.default_rng(3).standard_normal(length).astype(np.float32)
    return kernels.plan_sort(length, size, arch=arch), (values,)


def histogram(size: Size, number: int, arch: Arch) -> Planned:
    length = size[0] * size[1] * number
    plan = kernels.plan_histogram(length, 3, (0.0, 1.0), size, arch=arch)
    return plan, (np.full(length, 0.4, np.float32),)


def full(size: Size, number: int) -> scipy.sparse.csr_array:
    """A sparse matrix without zeros."""
    return scipy.sparse.csr_array(np.ones([number * side for side in size], np.float32))


def spmv(size: Size, number: int, arch: Arch) -> Planned:
    given = full(size, number)
    return kernels.plan_spmv(given, size, arch=arch), (np.ones(given.shape[1], np.float32),)


def sddmm(size: Size, number: int, arch: Arch) -> Planned:
    given = full(size, number)
    a, b = (np.ones((side, 4), np.float32) for side in given.shape)
    return kernels.plan_sddmm(given, 4, size, arch=arch), (a, b.T)


ONE = (scan, sort, histogram, spmv, sddmm)


@pytest.mark.parametrize(
    ("kernel", "size", "number", "arch"),
    [
        case(kernel, size, number, arch, by_default=(size, number, arch) == ((1, 1), 1, Arch.WSE3))
        for kernel in ONE
        for size in ((1, 1), (3, 1), (1, 3))
        for number in (1, 3)
        for arch in Arch
    ],
)
def test_a_kernel_of_few_elements_takes_what_its_plan_says(
    kernel: Callable[[Size, int, Arch], Planned], size: Size, number: int, arch: Arch
) -> None:
    plan, operands = kernel(size, number, arch)
    assert plan.run(*operands).cycles == pytest.approx(plan.cycles, rel=0.08)
