"""Backward passes of products whose weights stream in: gradients of features, and of weights."""

from dataclasses import replace
from math import ceil
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS
from openwafer.sdk.door.compiled import QUIET, Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.fabric import Edge
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.operations import MEETS, Operation, chain_cycles, of_one, of_two
from openwafer.sdk.kernels.precision import Precision, bound_of_products
from openwafer.sdk.kernels.products import zeros_cycles
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    Result,
    check_memory,
    check_operand,
    compiled,
    cycles_of,
)
from openwafer.sdk.kernels.sparse_tiles import Ints
from openwafer.sdk.kernels.streamed import StreamedPlan
from openwafer.sdk.kernels.trees import start_delay
from openwafer.sdk.kernels.vectors import FEW, fold_cycles
from openwafer.sdk.kernels.weight_streams import Words

_DEPTH: Final = 4
"""Outputs whose gradients may wait on a PE, a power of two."""
_OUT_COLORS: Final = range(4, 20)
"""On which gradients of weights leave, one for each row of a port."""
_SUM_WORDS: Final = 2
"""Of memory, of a sum of f32."""
_BEGIN_CYCLES: Final = 84
"""Of the launched function of a delta pass from its look at the clock on, beside its zeros."""
_WIDENED_CYCLES: Final = 3
"""More of it where sums are wider than what is given."""
_ASKING_CYCLES: Final = 69
"""The same as the first, of a gradient pass."""
_TURN_CYCLES: Final = (13, 17)
"""Of a PE whose turn it is to send: where it is the first one, and where it hears of it."""
_ARRIVED_CYCLES: Final = 54
"""Of the task that hears of an output's gradients."""
_PANEL_CYCLES: Final = 64
"""Of the task that ends an output, with what lets the next one's weights in."""
_LET_CYCLES: Final = (49, 9)
"""Of what lets weights in, in the task that hears of gradients, and less without it in the other
one: weights wait for the first ones, and for those that come after all before are done."""
_RECEIVE_CYCLES: Final = (28, 38)
"""Of an operation that receives gradients, begun in the task that hears of others, and in the one
that ends an output, where no panel was free before."""
_FULL_CYCLES: Final = 10
"""Of hearing that no panel is free."""
_HEARD_CYCLES: Final = 73
"""Until the task that hears of gradients receives others, of what they come behind."""
_LAST_CYCLES: Final = 22
"""Less behind the last output, as no other begins."""
_GIVEN_CYCLES: Final = 45
"""Of an operation that sends gradients of an output's weights."""
_SENT_CYCLES: Final = 20
"""Of the task that hears of its end."""
_DONE_CYCLES: Final = 27
"""More of it behind the last output, if that has weights."""
_NONE_CYCLES: Final = 21
"""Of finding that an output has no gradients of weights to send."""
_ASKED_CYCLES: Final = 14
"""Of a task's instructions for the gradient of a weight, beside its operations."""
_DESCRIPTOR_CYCLES: Final = 9
"""Of the descriptor of a feature's tokens, where they are made wide first."""


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
    scaling = Operation("fmacs", num_registers=1)
    if plan.precision.is_widened:
        # Sums of two a beat are updated in place.
        scaling = Operation("fmachs", num_registers=1, turns=MEETS)
    zeros = zeros_cycles(plan.features * plan.tokens, Precision.F32, plan.arch)
    begin = _BEGIN_CYCLES + zeros + (_WIDENED_CYCLES if plan.precision.is_widened else 0)
    of_weight = plan.task_cycles(scaling)
    beats = scaling.cycles(plan.tokens, plan.arch)
    panels = _panels_cycles(plan, of_weight, beats, is_gradient=False)
    wavelets = plan.streams.wavelets_of_weight
    return round(begin + _rows_cycles(plan, of_weight, panels, wavelets))


