"""Kernels refuse lists of numbers by the name of the operand, before anything is compiled."""

import inspect
import types
from collections.abc import Callable
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels.operands import moves_operands, takes_operands
from openwafer.sdk.kernels.precision import precision_of

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


def test_halves_are_summed_in_f32_unless_asked_otherwise() -> None:
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    found = precision_of(None, half), precision_of("f16", half), precision_of(None, single)
    assert found == ("f16-f32", "f16", "f32")


# They move bits and compute nothing, so NaN is as good as any other value.
MOVES = {"broadcast", "gather", "scatter", "transpose", "GatherPlan.run", "TransposePlan.run"}


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - MOVES - {"CollectivePlan.run"}))
def test_no_number_is_refused_with_its_place(name: str) -> None:
    kernel = KERNELS[name]
    arrays = arrays_of(kernel)
    given: dict[str, Any] = dict.fromkeys(inspect.signature(kernel).parameters)
    given |= dict.fromkeys(arrays, np.ones((2, 2), np.float32))
    for first in arrays:
        wrong = given | {first: np.array([[1, 1], [np.nan, 1]], np.float32)}
        with pytest.raises(
            OpenwaferError, match=rf"1 of the 4 values of {first} are no numbers .* at \(1, 0\)"
        ):
            kernel(**wrong)


def test_a_plan_of_sums_refuses_what_one_of_a_broadcast_moves() -> None:
    nothing = np.full((1, 2, 1), np.nan, np.float32)
    with pytest.raises(OpenwaferError, match="2 of the 2 values of values are no numbers"):
        kernels.plan_collective("reduce", (1, 2), 1).run(nothing)


def test_a_stencil_and_its_source_refuse_no_number() -> None:
    with pytest.raises(OpenwaferError, match="values of scale are no numbers"):
        kernels.Stencil({(0, 0): 1.0}, scale=np.full((1, 1), np.nan, np.float32))
    with pytest.raises(OpenwaferError, match="values of values of a source are no numbers"):
        kernels.Source((0, 0), np.array([np.nan], np.float32))


@pytest.mark.parametrize("name", ["between_rows", "between_columns", "between_layers", "storage"])
def test_a_list_in_fluxes_is_refused_by_its_name(name: str) -> None:
    shapes = {"between_rows": (0, 1, 2), "between_columns": (1, 0, 2), "between_layers": (1, 1, 1)}
    given: dict[str, Any] = {one: np.ones(shape, np.float32) for one, shape in shapes.items()}
    given["storage"] = np.ones((1, 1, 2), np.float32)
    with pytest.raises(OpenwaferError, match=f"{name} is of the type list"):
        kernels.Fluxes(**given | {name: [1.0]})


def planners() -> dict[str, Kernel]:
    """Functions that plan on a rectangle."""
    offered = {name: getattr(kernels, name) for name in kernels.__all__ if "plan_" in name}
    return {
        name: one for name, one in offered.items() if "size" in inspect.signature(one).parameters
    }


@pytest.mark.parametrize(("name", "plan"), planners().items())
def test_a_plan_takes_the_numbers_that_it_needs(name: str, plan: Kernel) -> None:
    parameters = inspect.signature(plan).parameters
    given: dict[str, Any] = dict.fromkeys(parameters) | {"arch": "wse2"}
    given |= {
        name: (2,) * len(get_args(one.annotation))
        for name, one in parameters.items()
        if get_origin(one.annotation) is tuple
    }
    with pytest.raises(OpenwaferError, match=r"size is \(2, 2, 2\); a kernel takes rows and"):
        plan(**given | {"size": (2, 2, 2)})
    if "shape" in given and name != "plan_stencil":
        with pytest.raises(OpenwaferError, match=r"shape is \(4,\); [23] whole numbers"):
            plan(**given | {"shape": (4,)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": None}, "size is None; a kernel takes rows and columns"),
        ({"shape": None}, "shape is None; 3 whole numbers are needed"),
        ({"shape": (8.5, 8, 8)}, r"shape is \(8.5, 8, 8\); 3 whole numbers"),
        ({"shape": ("8", 8, 8)}, r"shape is \('8', 8, 8\); 3 whole numbers"),
    ],
)
def test_none_and_what_is_no_whole_number_are_no_sizes(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_gemm(**{"shape": (8, 8, 8), "size": (2, 2)} | given)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((1, 1), [("a", np.float32)]), r"of \[\('a', '<f4'\)\]"),
        (np.array([["1"]]), "of <U1"),
        (np.array([[None]]), "of object"),
        (np.array([["2026-11-29"]], "M8[D]"), r"of datetime64\[D\]"),
        (scipy.sparse.csr_array(np.ones((1, 1))).todense().view(np.matrix), "a matrix of numpy's"),
    ],
)
def test_arrays_of_no_numbers_are_refused_by_name(values: Any, words: str) -> None:
    with pytest.raises(OpenwaferError, match=f"matrix is {words}; a kernel takes arrays of num"):
        kernels.compress(values, (1, 1), 0.0)


