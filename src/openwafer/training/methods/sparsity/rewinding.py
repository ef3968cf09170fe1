"""Iterative magnitude pruning that rewinds: all weights of a run go back to those of a step."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.session.saved_run import SavedWeights, checkpoint_arrays
from openwafer.training.sparsity.masks.algorithms import IMP
from openwafer.training.sparsity.options import SparseParameter
from openwafer.training.sparsity.packed_linear import (
    DenseWeights,
    is_pattern,
    pattern_name,
    rooms_of,
)
from openwafer.training.store import Part, read_checkpoint
from openwafer.training.store.checkpoint import INDEX_NAME, require_fit, save_checkpoint
from openwafer.training.store.layout import array_named
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import Execution, StepEnd
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.records import has_master, write_weight


class Rewinding:
    """Keeps the weights of one step, in the run's folder, and goes back to them.

    Whatever follows the step is behind its copy: a run that begins, or goes on from before the
    step, writes the copy (again) when it passes the step, before that step is committed.

    Args:
        step: whose weights are kept; 0 is before the first.
        folder: for the copy, a portable checkpoint.
        model: whose sparse modules say which weights are sparse.
        is_new: whether the run begins, and does not go on from what it has saved.
    """

    def __init__(self, step: int, folder: Path, model: nn.Module, *, is_new: bool) -> None:
        self._step = step
        self._folder = folder
        self._model = model
        self._is_new = is_new
        self._rooms = rooms_of(model)

    def attach(self, execution: Execution) -> None:
        """Keep the step when it is reached.

        Raises:
            OpenwaferError: ``sparsity-rewind`` where a run that is past the step has no copy of
                it, ``checkpoint-mismatch``.
        """
        if not self._is_new and execution.updater.counts.steps_applied >= self._step:
            self._require_copy(execution)
        elif self._step == 0:
            self._keep(execution)
        else:
            execution.between_steps(
                lambda _: self._keep(execution), lambda steps: steps == self._step
            )

    def go_back(self, end: StepEnd, counts: UpdateCounts) -> None:
        """Every weight is what it was, where its mask keeps it; no update has been made."""
        kept = SavedWeights(checkpoint_arrays(self._copy), UpdateCounts())
        weights = DenseWeights(kept, self._model)
        for record, layout in end.records.items():
            names = [place.spec.name for place in layout.parts[Part.WEIGHTS]]
            with end.lent(record) as arrays:
                # Before the weights, whose masters have their low bits among the states.
                for place in layout.parts[Part.STATES]:
                    arrays.tensor(place.spec.name, Part.STATES).zero_()
                updated = filter(counts.updates_of, names)
                counts.num_updates.update(dict.fromkeys(updated, 0))
                for name in names:
                    if not is_pattern(name, self._rooms):
                        value = self._under_mask(name, array_named(weights, name), arrays)
                        keeps_master = has_master(layout, name)
                        write_weight(arrays, name, value, keeps_master=keeps_master)

    def _under_mask(self, name: str, dense: torch.Tensor, arrays: Arrays) -> torch.Tensor:
        room = self._rooms.get(name)
        if room is None:
            return dense
        pattern = room.pattern(arrays.tensor(pattern_name(name), Part.WEIGHTS))
        return room.padded(pattern.values_of(dense))

    @property
    def _copy(self) -> Path:
        return self._folder / f"step-{self._step:08d}"

    def _keep(self, execution: Execution) -> None:
        save_checkpoint(execution.records, self._folder, self._step, {})

    def _require_copy(self, execution: Execution) -> None:
        if not (self._copy / INDEX_NAME).exists():
            raise error(
                "sparsity-rewind",
                f"the run is past step {self._step}, to which its pruning goes back, and has not "
                f"kept that step's weights: {self._copy} is missing",
                help="keep the rewind_step that the run began with, go on from a checkpoint of an "
                "earlier step (--checkpoint), or begin a new run",
            )
        require_fit(read_checkpoint(self._copy), execution.records.layouts.values())


def rewind_step_of(parameters: Mapping[str, SparseParameter], ema: float | None) -> int | None:
    """The step to which all weights of a run go back; ``None`` where none do.

    Args:
        parameters: how each sparse weight is sparse, by name.
        ema: decay of the moving average of the weights, where the run keeps one.

    Raises:
        OpenwaferError: ``sparsity-rewind`` where only some sparse weights would go back, others
            to another step or behind other steps, or where an average would mix both.
    """
    found = {
        name: (algorithm.rewind_step, algorithm.target.updates)
        if isinstance(algorithm, IMP)
        else (None, None)
        for name, algorithm in ((name, each.algorithm) for name, each in parameters.items())
    }
    rewound = next((name for name, (step, _) in found.items() if step is not None), None)
    if rewound is None:
        return None
    other = next((name for name, each in found.items() if each != found[rewound]), None)
    if other is not None:
        raise error(
            "sparsity-rewind",
            f"{rewound!r} is to go back to its weights of step {found[rewound][0]}, and the whole "
            f"model with it, but {other!r} is sparse in another way",
            help="give all groups algorithm: imp with the same rewind_step and update, or leave "
            "rewind_step out",
        )
    if ema is not None:
        raise error(
            "sparsity-rewind",
            f"weights are to go back to those of step {found[rewound][0]} beside ema: {ema}, an "
            "average that would mix what was before and behind",
            help="leave ema or rewind_step out",
        )
    return found[rewound][0]
