"""One pass of an update rule over parameters in host memory, scaling and averaging included.

Long tensors are updated in runs of elements that stay in cache between the operations on them.
Runs do not change a bit: every operation is one rounding an element, and torch's fused kernels,
which contract products and sums differently in their vectors and at their tails, meet a tail only
at the end of the tensor, because a run is a whole number of 64-byte lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import flat, laid_out_like
from openwafer.training.store.update_rules.master_weights import (
    LOW_BITS,
    TIE_BITS,
    TIES_PER_WORD,
    SplitMaster,
    join_master,
    split_master,
    split_states,
)
from openwafer.training.store.update_rules.rule import (
    RUN_ELEMENTS,
    Cutting,
    StateSpec,
    UpdateRule,
)

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


def update_parameters(
    rule: UpdateRule,
    updates: Iterable[ParamUpdate],
    *,
    gradient_scale: float = 1.0,
    averaging: Averaging | None = None,
    run_elements: int = RUN_ELEMENTS,
) -> None:
    """Update weights and states in place, from gradients multiplied by `gradient_scale`.

    Besides its arguments it needs some runs of `run_elements` (a multiple of 64) in memory, for
    rules over whole tensors (Adafactor, Muon) some times the largest tensor. Gradients may have
    another dtype than the weight or its master; they are converted before they are scaled.
    Raises `update-state` for a state that is absent, or not of the shape and dtype that are needed.
    """
    if run_elements % TIES_PER_WORD or run_elements < 1:
        raise error(
            "update-run",
            f"run_elements is {run_elements}",
            help="a run is a whole number of 64-byte lines: take a multiple of 64",
        )
    update_pass = _Pass(rule, gradient_scale, averaging, run_elements, _Scratch())
    with torch.no_grad():
        for update in updates:
            if update.gradient is not None or averaging is not None:
                update_pass.update(update)


@dataclass(frozen=True)
class _Pass:
    rule: UpdateRule
    scale: float
    averaging: Averaging | None
    run_elements: int
    scratch: "_Scratch"

    def update(self, update: ParamUpdate) -> None:
        self._check(update)
        for run in _runs(update, self.run_elements) if self._is_cut(update) else (update,):
            self._update_run(run)

    def _is_cut(self, update: ParamUpdate) -> bool:
        if not update.weight.ndim:
            return False
        if self.rule.cutting is Cutting.AT_NEED:
            is_extended = self.averaging is not None or _is_split(update)
            return is_extended or not self._is_ready(update.gradient, update.weight)
        return self.rule.cutting is Cutting.ALWAYS

    def _is_ready(self, gradient: torch.Tensor | None, weight: torch.Tensor) -> bool:
        """Whether the rule can take the gradient as it is."""
        if gradient is None:
            return True
        is_alike = laid_out_like(gradient, weight) is gradient
        fits = gradient.dtype is weight.dtype and is_alike
        return fits and self.scale == 1.0

    def _update_run(self, run: ParamUpdate) -> None:
        weight = run.weight
        if _is_split(run):
            weight = self.scratch.like("master", weight, torch.float32)
            spare = self.scratch.like("gradient", weight, torch.float32)
            join_master(_parts(run), weight.view(-1), spare.view(-1))
        if self.averaging is not None:
            self.averaging.catch_up(run.states[AVERAGE], weight)
        if run.gradient is not None:
            gradient = self._prepared(run.gradient, weight)
            self.rule.apply(weight, gradient, run.states, run.num_updates)
            if _is_split(run):
                split_master(weight.view(-1), _parts(run))
        if self.averaging is not None:
            self.averaging.move(run.states[AVERAGE], weight)

    def _prepared(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self._is_ready(gradient, weight):
            return gradient
        prepared = self.scratch.like("gradient", weight, weight.dtype)
        if gradient.dtype is weight.dtype:
            return torch.mul(gradient, self.scale, out=prepared)
        prepared.copy_(gradient)
        return prepared if self.scale == 1.0 else prepared.mul_(self.scale)

    def _check(self, update: ParamUpdate) -> None:
        specs = state_specs(
            self.rule,
            tuple(update.weight.shape),
            update.weight.dtype,
            keeps_master=_is_split(update),
            keeps_average=self.averaging is not None,
        )
        for spec in specs:
            state = update.states.get(spec.name)
            if state is None or (*state.shape,) != spec.shape or state.dtype is not spec.dtype:
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
