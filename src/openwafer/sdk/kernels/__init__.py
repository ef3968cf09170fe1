"""Kernels of the wafer as Python functions: numpy arrays in, arrays out, cycles beside.

Each kernel has a plan, made before anything is compiled, and runs on any rectangle of PEs of both
generations. Its CSL is in the standard library as modules ``<kernels/...>``.
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.sdk.kernels.activation_functions import (
        ActivationGradients,
        ActivationPlan,
        gelu,
        gelu_erf,
        plan_activation,
        silu,
        swiglu,
    )
    from openwafer.sdk.kernels.batched_product import (
        BatchedGemmPlan,
        batched_gemm,
        plan_batched_gemm,
    )
    from openwafer.sdk.kernels.causal_attention import (
        AttentionGradients,
        AttentionPlan,
        AttentionResult,
        attention,
        plan_attention,
    )
    from openwafer.sdk.kernels.collectives import (
        CollectivePlan,
        all_reduce,
        broadcast,
        plan_collective,
        reduce,
    )
    from openwafer.sdk.kernels.counting import HistogramPlan, histogram, plan_histogram
    from openwafer.sdk.kernels.embeddings import EmbeddingPlan, embedding, plan_embedding
    from openwafer.sdk.kernels.factorization import (
        FactorizationPlan,
        cholesky,
        lu,
        plan_factorization,
    )
    from openwafer.sdk.kernels.fourier import FftPlan, fft, plan_fft
    from openwafer.sdk.kernels.gathering import GatherPlan, gather, plan_gather, scatter
    from openwafer.sdk.kernels.losses import (
        CrossEntropy,
        CrossEntropyPlan,
        cross_entropy,
        plan_cross_entropy,
    )
    from openwafer.sdk.kernels.low_rank import (
        LowRankTiles,
        TlrMvmPlan,
        compress,
        plan_tlr_mvm,
        tlr_mvm,
    )
    from openwafer.sdk.kernels.matrix_matrix import GemmPlan, gemm, plan_gemm
    from openwafer.sdk.kernels.matrix_vector import GemvPlan, gemv, plan_gemv
    from openwafer.sdk.kernels.norms import (
        NormGradients,
        NormPlan,
        NormResult,
        layer_norm,
        plan_norm,
        rms_norm,
    )
    from openwafer.sdk.kernels.precision import Precision
    from openwafer.sdk.kernels.running import Result, profiled
    from openwafer.sdk.kernels.sampled_product import (
        SddmmPlan,
        SparseResult,
        plan_sddmm,
        sddmm,
    )
    from openwafer.sdk.kernels.scanning import ScanPlan, plan_scan, scan
    from openwafer.sdk.kernels.solvers import (
        Fluxes,
        Solution,
        SolverPlan,
        bicgstab,
        conjugate_gradients,
        plan_solver,
        power_method,
    )
    from openwafer.sdk.kernels.sorting import SortPlan, plan_sort, sort
    from openwafer.sdk.kernels.sparse_vector import SpmvPlan, plan_spmv, spmm, spmv
    from openwafer.sdk.kernels.star import Source, Stencil
    from openwafer.sdk.kernels.stencils import StencilPlan, plan_stencil, stencil
    from openwafer.sdk.kernels.streamed import (
        StreamedPlan,
        Streaming,
        plan_streamed,
        streamed_gemm,
    )
    from openwafer.sdk.kernels.streamed_backward import (
        delta_bound,
        delta_cycles,
        gradient_bound,
        gradient_cycles,
        streamed_delta,
        streamed_gradient,
    )
    from openwafer.sdk.kernels.transposition import TransposePlan, plan_transpose, transpose
    from openwafer.sdk.kernels.trees import Shape, Tree
    from openwafer.sdk.kernels.triangular import TriangularPlan, plan_triangular, trsm
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
    "ActivationGradients",
    "ActivationPlan",
    "AttentionGradients",
    "AttentionPlan",
    "AttentionResult",
    "BatchedGemmPlan",
    "CollectivePlan",
    "CrossEntropy",
    "CrossEntropyPlan",
    "EmbeddingPlan",
    "FactorizationPlan",
    "FftPlan",
    "Fluxes",
    "GatherPlan",
    "GemmPlan",
    "GemvPlan",
    "HistogramPlan",
    "LowRankTiles",
    "NormGradients",
    "NormPlan",
    "NormResult",
    "Precision",
    "Result",
    "ScanPlan",
    "SddmmPlan",
    "Shape",
    "Solution",
    "SolverPlan",
    "SortPlan",
    "Source",
    "SparseResult",
    "SpmvPlan",
    "Stencil",
    "StencilPlan",
    "StreamedPlan",
    "Streaming",
    "TlrMvmPlan",
    "TransposePlan",
    "Tree",
    "TriangularPlan",
    "VectorPlan",
    "all_reduce",
    "asum",
    "attention",
    "axpy",
    "batched_gemm",
    "bicgstab",
    "broadcast",
    "cholesky",
    "compress",
    "conjugate_gradients",
    "cross_entropy",
    "delta_bound",
    "delta_cycles",
    "dot",
    "embedding",
    "fft",
    "gather",
    "gelu",
    "gelu_erf",
    "gemm",
    "gemv",
    "gradient_bound",
    "gradient_cycles",
    "histogram",
    "layer_norm",
    "lu",
    "nrm2",
    "plan_activation",
    "plan_attention",
    "plan_batched_gemm",
    "plan_collective",
    "plan_cross_entropy",
    "plan_embedding",
    "plan_factorization",
    "plan_fft",
    "plan_gather",
    "plan_gemm",
    "plan_gemv",
    "plan_histogram",
    "plan_norm",
    "plan_scan",
    "plan_sddmm",
    "plan_solver",
    "plan_sort",
    "plan_spmv",
    "plan_stencil",
    "plan_streamed",
    "plan_tlr_mvm",
    "plan_transpose",
    "plan_triangular",
    "plan_vector",
    "power_method",
    "profiled",
    "reduce",
    "rms_norm",
    "scal",
    "scan",
    "scatter",
    "sddmm",
    "silu",
    "sort",
    "spmm",
    "spmv",
    "stencil",
    "streamed_delta",
    "streamed_gemm",
    "streamed_gradient",
    "swiglu",
    "tlr_mvm",
    "transpose",
    "trsm",
]

# Loaded when first used: the simulator takes a second.
_PLACES: Final = MappingProxyType(
    {
        **dict.fromkeys(("ActivationGradients", "ActivationPlan"), "activation_functions"),
        **dict.fromkeys(
            ("gelu", "gelu_erf", "plan_activation", "silu", "swiglu"), "activation_functions"
        ),
        **dict.fromkeys(("AttentionGradients", "AttentionPlan"), "causal_attention"),
        **dict.fromkeys(("AttentionResult", "attention", "plan_attention"), "causal_attention"),
        **dict.fromkeys(("CrossEntropy", "CrossEntropyPlan"), "losses"),
        **dict.fromkeys(("EmbeddingPlan", "embedding", "plan_embedding"), "embeddings"),
        **dict.fromkeys(("cross_entropy", "plan_cross_entropy"), "losses"),
        **dict.fromkeys(
            ("BatchedGemmPlan", "batched_gemm", "plan_batched_gemm"), "batched_product"
        ),
        **dict.fromkeys(("CollectivePlan", "plan_collective"), "collectives"),
        **dict.fromkeys(("all_reduce", "broadcast", "reduce"), "collectives"),
        **dict.fromkeys(("Fluxes", "Solution", "SolverPlan"), "solvers"),
        **dict.fromkeys(("bicgstab", "conjugate_gradients", "power_method"), "solvers"),
        "plan_solver": "solvers",
        **dict.fromkeys(("FactorizationPlan", "plan_factorization"), "factorization"),
        **dict.fromkeys(("cholesky", "lu"), "factorization"),
        **dict.fromkeys(("FftPlan", "fft", "plan_fft"), "fourier"),
        **dict.fromkeys(("GatherPlan", "gather", "plan_gather", "scatter"), "gathering"),
        **dict.fromkeys(("GemmPlan", "gemm", "plan_gemm"), "matrix_matrix"),
        **dict.fromkeys(("GemvPlan", "gemv", "plan_gemv"), "matrix_vector"),
        **dict.fromkeys(("LowRankTiles", "TlrMvmPlan", "compress"), "low_rank"),
        **dict.fromkeys(("plan_tlr_mvm", "tlr_mvm"), "low_rank"),
        **dict.fromkeys(("NormGradients", "NormPlan", "NormResult"), "norms"),
        **dict.fromkeys(("layer_norm", "plan_norm", "rms_norm"), "norms"),
        "Precision": "precision",
        **dict.fromkeys(("Result", "profiled"), "running"),
        **dict.fromkeys(("SddmmPlan", "SparseResult", "plan_sddmm", "sddmm"), "sampled_product"),
        **dict.fromkeys(("SpmvPlan", "plan_spmv", "spmm", "spmv"), "sparse_vector"),
        **dict.fromkeys(("Source", "Stencil"), "star"),
        **dict.fromkeys(("StencilPlan", "plan_stencil", "stencil"), "stencils"),
        **dict.fromkeys(("StreamedPlan", "Streaming"), "streamed"),
        **dict.fromkeys(("plan_streamed", "streamed_gemm"), "streamed"),
        **dict.fromkeys(("delta_bound", "gradient_bound"), "streamed_backward"),
        **dict.fromkeys(("delta_cycles", "gradient_cycles"), "streamed_backward"),
        **dict.fromkeys(("streamed_delta", "streamed_gradient"), "streamed_backward"),
        **dict.fromkeys(("TransposePlan", "plan_transpose", "transpose"), "transposition"),
        **dict.fromkeys(("ScanPlan", "plan_scan", "scan"), "scanning"),
        **dict.fromkeys(("HistogramPlan", "histogram", "plan_histogram"), "counting"),
        **dict.fromkeys(("SortPlan", "plan_sort", "sort"), "sorting"),
        **dict.fromkeys(("Shape", "Tree"), "trees"),
        **dict.fromkeys(("TriangularPlan", "plan_triangular", "trsm"), "triangular"),
        **dict.fromkeys(("VectorPlan", "plan_vector"), "vectors"),
        **dict.fromkeys(("asum", "axpy", "dot", "nrm2", "scal"), "vectors"),
    }
)

__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
