"""How torch multiplies 32-bit floats in a run, and what that is worth on this processor."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import MatmulPrecision, Precision, Weights
from openwafer.training.sparsity.kernels.processor import peak_flops
from openwafer.training.stream.stream_options import FABRIC

FEW_OF_PEAK: Final = 0.6
"""Share of the peak below which a dense product leaves something to gain."""
LEAST_GAIN: Final = 1.2
ROUNDED: Final = 8
"""Times as far off as fp32 is a product whose factors were rounded."""
SHAPE: Final = (256, 1024, 1024)
TRIES: Final = 5


def multiplies_floats_on_cpu(config: RunConfig) -> bool:
    """Whether products of a run are those of 32-bit floats on the CPU."""
    has_floats = config.precision is Precision.FP32 and config.weights is Weights.FP32
    return computes_on(config) == "cpu" and has_floats


def computes_on(config: RunConfig) -> str:
    """The device of a run for torch, such as cpu or cuda:1."""
    if config.streaming.device == FABRIC:
        return "cpu"
    if config.streaming.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.streaming.device


@contextmanager
def multiplying(precision: MatmulPrecision) -> Iterator[None]:
    """Context in which this process multiplies so, as a plain loop does with the same setting.

    Raises:
        OpenwaferError: ``matmul-precision`` where the program has set another one, which the run
            would drop.
    """
    before = torch.get_float32_matmul_precision()
    if before not in (MatmulPrecision.HIGHEST, precision):
        raise error(
            "matmul-precision",
            f"this program has set torch's matmul precision to {before}, and the run's config says "
            f"{precision}",
            help=f"write matmul_precision: {before} in the config, or do not set it",
        )
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class ProductRate:
    """Dense fp32 products of one thread.

    Attributes:
        flops: a second.
        off: the largest error, as a share of the largest number that comes out.
    """

    flops: float
    off: float


@functools.cache
def product_rate(precision: MatmulPrecision) -> ProductRate:
    """The rate of a product of 256 tokens with a weight of 1024 x 1024; takes some milliseconds."""
    rows, inner, columns = SHAPE
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, inner, generator=generator) for n in (rows, columns))
    threads, before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(precision)
    try:
        found, seconds = _timed(x, weight)
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_num_threads(threads)
    exact = x.double() @ weight.double().T
    off = (found - exact).abs().max() / exact.abs().max()
    return ProductRate(2 * rows * inner * columns / seconds, off.item())


def _timed(x: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """The product, and the least seconds of the processor that it took."""
    seconds = []
    for _ in range(1 + TRIES):
        start = time.thread_time()
        found = x @ weight.T
        seconds.append(time.thread_time() - start)
    return found, min(seconds[1:])


def measured_remark(config: RunConfig) -> Diagnostic | None:
    """:func:`remark_on_products` by the rates of this processor, where a run multiplies on it."""
    precision = config.matmul_precision
    if precision is MatmulPrecision.MEDIUM or not multiplies_floats_on_cpu(config):
        return None
    own, medium = product_rate(precision), product_rate(MatmulPrecision.MEDIUM)
    return remark_on_products(own, medium, peak_flops())


def remark_on_products(own: ProductRate, medium: ProductRate, peak: float) -> Diagnostic | None:
    """Where dense products are far from the peak, and `medium` is faster: by how much."""
    gain = medium.flops / own.flops
    if own.flops > FEW_OF_PEAK * peak or gain < LEAST_GAIN:
        return None
    is_rounded = medium.off > ROUNDED * own.off
    how = "rounds their factors to fewer bits and makes" if is_rounded else "makes"
    return Diagnostic(
        Severity.WARNING,
        "matmul-precision",
        f"dense products run at {own.flops / peak:.0%} of this processor's peak "
        f"({own.flops / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s on one thread)",
        help=f"matmul_precision: medium {how} them {gain:.1f} times as fast, with a largest error "
        f"of {medium.off:.0e} beside {own.off:.0e}",
    )
