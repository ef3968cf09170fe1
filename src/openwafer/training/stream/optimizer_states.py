"""Moves optimizer state between a store and the form in which torch's optimizers hold it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from openwafer.diagnostics import error
from openwafer.training.store.layout import ArraySpec, Part
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.store.update_rules import AdafactorRule, AdamRule, StateSpec
from openwafer.training.stream.records import borrowed_parts
from openwafer.training.stream.updates import Updater, state_name

State = Mapping[str, Any]
# The optimizers that count a parameter's updates in its state.
COUNTING: Final = (AdamRule, AdafactorRule)
STEP: Final = "step"


def take_states(store: ParameterStore, updater: Updater, states: Mapping[str, State]) -> None:
    """Write optimizer states into the store, and the counts of updates to the updater.

    Args:
        store: holds no update that is still to be made.
        updater: knows the optimizers.
        states: by parameter name, as torch's optimizers hold them; an empty one begins anew.

    Raises:
        OpenwaferError: ``optimizer-state-mismatch`` where one is not what the optimizer keeps.
    """
    for record, layout in store.layouts.items():
        weights = [place.spec for place in layout.parts[Part.WEIGHTS]]
        wanted = [weight for weight in weights if weight.name in states]
        if not wanted or not layout.part_bytes(Part.STATES):
            continue
        with store.lent(record, (Part.STATES,)) as loan:
            for weight in wanted:
                state, specs = states[weight.name], _specs(updater, weight)
                updater.counts.num_updates[weight.name] = _take(loan, weight.name, state, specs)


def _specs(updater: Updater, weight: ArraySpec) -> Sequence[StateSpec]:
    return updater.specs(weight.name, weight.shape, weight.dtype)


def _take(loan: Loan, name: str, state: State, specs: Sequence[StateSpec]) -> int:
    """Write one parameter's state; returns how many updates it has had."""
    has_begun = any(state.get(spec.name) is not None for spec in specs)
    with torch.no_grad():
        for spec in specs:
            kept = loan.tensor(state_name(spec.name, name), Part.STATES)
            value = state.get(spec.name)
            if not has_begun:
                kept.fill_(spec.fill)
            elif isinstance(value, torch.Tensor) and _shape(value) == (spec.shape, spec.dtype):
                kept.copy_(value)
            else:
                found = "absent" if value is None else f"{tuple(value.shape)} {value.dtype}"
                raise error(
                    "optimizer-state-mismatch",
                    f"the state {spec.name!r} of {name!r} is {found}, and the optimizer keeps "
                    f"{spec.shape} {spec.dtype}",
                    help="load the state of the same optimizer over the same model",
                )
    return int(state.get(STEP, 1)) if has_begun else 0


def _shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def give_states(store: ParameterStore, updater: Updater) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and copies of the states of the parameters that have been updated, as torch has them.

    Args:
        store: holds no update that is still to be made.
        updater: knows the optimizers and the counts.
    """
    for layout, loan in borrowed_parts(store, Part.STATES):
        for place in layout.parts[Part.WEIGHTS]:
            name = place.spec.name
            count = updater.counts.num_updates.get(name, 0)
            if not count:
                continue
            is_counting = isinstance(updater.rule_of(name), COUNTING)
            state: dict[str, Any] = {STEP: torch.tensor(float(count))} if is_counting else {}
            for spec in _specs(updater, place.spec):
                kept = loan.tensor(state_name(spec.name, name), Part.STATES)
                state[spec.name] = kept.clone()
            yield name, state
