"""One pass of an update rule over a parameter in host memory, scaling and averaging included.

Long tensors are updated in runs of elements that stay in cache between the operations on them.
Runs do not change a bit: every operation is one rounding an element, and torch's fused kernels,
which contract products and sums differently in their vectors and at their tails, meet a tail only
at the end of the tensor, because a run is a whole number of 64-byte lines.

The fp32 master of a bf16 weight is kept as that weight, which is streamed, and the 16 bits that are
missing. The weight is the master rounded to nearest, ties to even, as a resident mixed-precision
loop casts it. What is missing is the master's bit pattern less that of the weight, in units of the
master's last place: from -32768 to 32768, one value more than 16 bits hold. Both ends are ties
between two neighbouring bf16; -32768 and 32768 share a code, and one bit a weight, of which
only those at such ties are ever set, tells them apart. So the halves and the bit are the master,
bit for bit: infinities, negative zero, subnormals and the overflow to infinity included. A NaN
stays a NaN, its payload aside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import flat, is_laid_out_like, laid_out_like
from openwafer.training.store.update_rules.rules import (
    RUN_ELEMENTS,
    Cutting,
    StateSpec,
    UpdateRule,
)
from openwafer.training.torch_private import FakeTensor

LOW_BITS = "master_low_bits"
TIE_BITS = "master_tie_bits"
TIES_PER_WORD = 64

_TIE = -(1 << 15)


@dataclass(frozen=True)
class SplitMaster:
    """Flat views of a master's three arrays, or of one run of their elements.

    `high` is bf16, `low` int16, both of n elements; `ties` holds ceil(n / 64) int64 words, a bit
    an element. A run starts at a multiple of 64.
    """

    high: torch.Tensor
    low: torch.Tensor
    ties: torch.Tensor


def split_states(shape: tuple[int, ...]) -> tuple[StateSpec, ...]:
    """The arrays that complete a bf16 weight of that shape."""
    num_words = -(-torch.Size(shape).numel() // TIES_PER_WORD)
    return (
        StateSpec(LOW_BITS, shape, torch.int16),
        StateSpec(TIE_BITS, (num_words,), torch.int64),
    )


def split_master(master: torch.Tensor, parts: SplitMaster) -> None:
    """Write an fp32 master, a flat contiguous tensor, into its parts."""
    words = parts.ties.split(RUN_ELEMENTS // TIES_PER_WORD)
    cuts = [tensor.split(RUN_ELEMENTS) for tensor in (master, parts.high, parts.low)]
    for run, high, low, ties in zip(*cuts, words, strict=True):
        _split_run(run, SplitMaster(high, low, ties))


def _split_run(master: torch.Tensor, parts: SplitMaster) -> None:
    parts.high.copy_(master)
    bits = master.view(torch.int32)
    parts.low.copy_(bits)
    parts.ties.zero_()
    # Without values, as where a plan counts the operators of an update, nothing is tied.
    if isinstance(master, FakeTensor):
        return
    # Ties are few, and numpy finds and handles a few several times faster than torch does.
    ties = np.flatnonzero(parts.low.numpy() == _TIE)
    if ties.size:
        rounded_down = ties[(bits.numpy()[ties] >> 16) & 1 == 0]
        words, bit_numbers = np.divmod(rounded_down, TIES_PER_WORD)
        np.bitwise_or.at(parts.ties.numpy(), words, np.int64(1) << bit_numbers)


def join_master(
    parts: SplitMaster, out: torch.Tensor, spare: torch.Tensor | None = None
) -> torch.Tensor:
    """Rebuild the fp32 master in `out`, a flat contiguous tensor, and return it.

    `spare` is room for as many fp32 that may be overwritten; taken afresh when None.
    """
    out.copy_(parts.high)
    bits = out.view(torch.int32)
    wide_low = (torch.empty_like(out) if spare is None else spare).view(torch.int32)
    bits.add_(wide_low.copy_(parts.low))
    if isinstance(out, FakeTensor):
        return out
    ties = parts.ties.numpy()
    words = np.flatnonzero(ties)
    if words.size:
        bit_numbers = np.arange(TIES_PER_WORD)
        is_set = (ties[words, np.newaxis] >> bit_numbers) & 1 == 1
        rounded_down = (words[:, np.newaxis] * TIES_PER_WORD + bit_numbers)[is_set]
        bits.numpy()[rounded_down] += 1 << 16
    return out


AVERAGE = "average"


@dataclass(frozen=True)
class ParamUpdate:
    """One parameter and what its update needs, in host memory.

    Its tensors are dense, and those of its shape have its strides.

    `gradient` has the shape of `weight` and is only read; None when the parameter got none and
    stays as it is. `num_updates` counts the updates it has had, 0 at the first.
    """

    weight: torch.Tensor
    gradient: torch.Tensor | None
    states: Mapping[str, torch.Tensor]
    num_updates: int


@dataclass(frozen=True)
class Averaging:
    """Exponential moving average of the weights, kept in a state of its own.

    average = average + (1 - decay) * (weight - average) after each step, also for parameters that
    the step does not update; the first time it is the weight. The arithmetic is that of
    `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`.

    An average need not move in a step that leaves its weight alone. Such moves are missed, and
    made up for one by one when the average is next needed: many small moves are not one large one.

    Attributes:
        decay: share of the average that stays.
        num_averaged: moves that the average has made.
        num_missed: steps since then, in which the weight was what it is before this update.
    """

    decay: float
    num_averaged: int
    num_missed: int = 0

    def catch_up(self, average: torch.Tensor, weight: torch.Tensor) -> None:
        """Make the missed moves of `average`, in place; `weight` is not yet updated."""
        for number in range(self.num_averaged, self.num_averaged + self.num_missed):
            before = average.clone()
            self._move(average, weight, number)
            if torch.equal(average, before):
                # It has arrived: no further move changes it.
                break

    def move(self, average: torch.Tensor, weight: torch.Tensor) -> None:
        """Move `average`, which has caught up, towards the updated `weight`, in place."""
        self._move(average, weight, self.num_averaged + self.num_missed)

    def _move(self, average: torch.Tensor, weight: torch.Tensor, number: int) -> None:
        if number == 0:
            average.copy_(weight)
        else:
            average.lerp_(weight, 1 - self.decay)


def state_specs(
    rule: UpdateRule,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    keeps_master: bool = False,
    keeps_average: bool = False,
) -> tuple[StateSpec, ...]:
    """All arrays kept beside a weight of `dtype`.

    With `keeps_master` the weight is bf16 and the rule works on an fp32 master, whose other half
    is among the arrays; with `keeps_average` there is the average that `Averaging` moves.
    """
    master_dtype = torch.float32 if keeps_master else dtype
    specs = rule.states(shape, master_dtype)
    if keeps_master:
        specs += split_states(shape)
    if keeps_average:
        specs += (StateSpec(AVERAGE, shape, master_dtype),)
    return specs


def update_parameter(
    rule: UpdateRule,
    update: ParamUpdate,
    *,
    gradient_scale: float = 1.0,
    averaging: Averaging | None = None,
    run_elements: int = RUN_ELEMENTS,
) -> None:
    """Update a weight and its states in place, from the gradient multiplied by `gradient_scale`.

    Besides its arguments it needs some runs of `run_elements` (a multiple of 64) in memory, for
    rules over whole tensors (Adafactor, Muon) some times the tensor. The gradient may have
    another dtype than the weight or its master; it is converted before it is scaled.
    Raises `update-state` for a state that is absent, or not of the shape and dtype that are needed.
    """
    if run_elements % TIES_PER_WORD or run_elements < 1:
        raise error(
            "update-run",
            f"run_elements is {run_elements}",
            help="a run is a whole number of 64-byte lines: take a multiple of 64",
        )
    if update.gradient is None and averaging is None:
        return
    _check(rule, update, averaging)
    weight = update.weight
    is_one_run = weight.numel() <= run_elements and weight.is_contiguous()
    is_cut = not is_one_run and _is_cut(rule, update, gradient_scale, averaging)
    scratch = _Scratch()
    with torch.no_grad():
        for run in _runs(update, run_elements) if is_cut else (update,):
            _update_run(rule, run, gradient_scale, averaging, scratch)


def _update_run(
    rule: UpdateRule,
    run: ParamUpdate,
    scale: float,
    averaging: Averaging | None,
    scratch: "_Scratch",
) -> None:
    weight, gradient = run.weight, run.gradient
    if _is_split(run):
        weight = scratch.like("master", weight, torch.float32)
        spare = scratch.like("gradient", weight, torch.float32)
        join_master(_parts(run), weight.view(-1), spare.view(-1))
    if averaging is not None:
        averaging.catch_up(run.states[AVERAGE], weight)
    if gradient is not None:
        if not _is_ready(gradient, weight, scale):
            prepared = scratch.like("gradient", weight, weight.dtype)
            gradient = _scaled(gradient, scale, prepared)
        rule.apply(weight, gradient, run.states, run.num_updates)
        if _is_split(run):
            split_master(weight.view(-1), _parts(run))
    if averaging is not None:
        averaging.move(run.states[AVERAGE], weight)


def _is_ready(gradient: torch.Tensor, weight: torch.Tensor, scale: float) -> bool:
    """Whether the rule can take the gradient as it is."""
    is_plain = scale == 1.0 and gradient.dtype is weight.dtype
    return is_plain and is_laid_out_like(gradient, weight)


def _scaled(gradient: torch.Tensor, scale: float, out: torch.Tensor) -> torch.Tensor:
    if gradient.dtype is out.dtype:
        return torch.mul(gradient, scale, out=out)
    out.copy_(gradient)
    return out if scale == 1.0 else out.mul_(scale)


def _is_cut(
    rule: UpdateRule, update: ParamUpdate, scale: float, averaging: Averaging | None
) -> bool:
    if not update.weight.ndim:
        return False
    if rule.cutting is Cutting.AT_NEED:
        gradient = update.gradient
        is_extended = averaging is not None or _is_split(update)
        is_ready = gradient is None or _is_ready(gradient, update.weight, scale)
        return is_extended or not is_ready
    return rule.cutting is Cutting.ALWAYS


def _check(rule: UpdateRule, update: ParamUpdate, averaging: Averaging | None) -> None:
    specs = state_specs(
        rule,
        tuple(update.weight.shape),
        update.weight.dtype,
        keeps_master=_is_split(update),
        keeps_average=averaging is not None,
    )
    for spec in specs:
        state = update.states.get(spec.name)
        if state is None or state.shape != spec.shape or state.dtype is not spec.dtype:
            raise _state_error(spec, state, update)


class _Scratch:
    """Arrays that are used for one run after the other."""

    def __init__(self) -> None:
        self._arrays: dict[str, torch.Tensor] = {}

    def like(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The array of that name and of a tensor's shape and strides, its content left over."""
        num_elements = tensor.numel()
        array = self._arrays.get(name)
        if array is None or array.numel() < num_elements or array.dtype is not dtype:
            array = self._arrays[name] = torch.empty(num_elements, dtype=dtype)
        return array.as_strided(tensor.shape, tensor.stride())


