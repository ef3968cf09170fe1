"""Predicted cycles of products whose activations rest, here and on other rectangles of PEs."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.resident_plan import (
    DEPTH,
    OUT_COLORS,
    Pass,
    ResidentPlan,
    Weights,
)
from openwafer.sdk.kernels.streamed import StreamedPlan
from openwafer.sdk.kernels.streamed_backward import delta_cycles, gradient_cycles
from openwafer.sdk.kernels.weight_streams import WeightStreams

_MORE_CYCLES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"forward": (7, 48), "delta": (7, 41), "gradient": (15, 58)}
)
"""Of a weight, and of an output that has some: a program of all passes branches by the pass."""


@lru_cache(maxsize=512)
def product_cycles(weights: Weights, plan: ResidentPlan) -> Mapping[str, int]:
    """Predicted cycles of each pass over a layer's weights, by its name.

    They are those of the PEs, or of the ports where these take longer.
    """
    own, alone = (_streamed(one, plan) for one in (weights.streams, weights.without_bias))
    rate = own.edge.rate(own.edge.ports[0], own.arch, is_into=True)
    places = ceil(own.streams.num_wavelets(1) / rate)
    return {
        "forward": max(own.compute_cycles + _more(own, "forward"), own.stream_cycles),
        "delta": max(delta_cycles(alone) + _more(alone, "delta"), alone.stream_cycles),
        "gradient": max(gradient_cycles(own) + _more(own, "gradient"), places),
    }


def _more(plan: StreamedPlan, name: str) -> int:
    of_weight, of_output = _MORE_CYCLES[name]
    with_weights = int((plan.streams.counts > 0).sum(axis=1).max())
    return plan.pass_cycles(of_weight, 0) + of_output * with_weights


def _streamed(streams: WeightStreams, plan: ResidentPlan) -> StreamedPlan:
    """The plan of the same product by itself."""
    shape = (*streams.matrix.shape, plan.num_tokens)
    size = plan.rows, plan.columns, 1, plan.num_ports, plan.tokens, DEPTH
    return StreamedPlan(shape, *size, plan.arch, streams.precision, streams)


def on_rectangle(
    passes: Sequence[tuple[Weights, str, int]],
    size: tuple[int, int],
    arch: Arch,
    tokens: Sequence[int],
) -> list[Pass]:
    """What passes over weights are predicted to take on a rectangle, for each number of tokens.

    Args:
        passes: weights, the pass over them, and how often it is done.
        size: rows and columns of PEs.
        arch: the generation.
        tokens: of a PE.
    """
    rows, columns = size
    ports = ceil(rows / len(OUT_COLORS))
    precision = passes[0][0].streams.precision if passes else Precision.F32
    plans = [
        ResidentPlan(rows, columns, of_pe * columns, ports, 1, arch, precision=precision)
        for of_pe in tokens
    ]
    dealt = [
        (Weights.of(one.without_bias.matrix, plans[0], has_bias=one.has_bias), name, count)
        for one, name, count in passes
    ]
    return [
        Pass(
            "products",
            sum(count * product_cycles(one, plan)[name] for one, name, count in dealt),
            multiply_adds=sum(
                count * one.of_pass(name).matrix.nnz * plan.num_tokens for one, name, count in dealt
            ),
        )
        for plan in plans
    ]
