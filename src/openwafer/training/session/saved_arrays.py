"""Reads the weights that a run has saved, one after the other, from its store or a checkpoint."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, open_store
from openwafer.training.store import ParameterStore, Part, RecordLayout, read_checkpoint
from openwafer.training.store.checkpoint_index import StoredArray
from openwafer.training.store.checkpoint_shards import ShardReader
from openwafer.training.store.layout import KEPT_PARTS
from openwafer.training.store.manifest import read_manifest
from openwafer.training.store.update_rules import (
    AVERAGE,
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
)
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.records import state_name

NamedTensors = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class _Values:
    """How the values of parameters are made: from weights and from which of their states."""

    states: tuple[str, ...]
    decay: float | None
    counts: UpdateCounts

    def states_among(self, name: str, kept: Collection[str]) -> list[str]:
        """Those of a parameter's states that are wanted and kept."""
        return [state for state in self.states if state_name(state, name) in kept]

    def of(
        self, name: str, weight: torch.Tensor, states: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The weight or its master, or its average with the moves that it has missed."""
        if LOW_BITS in states:
            parts = SplitMaster(weight.reshape(-1), states[LOW_BITS].view(-1), states[TIE_BITS])
            weight = join_master(parts, torch.empty(weight.numel())).view(weight.shape)
        if self.decay is None or AVERAGE not in states:
            return weight
        average = states[AVERAGE].clone()
        averaging = self.counts.averaging(name, self.decay, self.counts.steps_applied)
        averaging.catch_up(average, weight)
        return average


@contextmanager
def saved_weights(
    run: RunFolder,
    saved: SavedRun,
    *,
    average_decay: float | None = None,
    wants_masters: bool = True,
) -> Iterator[tuple[tuple[str, ...], NamedTensors]]:
    """Context that gives the names of all parameters, and their values in the same order.

    Each value is valid until the next is asked for.

    Args:
        run: locked by the caller.
        saved: which step.
        average_decay: gives moving averages of that decay instead, where a parameter has one.
        wants_masters: gives the fp32 master of a bf16 weight, where it has one.
    """
    counts = saved.state.counts
    # Before the first step an average is the weight itself.
    decay = average_decay if counts.steps_applied else None
    masters = (LOW_BITS, TIE_BITS) if wants_masters or decay is not None else ()
    values = _Values(masters if decay is None else (AVERAGE, *masters), decay, counts)
    if saved.checkpoint is not None:
        names = tuple(read_checkpoint(saved.checkpoint).arrays[Part.WEIGHTS])
        yield names, _from_checkpoint(saved.checkpoint, values)
        return
    layouts = read_manifest(run.store).catalog.layouts.values()
    with open_store(run) as store:
        yield (
            tuple(name for layout in layouts for name in _names(layout)),
            _from_store(store, values),
        )


def _from_checkpoint(folder: Path, values: _Values) -> NamedTensors:
    arrays, shards = read_checkpoint(folder).arrays, ShardReader(folder)
    states = arrays[Part.STATES]
    for name, array in arrays[Part.WEIGHTS].items():
        kept = {
            state: _read(shards, states[state_name(state, name)])
            for state in values.states_among(name, states)
        }
        yield name, values.of(name, _read(shards, array), kept)


def _read(shards: ShardReader, array: StoredArray) -> torch.Tensor:
    flat = torch.empty(array.spec.num_bytes, dtype=torch.uint8)
    shards.read(array, flat)
    return flat.view(array.spec.dtype).view(array.spec.shape)


def _from_store(store: ParameterStore, values: _Values) -> NamedTensors:
    for record, layout in store.layouts.items():
        states = {place.spec.name for place in layout.parts[Part.STATES]}
        wanted = {name: values.states_among(name, states) for name in _names(layout)}
        parts = KEPT_PARTS if any(wanted.values()) else (Part.WEIGHTS,)
        with store.lent(record, parts, read_only=True) as loan:
            for name, names in wanted.items():
                kept = {state: loan.tensor(state_name(state, name), Part.STATES) for state in names}
                yield name, values.of(name, loan.tensor(name, Part.WEIGHTS), kept)


def _names(layout: RecordLayout) -> list[str]:
    return [place.spec.name for place in layout.parts[Part.WEIGHTS]]
