"""Backward passes of products whose weights stream in: gradients of features, and of weights."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS
from openwafer.sdk.door.compiled import QUIET, Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.fabric import Edge
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.operations import chain_cycles, of_two, that_meet
from openwafer.sdk.kernels.precision import bound_of_products
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_memory,
    check_operand,
    compiled,
    cycles_of,
)
from openwafer.sdk.kernels.streamed import StreamedPlan
from openwafer.sdk.kernels.vectors import fold_cycles
from openwafer.sdk.kernels.weight_streams import Words

_DEPTH: Final = 4
"""Outputs whose gradients may wait on a PE, a power of two."""
_OUT_COLORS: Final = range(4, 20)
"""On which gradients of weights leave, one for each row of a port."""
_SUM_WORDS: Final = 2
"""Of memory, of a sum of f32."""
_DELTA_CYCLES: Final = 150
"""Of two tasks' instructions for an output, of a turn and of what they wait for."""
_ASKED_CYCLES: Final = 15
"""Of a task's instructions for the gradient of a weight."""
_GRADIENT_CYCLES: Final = 200
"""As those of the delta pass, with the task that hears of what was sent."""


@takes_operands
def streamed_delta(plan: StreamedPlan, dy: NDArray[Any], *, check: bool = False) -> Result:
    """DX = W^T DY on the simulated wafer: (features, tokens) in float32.

    Weights stream in as in the forward pass. Broadcast and reduction have changed places: gradients
    of an output go to all PEs of a column, and sums stay with the features. The error of each
    element is at most that of :func:`delta_bound`.

    Args:
        plan: of the product, with a fold of 1.
        dy: (outputs, tokens) of the plan's precision, finite.
        check: look for mistakes of the program.

    Raises:
        OpenwaferError: it has another shape or type, or is not finite, or the plan has folds, or
            a PE has no room for it.
    """
    _check_dy(plan, dy)
    _check_pass(plan, is_gradient=False)
    program = compiled("streamed", plan.arch, _params(plan, is_gradient=False))
    with program.run(replace(QUIET, edge=plan.edge), check=check) as run:
        run["DY"] = plan.spread(dy, plan.streams.by_outputs)
        run.launch("main")
        _send(plan, run, plan.streams.words(plan.streams.matrix.data, plan.places(_SUM_WORDS)))
        dx = plan.collected(run["DX"], plan.streams.by_features)
        return Result(dx, cycles_of(run, plan.arch))


@takes_operands
def streamed_gradient(
    plan: StreamedPlan, x: NDArray[Any], dy: NDArray[Any], *, check: bool = False
) -> Result:
    """Gradients of the weights: DY X^T at the places of W, float32, one for each weight.

    They are in the order of W's rows and of the columns in each. Places of weights stream in, and
    gradients leave by the same ports. The error of each is at most that of :func:`gradient_bound`.

    Args:
        plan: of the product, with a fold of 1.
        x: (features, tokens) of the plan's precision, finite.
        dy: (outputs, tokens) of the same, finite.
        check: look for mistakes of the program.

    Raises:
        OpenwaferError: they have another shape or type, or are not finite, or the plan has folds or
            too many rows for a port, or a PE has no room for them.
    """
    check_operand("X", x, plan.shape[1:], plan.precision)
    check_finite("X", x)
    _check_dy(plan, dy)
    _check_pass(plan, is_gradient=True)
    streams = plan.streams
    colors = tuple(_OUT_COLORS[: streams.band])
    ports = tuple(replace(port, out=colors[: streams.rows - port.y]) for port in plan.edge.ports)
    program = compiled("streamed", plan.arch, _params(plan, is_gradient=True))
    with program.run(replace(QUIET, edge=Edge(ports)), check=check) as run:
        run["X"] = plan.spread(x, streams.by_features)
        run["DY"] = plan.spread(dy, streams.by_outputs)
        run.launch("main")
        _send(plan, run, streams.place_words(plan.places(plan.element_words)))
        values = np.zeros(streams.matrix.nnz, np.float32)
        for row in range(streams.rows):
            number, in_band = divmod(row, streams.band)
            own = streams.of_row(row)
            taken = run.receive_port(
                ports[number].name, len(own), np.float32, color=colors[in_band]
            )
            values[own] = taken
        return Result(values, cycles_of(run, plan.arch))


