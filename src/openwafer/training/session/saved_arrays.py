"""Reads the weights that a run has saved, one after the other, from its store or a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, open_store
from openwafer.training.store import ParameterStore, Part, RecordLayout, read_checkpoint
from openwafer.training.store.checkpoint_index import StoredArray
from openwafer.training.store.checkpoint_shards import ShardReader
from openwafer.training.store.layout import KEPT_PARTS
from openwafer.training.store.manifest import read_manifest
from openwafer.training.store.update_rules import AVERAGE
from openwafer.training.stream.updates import UpdateCounts, state_name

NamedTensors = Iterator[tuple[str, torch.Tensor]]


@contextmanager
def saved_weights(
    run: RunFolder, saved: SavedRun, *, average_decay: float | None = None
) -> Iterator[tuple[tuple[str, ...], NamedTensors]]:
    """Context that gives the names of all parameters, and their values in the same order.

    Each value is valid until the next is asked for.

    Args:
        run: locked by the caller.
        saved: which step.
        average_decay: gives moving averages of that decay instead, where a parameter has one.
    """
    counts = saved.state.counts
    # Before the first step an average is the weight itself.
    decay = average_decay if counts.steps_applied else None
    if saved.checkpoint is not None:
        names = tuple(read_checkpoint(saved.checkpoint).arrays[Part.WEIGHTS])
        yield names, _from_checkpoint(saved.checkpoint, decay, counts)
        return
    layouts = read_manifest(run.store).catalog.layouts.values()
    with open_store(run) as store:
        yield (
            tuple(name for layout in layouts for name in _names(layout)),
            _from_store(store, decay, counts),
        )


def _from_checkpoint(folder: Path, decay: float | None, counts: UpdateCounts) -> NamedTensors:
    arrays, shards = read_checkpoint(folder).arrays, ShardReader(folder)
    for name, array in arrays[Part.WEIGHTS].items():
        weight = _read(shards, array)
        average = arrays[Part.STATES].get(state_name(AVERAGE, name))
        if decay is None or average is None:
            yield name, weight
        else:
            yield name, _caught_up(name, _read(shards, average), weight, counts, decay)


def _read(shards: ShardReader, array: StoredArray) -> torch.Tensor:
    flat = torch.empty(array.spec.num_bytes, dtype=torch.uint8)
    shards.read(array, flat)
    return flat.view(array.spec.dtype).view(array.spec.shape)


def _from_store(store: ParameterStore, decay: float | None, counts: UpdateCounts) -> NamedTensors:
    wanted = (Part.WEIGHTS,) if decay is None else KEPT_PARTS
    for record, layout in store.layouts.items():
        states = {place.spec.name for place in layout.parts[Part.STATES]}
        with store.lent(record, wanted, read_only=True) as loan:
            for name in _names(layout):
                weight = loan.tensor(name, Part.WEIGHTS)
                average = state_name(AVERAGE, name)
                if decay is None or average not in states:
                    yield name, weight
                else:
                    saved = loan.tensor(average, Part.STATES).clone()
                    yield name, _caught_up(name, saved, weight, counts, decay)


def _caught_up(
    name: str, average: torch.Tensor, weight: torch.Tensor, counts: UpdateCounts, decay: float
) -> torch.Tensor:
    """The average with the moves that it has missed, in place."""
    counts.averaging(name, decay, counts.steps_applied).catch_up(average, weight)
    return average


def _names(layout: RecordLayout) -> list[str]:
    return [place.spec.name for place in layout.parts[Part.WEIGHTS]]
