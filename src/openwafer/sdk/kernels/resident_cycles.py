"""Predicted cycles of products whose activations rest, here and on other rectangles of PEs."""

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Final
from weakref import WeakKeyDictionary

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.resident_plan import (
    DEPTH,
    Pass,
    ResidentPlan,
    Weights,
    least_ports,
)
from openwafer.sdk.kernels.streamed import StreamedPlan
from openwafer.sdk.kernels.streamed_backward import delta_cycles, gradient_cycles
from openwafer.sdk.kernels.weight_streams import WeightStreams

_MORE_CYCLES: Final[Mapping[str, Sequence[tuple[int, int]]]] = MappingProxyType(
    {
        "forward": ((11, 8), (11, 8)),
        "delta": ((11, 21), (11, 30)),
        "gradient": ((18, 18), (8, 29)),
    }
)
"""Of a weight and of an output, in f32 and in widened sums: a program of all passes branches by the
pass."""

_KNOWN: Final[WeakKeyDictionary[Weights, dict[ResidentPlan, Mapping[str, int]]]] = (
    WeakKeyDictionary()
)
"""Predictions, as long as somebody has the weights that they are for."""


def product_cycles(weights: Weights, plan: ResidentPlan) -> Mapping[str, int]:
    """Predicted cycles of each pass over a layer's weights, by its name.

    They are those of the PEs, or of the ports where these take longer.
    """
    known = _KNOWN.setdefault(weights, {})
    if plan not in known:
        known[plan] = _cycles(weights, plan)
    return known[plan]


def _cycles(weights: Weights, plan: ResidentPlan) -> Mapping[str, int]:
    own, alone = (_streamed(one, plan) for one in (weights.streams, weights.without_bias))
    rate = own.edge.rate(own.edge.ports[0], own.arch, is_into=True)
    places = ceil(own.streams.num_wavelets(1) / rate)
    return {
        "forward": max(round(own.compute_cycles + _more(own, "forward")), own.stream_cycles),
        "delta": max(round(delta_cycles(alone) + _more(alone, "delta")), alone.stream_cycles),
        "gradient": max(round(gradient_cycles(own) + _more(own, "gradient")), places),
    }


def _more(plan: StreamedPlan, name: str) -> float:
    return plan.pass_cycles(*_MORE_CYCLES[name][plan.precision.is_widened])


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
    ports = least_ports(rows)
    precision = passes[0][0].streams.precision if passes else Precision.F32
    plans = [
        ResidentPlan(rows, columns, of_pe * columns, ports, 1, arch, precision=precision)
        for of_pe in tokens
    ]
    cycles, products = [0] * len(plans), [0] * len(plans)
    of_weights: dict[Weights, list[tuple[str, int]]] = {}
    for weights, name, count in passes:
        of_weights.setdefault(weights, []).append((name, count))
    # One after the other: of a wafer's rows a pattern takes megabytes.
    for weights, own in of_weights.items():
        alone = weights.without_bias.matrix
        dealt = Weights.of(alone, plans[0], has_bias=weights.has_bias)
        for number, plan in enumerate(plans):
            found = _cycles(dealt, plan)
            for name, count in own:
                cycles[number] += count * found[name]
                products[number] += count * dealt.of_pass(name).matrix.nnz * plan.num_tokens
    sums = zip(cycles, products, strict=True)
    return [Pass("products", taken, multiply_adds=done) for taken, done in sums]
