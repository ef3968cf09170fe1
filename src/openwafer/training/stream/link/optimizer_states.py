"""Moves optimizer state between a store and the form in which torch's optimizers hold it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import error
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, state_name
from openwafer.training.store.record_access import Arrays, LentRecords
from openwafer.training.store.update_rules import UpdateRule
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.store.update_rules.own_step import MASTER, STEP, OwnStepRule
from openwafer.training.store.update_rules.rules import StateSpec
from openwafer.training.store.update_rules.update_pass import LOW_BITS, TIE_BITS
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import borrowed_parts, has_master, master_of, write_weight

State = Mapping[str, Any]


def take_states(store: LentRecords, updater: Updater, states: Mapping[str, State]) -> None:
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
        for weight in wanted:
            _require_no_more(weight.name, states[weight.name], _specs(updater, weight), updater)
        if not wanted or not layout.part_bytes(Part.STATES):
            continue
        with store.lent(record, _parts(updater)) as loan:
            for weight in wanted:
                state, specs = states[weight.name], _specs(updater, weight)
                if has_master(layout, weight.name):
                    _take_master(loan, weight.name, state)
                has_begun = _take(loan, weight.name, state, specs)
                count = _count_in(state, updater.rule_of(weight.name)) if has_begun else 0
                updater.counts.num_updates[weight.name] = count


def _parts(updater: Updater) -> tuple[Part, ...]:
    """Parts in which states lie; half of a master is the weight."""
    return (Part.STATES, Part.WEIGHTS) if updater.keeps_masters else (Part.STATES,)


def _specs(updater: Updater, weight: ArraySpec) -> Sequence[StateSpec]:
    """What an optimizer keeps; a master is kept whole, under a name of its own."""
    specs = updater.specs(weight.name, weight.shape, weight.dtype)
    return [spec for spec in specs if spec.name not in (LOW_BITS, TIE_BITS)]


def _take_master(loan: Arrays, name: str, state: State) -> None:
    """Write a parameter's master; without one the weight itself is it."""
    weight = loan.tensor(name, Part.WEIGHTS)
    master = state.get(MASTER)
    if master is None:
        write_weight(loan, name, weight.float(), keeps_master=True)
        return
    if _shape(master) != (tuple(weight.shape), torch.float32):
        raise error(
            "optimizer-state-mismatch",
            f"the state {MASTER!r} of {name!r} is {tuple(master.shape)} {master.dtype}, and the "
            f"store keeps {tuple(weight.shape)} {torch.float32}",
            help="call optimizer.load_state_dict after stream_weights(..., keeps_masters=True); "
            "before, torch makes states what weights are",
        )
    if not torch.equal(master.to(weight.dtype), weight):
        raise error(
            "master-mismatch",
            f"the weights of {name!r} are not its state {MASTER!r} rounded to {weight.dtype}",
            help="load the model's state before the optimizer's, of the same step; to train "
            f"changed weights, delete the states {MASTER!r} first",
        )
    write_weight(loan, name, master, keeps_master=True)


def _require_no_more(name: str, state: State, specs: Sequence[StateSpec], updater: Updater) -> None:
    """Of a rule that this program does not know, a state too many is not to be passed over."""
    more = set(state) - {spec.name for spec in specs} - {MASTER, STEP}
    if more and isinstance(updater.rule_of(name), OwnStepRule):
        raise error(
            "optimizer-state-mismatch",
            f"{name!r} has the state {min(more)!r}, and the optimizer keeps "
            f"{', '.join(spec.name for spec in specs) or 'none'}",
            help="load the state of the same optimizer over the same model",
        )


def _count_in(state: State, rule: UpdateRule) -> int:
    """How many updates a state has had, where that matters; else at least one."""
    return int(state[STEP]) if rule.counts and STEP in state else 1


def _take(loan: Arrays, name: str, state: State, specs: Sequence[StateSpec]) -> bool:
    """Write one parameter's state; returns whether there is any."""
    has_begun = any(state.get(spec.name) is not None for spec in specs)
    with torch.no_grad():
        for spec in specs:
            kept = loan.tensor(state_name(spec.name, name), Part.STATES)
            value = state.get(spec.name)
            if not has_begun:
                kept.fill_(spec.fill)
            elif spec.fits(value):
                spec.write(kept, value)
            else:
                found = "absent" if value is None else _described(value)
                raise error(
                    "optimizer-state-mismatch",
                    f"the state {spec.name!r} of {name!r} is {found}, and the optimizer keeps "
                    f"{spec.shape} {spec.dtype}",
                    help="load the state of the same optimizer over the same model",
                )
    return has_begun


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return f"the {type(value).__name__} {value!r:.40}"


def _shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def give_states(store: LentRecords, updater: Updater) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and copies of the states of the parameters that have been updated, as torch has them.

    Args:
        store: holds no update that is still to be made.
        updater: knows the optimizers and the counts.
    """
    for layout, loan in borrowed_parts(store, *_parts(updater)):
        for place in layout.parts[Part.WEIGHTS]:
            state = _state_of(loan, layout, place.spec, updater)
            if state:
                yield place.spec.name, state


def state_of(store: LentRecords, updater: Updater, record: str, name: str) -> dict[str, Any]:
    """A copy of one parameter's state, as :func:`give_states` gives it; empty before its first."""
    layout = store.layouts[record]
    if not layout.part_bytes(Part.STATES):
        return {}
    with store.lent(record, _parts(updater), read_only=True) as loan:
        return _state_of(loan, layout, layout.place(name, Part.WEIGHTS).spec, updater)


def _state_of(
    loan: Arrays, layout: RecordLayout, weight: ArraySpec, updater: Updater
) -> dict[str, Any]:
    count = updater.counts.updates_of(weight.name)
    state = _given(loan, weight, updater) if count else {}
    if has_master(layout, weight.name):
        master = master_of(loan, weight.name)
        if count or not torch.equal(master, loan.tensor(weight.name, Part.WEIGHTS).float()):
            state[MASTER] = master
    return state


def _given(loan: Arrays, weight: ArraySpec, updater: Updater) -> dict[str, Any]:
    """What torch's optimizer would hold for a parameter that has been updated."""
    count = updater.counts.updates_of(weight.name)
    counts = updater.rule_of(weight.name).counts
    state: dict[str, Any] = {STEP: torch.tensor(float(count))} if counts else {}
    for spec in _specs(updater, weight):
        kept = loan.tensor(state_name(spec.name, weight.name), Part.STATES)
        state[spec.name] = spec.read(kept.clone())
    return state


def loading_as_saved(optimizer: Optimizer) -> tuple[RemovableHandle, RemovableHandle]:
    """Let ``load_state_dict`` keep the dtypes of states, which torch makes those of the weights."""
    saved: list[dict[str, Any]] = []

    def note(_optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        saved[:] = [state_dict]

    def restore(optimizer: Optimizer) -> None:
        numbers = (n for group in saved[0]["param_groups"] for n in group["params"])
        for number, parameter in zip(numbers, parameters_of(optimizer), strict=True):
            for name, value in saved[0]["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    optimizer.state[parameter][name] = value.clone()
        saved.clear()

    return (
        optimizer.register_load_state_dict_pre_hook(note),
        optimizer.register_load_state_dict_post_hook(restore),
    )
