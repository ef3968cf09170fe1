"""Reads the weights that a run has saved, one at a time, from its store or a checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.found_stores import open_found
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.store import ArraySpec, Part, read_checkpoint
from openwafer.training.store.checkpoint import ShardReader
from openwafer.training.store.layout import KEPT_PARTS, slice_into, whole_name, whole_specs
from openwafer.training.store.record_access import Records
from openwafer.training.store.update_rules.update_pass import (
    AVERAGE,
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
)
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.records import state_name


class SavedArrays(Protocol):
    """The arrays of a saved step, each read when it is asked for and not kept."""

    @property
    def specs(self) -> Mapping[Part, Mapping[str, ArraySpec]]:
        """The arrays of each part by name, in the order of the files."""

    def read(self, part: Part, name: str) -> torch.Tensor:
        """A copy of one array."""


class _CheckpointArrays:
    def __init__(self, folder: Path) -> None:
        self._arrays = read_checkpoint(folder).arrays
        self._shards = ShardReader(folder)
        self.specs = {
            part: {name: stored.spec for name, stored in arrays.items()}
            for part, arrays in self._arrays.items()
        }

    def read(self, part: Part, name: str) -> torch.Tensor:
        return self._shards.read_whole(self._arrays[part][name])


class _StoreArrays:
    def __init__(self, store: Records) -> None:
        self._store = store
        # Where an array is, or its slices in their order: names, each with its record.
        self._homes: dict[Part, dict[str, list[tuple[str, str]]]] = {p: {} for p in KEPT_PARTS}
        for record, layout in store.layouts.items():
            for part, homes in self._homes.items():
                for place in layout.parts[part]:
                    home = record, place.spec.name
                    homes.setdefault(whole_name(place.spec.name), []).append(home)
        self.specs = {
            part: whole_specs(
                place.spec for layout in store.layouts.values() for place in layout.parts[part]
            )
            for part in KEPT_PARTS
        }

    def read(self, part: Part, name: str) -> torch.Tensor:
        spec = self.specs[part][name]
        read = spec.empty()
        for record, array in self._homes[part][name]:
            with self._store.lent(record, (part,), read_only=True) as loan:
                stored = loan.tensor(array, part)
                slice_into(read, array, stored).copy_(stored)
        return read


def checkpoint_arrays(folder: Path) -> SavedArrays:
    """The arrays of a checkpoint, which nobody changes meanwhile."""
    return _CheckpointArrays(folder)


@contextmanager
def saved_arrays(run: RunFolder, saved: SavedRun) -> Iterator[SavedArrays]:
    """Context that gives the arrays of a saved step, which nobody changes meanwhile."""
    if saved.checkpoint is not None:
        yield checkpoint_arrays(saved.checkpoint)
        return
    assert saved.found is not None
    with closing(open_found(run, saved.found, FIRST_RANK)) as stores:
        yield _StoreArrays(stores)


class SavedWeights(Mapping[str, torch.Tensor]):
    """The values of a saved step's parameters by name, each read when it is asked for.

    Args:
        arrays: of the step.
        counts: of its updates.
        average_decay: gives moving averages of that decay instead, where a parameter has one.
        wants_masters: gives the fp32 master of a bf16 weight, where it has one.
    """

    def __init__(
        self,
        arrays: SavedArrays,
        counts: UpdateCounts,
        *,
        average_decay: float | None = None,
        wants_masters: bool = True,
    ) -> None:
        self._arrays = arrays
        self._counts = counts
        # Before the first step an average is the weight itself.
        self._decay = average_decay if counts.steps_applied else None
        masters = (LOW_BITS, TIE_BITS) if wants_masters or self._decay is not None else ()
        self._wanted = masters if self._decay is None else (AVERAGE, *masters)

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._arrays.read(Part.WEIGHTS, name)
        states = {
            state: self._arrays.read(Part.STATES, state_name(state, name))
            for state in self._wanted
            if state_name(state, name) in self._arrays.specs[Part.STATES]
        }
        if LOW_BITS in states:
            parts = SplitMaster(weight.reshape(-1), states[LOW_BITS].view(-1), states[TIE_BITS])
            weight = join_master(parts, torch.empty(weight.numel())).view(weight.shape)
        if self._decay is None or AVERAGE not in states:
            return weight
        averaging = self._counts.averaging(name, self._decay, self._counts.steps_applied)
        averaging.catch_up(states[AVERAGE], weight)
        return states[AVERAGE]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays.specs[Part.WEIGHTS])

    def __len__(self) -> int:
        return len(self._arrays.specs[Part.WEIGHTS])
