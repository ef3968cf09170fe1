"""Kernels of the wafer as Python functions: numpy arrays in, arrays out, cycles beside.

Each kernel has a plan, made before anything is compiled, and runs on any rectangle of PEs of both
generations. Its CSL is in the standard library as modules ``<kernels/...>``.
"""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from openwafer.sdk.kernels.collectives import (
        CollectivePlan,
        all_reduce,
        broadcast,
        plan_collective,
        reduce,
    )
    from openwafer.sdk.kernels.factorization import (
        FactorizationPlan,
        cholesky,
        lu,
        plan_factorization,
    )
    from openwafer.sdk.kernels.matrix_matrix import GemmPlan, gemm, plan_gemm
    from openwafer.sdk.kernels.matrix_vector import GemvPlan, gemv, plan_gemv
    from openwafer.sdk.kernels.precision import Precision
    from openwafer.sdk.kernels.running import Result
    from openwafer.sdk.kernels.solvers import (
        ConjugateGradientsPlan,
        Fluxes,
        Solution,
        conjugate_gradients,
        plan_conjugate_gradients,
    )
    from openwafer.sdk.kernels.sparse_vector import SpmvPlan, plan_spmv, spmv
    from openwafer.sdk.kernels.stencils import Source, Stencil, StencilPlan, plan_stencil, stencil
    from openwafer.sdk.kernels.trees import Shape, Tree
    from openwafer.sdk.kernels.vectors import (
        VectorPlan,
        asum,
        axpy,
        dot,
        nrm2,
        plan_vector,
        scal,
    )

__all__ = [
    "CollectivePlan",
    "ConjugateGradientsPlan",
    "FactorizationPlan",
    "Fluxes",
    "GemmPlan",
    "GemvPlan",
    "Precision",
    "Result",
    "Shape",
    "Solution",
    "Source",
    "SpmvPlan",
    "Stencil",
    "StencilPlan",
    "Tree",
    "VectorPlan",
    "all_reduce",
    "asum",
    "axpy",
    "broadcast",
    "cholesky",
    "conjugate_gradients",
    "dot",
    "gemm",
    "gemv",
    "lu",
    "nrm2",
    "plan_collective",
    "plan_conjugate_gradients",
    "plan_factorization",
    "plan_gemm",
    "plan_gemv",
    "plan_spmv",
    "plan_stencil",
    "plan_vector",
    "reduce",
    "scal",
    "spmv",
    "stencil",
]

# Loaded when first used: the simulator takes a second.
_PLACES: Final = MappingProxyType(
    {
        **dict.fromkeys(("CollectivePlan", "plan_collective"), "collectives"),
        **dict.fromkeys(("all_reduce", "broadcast", "reduce"), "collectives"),
        **dict.fromkeys(("ConjugateGradientsPlan", "Fluxes", "Solution"), "solvers"),
        **dict.fromkeys(("conjugate_gradients", "plan_conjugate_gradients"), "solvers"),
        **dict.fromkeys(("FactorizationPlan", "plan_factorization"), "factorization"),
        **dict.fromkeys(("cholesky", "lu"), "factorization"),
        **dict.fromkeys(("GemmPlan", "gemm", "plan_gemm"), "matrix_matrix"),
        **dict.fromkeys(("GemvPlan", "gemv", "plan_gemv"), "matrix_vector"),
        "Precision": "precision",
        "Result": "running",
        **dict.fromkeys(("SpmvPlan", "plan_spmv", "spmv"), "sparse_vector"),
        **dict.fromkeys(("Source", "Stencil", "StencilPlan"), "stencils"),
        **dict.fromkeys(("plan_stencil", "stencil"), "stencils"),
        **dict.fromkeys(("Shape", "Tree"), "trees"),
        **dict.fromkeys(("VectorPlan", "plan_vector"), "vectors"),
        **dict.fromkeys(("asum", "axpy", "dot", "nrm2", "scal"), "vectors"),
    }
)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