def gradient_cycles(plan: StreamedPlan) -> int:
    """Predicted cycles of :func:`streamed_gradient`."""
    timing = GENERATIONS[plan.arch].timing
    is_halved = plan.tokens > FEW
    of_weight = _ASKED_CYCLES + timing.switch_cycles + (1 + is_halved) * timing.drain_cycles
    of_weight += fold_cycles(plan.tokens, "fadds", plan.arch)
    widened = 0
    if plan.precision.is_widened:
        of_weight += _DESCRIPTOR_CYCLES + chain_cycles(of_one("fh2s"), plan.tokens, plan.arch)
        beats = chain_cycles(of_two("fmuls"), plan.tokens, plan.arch)
        wide = Operation("fh2s", num_registers=0).cycles(plan.tokens, plan.arch)
        widened = plan.streams.num_outputs * (wide + timing.drain_cycles + 1)
    else:
        beats = chain_cycles(of_one("fmuls"), plan.tokens, plan.arch)
    of_weight += beats
    sent = _GIVEN_CYCLES + _SENT_CYCLES + timing.switch_cycles
    num_sent = plan.streams.most_outputs
    taken = widened + num_sent * sent + (plan.streams.num_outputs - num_sent) * _NONE_CYCLES
    taken += _DONE_CYCLES if plan.streams.counts[:, -1].any() else 0
    others = taken + _panels_cycles(plan, of_weight, beats, is_gradient=True)
    return round(_ASKING_CYCLES + _rows_cycles(plan, of_weight, others, 1))


def _rows_cycles(plan: StreamedPlan, of_weight: float, others: float, wavelets: int) -> float:
    """Cycles of rows of PEs that wait for each other, of which other tasks are those of outputs.

    A row gets gradients of an output as soon as all have a panel for them.
    """
    of_output = others / plan.streams.num_outputs
    return plan.streams.row_cycles(of_weight, of_output, _DEPTH, wavelets)


def _panels_cycles(plan: StreamedPlan, of_weight: float, beats: int, *, is_gradient: bool) -> float:
    """Cycles of a backward pass beside its weights and its begin: of gradients along columns.

    Args:
        plan: of the product.
        of_weight: cycles of a weight.
        beats: of the operation on a feature's tokens, for which a message waits.
        is_gradient: whether gradients of weights are sent behind each output.
    """
    timing, num_outputs = GENERATIONS[plan.arch].timing, plan.streams.num_outputs
    wavelet, message = timing.wavelet_switch_cycles, timing.switch_cycles
    let, other = _LET_CYCLES
    taken = num_outputs * (_ARRIVED_CYCLES + _PANEL_CYCLES + 2 * wavelet) - _LAST_CYCLES
    taken += let + 2 * message - wavelet + LOOK_CYCLES + start_delay(plan.columns, plan.arch)
    first, heard = _TURN_CYCLES
    taken += first if plan.parts == 1 else heard + 1 + message
    # A task that begins a message is followed as one with a vector operation is.
    soon, late = (of_one + message - wavelet for of_one in _RECEIVE_CYCLES)
    own = _ARRIVED_CYCLES + _PANEL_CYCLES + 2 * wavelet + soon
    of_output = own + plan.streams.most_weights / num_outputs * of_weight
    # The PE whose turn it is sends a word and receives one, and operations go before.
    panel = _HEARD_CYCLES + 2 * ceil(plan.tokens * plan.precision.given.itemsize / 4) + beats
    if panel > of_output:
        return taken + (num_outputs - 1) * (soon + max(let - other, panel - of_output))
    late += _FULL_CYCLES - is_gradient * (message - wavelet)
    most = plan.streams.counts.max(axis=0) * (1 if is_gradient else plan.streams.wavelets_of_weight)
    num_soon, num_late, num_blocked = _received(most)
    blocked = max(let - other, panel - own)
    received: float = num_soon * soon + num_late * late + num_blocked * blocked
    return taken + received


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _received(wavelets: Ints) -> tuple[int, int, int]:
    """Outputs whose gradients are received soon, and late, and those that their weights wait for.

    A task that hears of gradients takes turns with those of wavelets, and begins to receive others
    if a panel is free; else the task that ends an output does. Behind few wavelets no gradients of
    the next output have come yet, and what hears of them lets its weights in.

    Args:
        wavelets: of the weights of each output.
    """
    num_outputs = len(wavelets)
    num_begun = min(2, num_outputs)
    num_arrived, num_late, num_blocked, is_full = 1, 0, 0, False
    for number in range(num_outputs):
        # Its end is a wavelet, too.
        for turn in range(wavelets[number] + 1):
            is_end = turn == wavelets[number]
            if is_end:
                if is_full and num_begun < num_outputs:
                    num_begun += 1
                    num_late += 1
                is_full = False
                num_blocked += num_arrived == number + 1 and number + 1 < num_outputs
            elif num_arrived == num_begun:
                continue
            if num_arrived < num_begun:
                num_arrived += 1
                if num_begun - number - is_end < _DEPTH:
                    num_begun += num_begun < num_outputs
                else:
                    is_full = True
    return max(0, num_outputs - 1 - num_late), num_late, num_blocked


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