def _is_split(update: ParamUpdate) -> bool:
    return LOW_BITS in update.states


def _parts(update: ParamUpdate) -> SplitMaster:
    states = update.states
    return SplitMaster(update.weight.view(-1), states[LOW_BITS].view(-1), states[TIE_BITS])


def _runs(update: ParamUpdate, num_elements: int) -> Iterator[ParamUpdate]:
    """The same update in flat pieces of at most `num_elements`."""
    weights = flat(update.weight).split(num_elements)
    gradients: Sequence[torch.Tensor | None] = [None] * len(weights)
    if update.gradient is not None:
        gradients = flat(laid_out_like(update.gradient, update.weight)).split(num_elements)
    states = {
        name: _cut(name, state, num_elements, len(weights)) for name, state in update.states.items()
    }
    for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        pieces = {name: cut[number] for name, cut in states.items()}
        yield ParamUpdate(weight, gradient, pieces, update.num_updates)


def _cut(
    name: str, state: torch.Tensor, num_elements: int, num_runs: int
) -> Sequence[torch.Tensor]:
    """A state's piece for each run; of a count that all runs share, the last one moves on."""
    if not state.ndim:
        return [*(state.clone() for _ in range(num_runs - 1)), state]
    pieces: Sequence[torch.Tensor] = flat(state).split(
        num_elements // (TIES_PER_WORD if name == TIE_BITS else 1)
    )
    return pieces


def _state_error(
    spec: StateSpec, state: torch.Tensor | None, update: ParamUpdate
) -> OpenwaferError:
    found = "absent" if state is None else f"of shape {tuple(state.shape)} and {state.dtype}"
    return error(
        "update-state",
        f"state '{spec.name}' is {found}; the update of a weight of shape "
        f"{tuple(update.weight.shape)} needs shape {spec.shape} and {spec.dtype}",
        notes=(f"states at hand: {', '.join(update.states) or 'none'}",),
        help="what is kept is decided before the first step: do not change an optimizer's class, "
        "momentum or amsgrad afterwards",
    )
