"""Reads the weights that a run has saved, one after the other, from its store or a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open

from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, open_store
from openwafer.training.store import ParameterStore, Part, RecordLayout, read_checkpoint
from openwafer.training.store.manifest import read_manifest
from openwafer.training.store.update_rules import AVERAGE
from openwafer.training.stream.updates import state_name

NamedTensors = Iterator[tuple[str, torch.Tensor]]


@contextmanager
def saved_weights(
    run: RunFolder, saved: SavedRun, *, averaged: bool = False
) -> Iterator[tuple[tuple[str, ...], NamedTensors]]:
    """Context that gives the names of all parameters, and their values in the same order.

    Each value is valid until the next is asked for.

    Args:
        run: locked by the caller.
        saved: which step.
        averaged: gives moving averages instead, where a parameter has one.
    """
    if saved.checkpoint is not None:
        names = tuple(read_checkpoint(saved.checkpoint).arrays[Part.WEIGHTS])
        yield names, _from_checkpoint(saved.checkpoint, averaged)
        return
    layouts = read_manifest(run.store).catalog.layouts.values()
    with open_store(run) as store:
        yield (
            tuple(name for layout in layouts for name in _names(layout)),
            _from_store(store, averaged),
        )


def _from_checkpoint(folder: Path, averaged: bool) -> NamedTensors:
    arrays = read_checkpoint(folder).arrays
    for name, array in arrays[Part.WEIGHTS].items():
        average = arrays[Part.STATES].get(state_name(AVERAGE, name))
        chosen = average if averaged and average is not None else array
        with safe_open(folder / chosen.shard, framework="pt") as shard:
            yield name, shard.get_tensor(chosen.spec.name)


def _from_store(store: ParameterStore, averaged: bool) -> NamedTensors:
    for layout in store.layouts.values():
        wanted = (Part.WEIGHTS, Part.STATES) if averaged else (Part.WEIGHTS,)
        loan = store.borrow(
            layout.name, [part for part in wanted if layout.part_bytes(part)], read_only=True
        )
        try:
            loan.wait()
            averages = {place.spec.name for place in layout.parts[Part.STATES]} if averaged else ()
            for name in _names(layout):
                average = state_name(AVERAGE, name)
                if average in averages:
                    yield name, loan.tensor(average, Part.STATES)
                else:
                    yield name, loan.tensor(name, Part.WEIGHTS)
        finally:
            loan.release()


def _names(layout: RecordLayout) -> list[str]:
    return [place.spec.name for place in layout.parts[Part.WEIGHTS]]