def delta_cycles(plan: StreamedPlan) -> int:
    """Predicted cycles of :func:`streamed_delta`."""
    of_weight = plan.weight_cycles
    if plan.precision.is_widened:
        # Sums of two a beat are updated in place.
        of_weight += chain_cycles(that_meet("fmachs"), plan.tokens, plan.arch)
        of_weight -= chain_cycles(of_two("fmachs"), plan.tokens, plan.arch)
    return plan.pass_cycles(of_weight, plan.tokens + _DELTA_CYCLES)


def gradient_cycles(plan: StreamedPlan) -> int:
    """Predicted cycles of :func:`streamed_gradient`."""
    timing = GENERATIONS[plan.arch].timing
    of_weight = _ASKED_CYCLES + timing.switch_cycles
    operations = of_two("fmuls")
    if plan.precision.is_widened:
        operations += of_two("fh2s")
    # Each waits for the results of the one before.
    of_weight += chain_cycles(operations, plan.tokens, plan.arch)
    of_weight += len(operations) * timing.drain_cycles
    of_weight += fold_cycles(plan.tokens, "fadds", plan.arch)
    return plan.pass_cycles(of_weight, plan.tokens + _GRADIENT_CYCLES)


@takes_operands
def delta_bound(plan: StreamedPlan, dy: NDArray[Any]) -> NDArray[np.float64]:
    """Bound of the error of :func:`streamed_delta`: (features, tokens).

    Each product goes through a rounding for each weight of its feature at most.
    """
    matrix = plan.streams.matrix
    most = int(np.bincount(matrix.indices, minlength=1).max())
    return bound_of_products(matrix.T, dy, most, most, plan.precision.sums)


@takes_operands
def gradient_bound(plan: StreamedPlan, x: NDArray[Any], dy: NDArray[Any]) -> NDArray[np.float64]:
    """Bound of the error of :func:`streamed_gradient`: one for each weight.

    Each product is rounded, and goes through a sum for each token of a PE and each column at most.
    """
    roundings = 1 + plan.tokens + plan.columns
    whole = bound_of_products(dy, x.T, roundings, plan.shape[2], plan.precision.sums)
    entries = plan.streams.matrix.tocoo()
    bound: NDArray[np.float64] = whole[entries.row, entries.col]
    return bound


def _params(plan: StreamedPlan, *, is_gradient: bool) -> dict[str, Param]:
    return {**plan.params, "depth": _DEPTH, "has_forward": False, "has_gradient": is_gradient}


def _send(plan: StreamedPlan, run: Run, words: Words) -> None:
    for port, (entering, flags) in zip(plan.edge.ports, plan.streams.of_ports(words), strict=True):
        run.send_port(port.name, entering, is_control=flags)


def _check_dy(plan: StreamedPlan, dy: NDArray[Any]) -> None:
    check_operand("DY", dy, (plan.shape[0], plan.shape[2]), plan.precision)
    check_finite("DY", dy)


def _check_pass(plan: StreamedPlan, *, is_gradient: bool) -> None:
    if plan.fold != 1:
        raise error(
            "kernel-fold",
            f"the plan has folds of {plan.fold}; backward passes have folds of 1",
            help="plan with streaming=Streaming(fold=1)",
        )
    if is_gradient and plan.streams.band > len(_OUT_COLORS):
        least = -(-plan.streams.rows // len(_OUT_COLORS))
        raise error(
            "kernel-ports",
            f"a port has {plan.streams.band} rows; gradients of {len(_OUT_COLORS)} leave by one",
            help=f"give {least} ports or more",
        )
    check_memory(_memory_bytes(plan, is_gradient=is_gradient), "a backward pass")


def _memory_bytes(plan: StreamedPlan, *, is_gradient: bool) -> int:
    """Bytes of a PE's 48 KB, with those that are kept for code."""
    element = plan.precision.given.itemsize
    panels = plan.own_outputs + _DEPTH
    wide = 2 if is_gradient and plan.precision.is_widened else 1
    resident = plan.features * (element if is_gradient else 4)
    of_token = resident + panels * element + 4 * wide
    return plan.tokens * of_token + (8 * plan.features if is_gradient else 0) + CODE_BYTES