def numbers_of(door: Kernel) -> dict[str, tuple[Any, ...]]:
    """Parameters that are one number, with the types that each may have."""
    kinds = {one.name: one.annotation for one in inspect.signature(door).parameters.values()}
    options = {
        name: get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        for name, kind in kinds.items()
    }
    return {name: some for name, some in options.items() if int in some or float in some}


def doors() -> dict[str, Kernel]:
    """Functions, methods of plans, and descriptions that take a number."""
    offered = {name: getattr(kernels, name) for name in kernels.__all__}
    found = {name: one for name, one in offered.items() if inspect.isfunction(one)}
    found |= {name: offered[name] for name in ("Stencil", "Streaming", "Tree")}
    found |= {
        f"{name}.{method}": getattr(one, method)
        for name, one in offered.items()
        for method in ("run", "cycles", "error_bound", "applied")
        if inspect.isfunction(getattr(one, method, None)) and name != "Tree"
    }
    return {name: one for name, one in found.items() if numbers_of(one)}


def any_operand(parameter: inspect.Parameter) -> Any:
    """What a parameter may be, if it is a number, some numbers, an array or coefficients."""
    kind = parameter.annotation
    if get_origin(kind) is tuple:
        return (2,) * len(get_args(kind))
    if "ndarray" in str(kind):
        return np.ones((2, 2), np.float32)
    return {(0, 0): 1.0} if parameter.name == "coefficients" else 2


NO_NUMBERS = (np.nan, True, "5", 1j, [2], np.ones(1), None)


@pytest.mark.parametrize("door", doors().values(), ids=doors().keys())
def test_what_is_no_number_is_refused_by_its_name(door: Kernel) -> None:
    parameters = inspect.signature(door).parameters.values()
    given = {one.name: any_operand(one) for one in parameters}
    for number, options in numbers_of(door).items():
        kind, more = ("whole", 500.5) if int in options else ("finite", np.inf)
        for wrong in (more, *NO_NUMBERS[: len(NO_NUMBERS) - (type(None) in options)]):
            with pytest.raises(OpenwaferError) as raised:
                door(**given | {number: wrong})
            assert f"{number} is {wrong!r}; a {kind} number is needed" in str(raised.value)


def test_all_doors_with_a_number_are_looked_at() -> None:
    assert {"axpy", "plan_sort", "compress", "StencilPlan.cycles", "Tree"} <= doors().keys()


@pytest.mark.parametrize(
    ("shape", "factor", "words"),
    [
        ((2.5, 2, 2), 1.0, r"shape is \(2.5, 2, 2\); whole numbers are needed"),
        ((2, 2), "1", r"the coefficient of \(0, 1\) is '1'; a finite number"),
        ((2, 2), 1e39, "not all are finite as float32"),
    ],
)
def test_a_stencil_and_its_array_are_of_numbers(
    shape: tuple[int, ...], factor: Any, words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_stencil(kernels.Stencil({(0, 1): factor}), shape)


def test_an_offset_is_whole() -> None:
    with pytest.raises(OpenwaferError, match=r"a number of offset \(0, 0.5\) is 0.5; a whole"):
        kernels.Stencil({(0, 0.5): 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize(("alpha", "most"), [(1e39, "3.40282e[+]38"), (7e4, "65504")])
def test_a_factor_beyond_the_elements_is_refused(alpha: float, most: str) -> None:
    x = np.ones(1, np.float32 if alpha > 1e38 else np.float16)
    with pytest.raises(OpenwaferError, match=f"alpha is .* which ends at {most}"):
        kernels.scal(alpha, x, (1, 1))


@pytest.mark.parametrize("tolerance", [-0.1, 2, 1e200])
def test_a_tolerance_is_a_share(tolerance: float) -> None:
    matrix, given = kernels.Stencil({(0, 0, 0): 1.0}), np.ones((1, 1, 1), np.float32)
    with pytest.raises(OpenwaferError, match="give a share of the first residual's norm, 0 to 1"):
        kernels.bicgstab(matrix, given, 1, tolerance)


class Watched(np.ndarray[Any, Any]):
    """An array that counts how often it was looked through for NaN."""

    count = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        self.count += ufunc is np.isnan
        return getattr(ufunc, method)(*(np.asarray(one) for one in given), **options)


@takes_operands
def computed(x: NDArray[Any]) -> None:
    """As a kernel's plan does."""


@moves_operands
def moved(x: NDArray[Any]) -> None:
    """What moves bits calls what computes."""
    computed(x)


@takes_operands
def computed_twice(x: NDArray[Any], y: NDArray[Any]) -> None:
    """As a kernel calls its plan: with its own operands, and others."""
    computed(x)
    moved(y.copy())
    computed(x)


def test_an_array_is_looked_through_once_a_call() -> None:
    x, y = np.ones(2).view(Watched), np.ones(2).view(Watched)
    computed_twice(x, y)
    moved(y)
    assert (x.count, y.count) == (1, 2)
    computed_twice(x, y)
    assert (x.count, y.count) == (2, 3)


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
