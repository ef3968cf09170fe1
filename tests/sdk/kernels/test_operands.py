"""Kernels refuse lists of numbers by the name of the operand, before anything is compiled."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels

Kernel = Callable[..., Any]


def arrays_of(kernel: Kernel) -> list[str]:
    """Parameters whose annotation names an array."""
    parameters = inspect.signature(kernel).parameters.values()
    return [one.name for one in parameters if "ndarray" in str(one.annotation)]


def found() -> dict[str, Kernel]:
    """Functions that take arrays, and those that run plans with some."""
    offered = {name: getattr(kernels, name) for name in kernels.__all__}
    functions = {name: one for name, one in offered.items() if inspect.isfunction(one)}
    runs = {f"{name}.run": one.run for name, one in offered.items() if hasattr(one, "run")}
    return {name: one for name, one in (functions | runs).items() if arrays_of(one)}


KERNELS = found()


@pytest.mark.parametrize("name", KERNELS)
def test_a_list_is_refused_by_its_name(name: str) -> None:
    kernel = KERNELS[name]
    arrays = arrays_of(kernel)
    given = {one: [1.0] if one in arrays else None for one in inspect.signature(kernel).parameters}
    for first in arrays:
        with pytest.raises(OpenwaferError, match=f"{first} is of the type list; a kernel takes"):
            kernel(**given)
        given[first] = np.ones(1, np.float32)  # type: ignore[assignment]


def test_a_mask_is_refused_and_not_left_out() -> None:
    x = np.ma.array([1, 2], np.float32, mask=[True, False])
    with pytest.raises(OpenwaferError, match="x has a mask, which no kernel knows"):
        kernels.nrm2(x, (1, 1))


def test_the_mask_of_a_part_of_a_matrix_is_refused_too() -> None:
    shapes = (0, 1, 2), (1, 0, 2), (1, 1, 1)
    rows, columns, layers = (np.ones(shape, np.float32) for shape in shapes)
    storage = np.ma.array(np.ones((1, 1, 2), np.float32), mask=[[[True, False]]])
    with pytest.raises(OpenwaferError, match="storage has a mask, which no kernel knows"):
        kernels.Fluxes(rows, columns, layers, storage)


@pytest.mark.parametrize("size", [2, (2,), (2, 2, 2), (2.0, 2), ("2", 2), (True, 2)])
def test_a_size_is_rows_and_columns(size: Any) -> None:
    with pytest.raises(OpenwaferError, match="rows and columns of PEs"):
        kernels.nrm2(np.ones(4, np.float32), size)


def test_all_kernels_are_looked_at() -> None:
    assert {"gemv", "lu", "stencil", "spmv", "GemvPlan.run", "SolverPlan.run"} <= KERNELS.keys()


def test_what_is_optional_may_be_left_out() -> None:
    plan = kernels.plan_stencil(kernels.Stencil({(0, 1): 1.0}), (1, 2))
    with pytest.raises(OpenwaferError, match="before is of the type list"):
        plan.run(np.ones((1, 2), np.float32), 1, [1.0])  # type: ignore[arg-type]
    with pytest.raises(OpenwaferError, match="-1 steps"):
        plan.run(np.ones((1, 2), np.float32), -1, None)
