"""Changes the masks of sparse weights between training steps, in the parameter store."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.methods.seam import MethodRun
from openwafer.training.methods.sparse_products import describe_products
from openwafer.training.metrics import MASKS_FORMAT, MaskChange, StepMetrics, StepWriter
from openwafer.training.metrics.run_record import PICTURES, MaskPicture, MaskPictures
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import CheckpointArrays, SavedWeights
from openwafer.training.sparsity.masks.algorithms import (
    IMP,
    GrowthCandidates,
    MaskUpdate,
    RigL,
    carried,
    drop_fraction_at,
    is_update,
    updated,
    wants_gradient,
)
from openwafer.training.sparsity.masks.structures import Shape
from openwafer.training.sparsity.options import SparseParameter
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.packed_linear import (
    DenseWeights,
    is_pattern,
    packed_linears,
    pattern_name,
    rooms_of,
)
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.store import read_checkpoint
from openwafer.training.store.checkpoint import INDEX_NAME, require_fit, save_checkpoint
from openwafer.training.store.layout import Part, RecordLayout, array_named
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import Execution, StepEnd
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.plan.workload import HeldGradients
from openwafer.training.stream.records import has_master, master_of, write_weight

MOST_PICTURES: Final = 4
MOST_CELLS: Final = 48
_DIGITS: Final = 4
GRADIENT_BYTES: Final = 4
CANDIDATE_BYTES: Final = 4 + 8
"""A magnitude and its position."""
ORDER_BYTES: Final = 1 + 3 * 4
"""For each element of the weight whose candidates are found: mask, magnitudes and their order."""


class MaskLog:
    """Notes updates of masks as they come.

    Args:
        rooms: of the sparse weights, by name. Pictures are made of the largest of one layer, in the
            middle of the model.
    """

    def __init__(self, rooms: Mapping[str, PackedRoom]) -> None:
        self.pictured = _of_one_layer(rooms)
        self._changes: list[MaskChange] = []
        self._pictures: dict[str, MaskPicture] = {}
        self._has_new = False

    def draw(self, name: str, pattern: Pattern, steps_done: int) -> None:
        """Make a picture of a weight's mask."""
        self._pictures[name] = picture_of(name, steps_done, pattern)
        self._has_new = True

    def note(self, name: str, update: MaskUpdate, pattern: Pattern, steps_done: int) -> None:
        """A mask was updated; ``pattern`` is what it is from then on."""
        dropped, grown = update.num_dropped, update.num_regrown
        self._changes.append(MaskChange(0, name, pattern.num_kept, dropped, grown))
        if name in self.pictured:
            self.draw(name, pattern, steps_done)

    @contextmanager
    def recording(self, folder: RunFolder, first_step: int) -> Iterator[Path | None]:
        """Context in which changes go to the run's file; gives where a damaged one is kept."""
        first_step = first_step if folder.masks.exists() else 0
        with StepWriter(folder.masks, MASKS_FORMAT, first_step=first_step) as self._lines:
            self._folder = folder
            yield self._lines.damaged

    def record(self, step: int) -> None:
        """Write what was noted since the last call, behind a training step."""
        for change in self._changes:
            self._lines.append(replace(change, step=step))
        self._changes.clear()
        self.write_pictures(self._folder.path)

    def write_pictures(self, run_folder: Path) -> None:
        """Write the pictures, if there are new ones."""
        if self._has_new:
            PICTURES.write(run_folder, MaskPictures(tuple(self._pictures.values())))
            self._has_new = False


def _of_one_layer(rooms: Mapping[str, PackedRoom]) -> list[str]:
    names = list(rooms)
    if not names:
        return []
    layer = _layer_of(names[len(names) // 2])
    alike = [name for name in names if _layer_of(name) == layer]
    alike.sort(key=lambda name: -rooms[name].shape[0] * rooms[name].shape[1])
    return alike[:MOST_PICTURES]


def _layer_of(name: str) -> str:
    """A name up to its last number, or to the module's parent."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[-1] + 1] if numbers else parts[:-2])


def picture_of(weight: str, step: int, pattern: Pattern) -> MaskPicture:
    """The picture of a pattern, of at most 48 cells a side."""
    rows, columns = pattern.shape
    kept_in_row = np.diff(pattern.row_starts)
    row_cells, column_cells = _cells(rows), _cells(columns)
    num_rows, num_columns = row_cells[-1] + 1, column_cells[-1] + 1
    places = np.repeat(row_cells, kept_in_row) * num_columns + column_cells[pattern.columns]
    kept = np.bincount(places, minlength=num_rows * num_columns).reshape(num_rows, num_columns)
    shares = kept / np.outer(np.bincount(row_cells), np.bincount(column_cells))
    in_column = np.bincount(pattern.columns, minlength=columns)
    return MaskPicture(
        weight,
        step,
        rows,
        columns,
        pattern.num_kept,
        int(np.count_nonzero(kept_in_row == 0)),
        int(np.count_nonzero(in_column == 0)),
        tuple(tuple(round(float(share), _DIGITS) for share in row) for row in shares),
    )


def _cells(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The cell that each of so many rows or columns is in."""
    return np.arange(number) * min(number, MOST_CELLS) // number


def held_gradients(
    model: nn.Module, parameters: Mapping[str, SparseParameter], num_steps: int
) -> HeldGradients:
    """What the whole gradients take of weights that are updated by them in a run."""
    rooms = rooms_of(model)
    grown = {name: each for name, each in parameters.items() if _grows(each, num_steps)}
    elements = {name: rooms[name].shape[0] * rooms[name].shape[1] for name in grown}
    candidates = sum(
        _candidate_bytes(each, rooms[name].shape, num_steps) for name, each in grown.items()
    )
    return HeldGradients(
        {name: GRADIENT_BYTES * number for name, number in elements.items()},
        candidates
        + sum(rooms[name].num_bytes for name in grown)
        + ORDER_BYTES * max(elements.values(), default=0),
    )


def _grows(parameter: SparseParameter, num_steps: int) -> bool:
    algorithm = parameter.algorithm
    return isinstance(algorithm, RigL) and any(algorithm.target.updates.until(num_steps))


def _candidate_bytes(parameter: SparseParameter, shape: Shape, num_steps: int) -> int:
    """Most bytes of what is known of a weight's gradient until its mask is updated."""
    algorithm, capacity = parameter.algorithm, parameter.capacity
    assert isinstance(algorithm, RigL)
    target = algorithm.target
    least = min(number for _, number in target.changes(shape, num_steps))
    steps = target.updates.until(num_steps)
    dropped = max(drop_fraction_at(algorithm, step) for step in steps)
    grown = capacity - least + math.ceil(dropped * capacity)
    if target.structure.grid(shape)[0] > 1:
        # Which group grows how many is not known before.
        grown = capacity
    return GRADIENT_BYTES * capacity + CANDIDATE_BYTES * min(grown, capacity)


class DenseGradients:
    """Gradients of dense weights in steps behind which RigL grows, each for as long as it must."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, SparseParameter]) -> None:
        self._rigl: dict[str, RigL] = {}
        self._rooms = rooms_of(model)
        self._sums: dict[str, Tensor] = {}
        self._patterns: dict[str, Tensor] = {}
        self._candidates: dict[str, GrowthCandidates] = {}
        # Functions, which are not copied with the model. None before the run begins, where a plan
        # walks the model without values.
        self._steps_applied: Callable[[], int] | None = None
        self._on_host: Callable[[], AbstractContextManager[object]] = nullcontext
        modules = packed_linears(model)
        for name, parameter in parameters.items():
            if isinstance(parameter.algorithm, RigL):
                self._rigl[name] = parameter.algorithm
                modules[name].multiplication.watcher = _Watcher(self, name)

    def attach(self, execution: Execution) -> None:
        """See the gradients of a run."""

        def on_host() -> AbstractContextManager[object]:
            return execution.device.host_section()

        if self._rigl:
            self._steps_applied = lambda: execution.updater.counts.steps_applied
            self._on_host = on_host
            execution.watch_gradients(self.reduce)

    def wants(self, name: str) -> bool:
        """Whether the gradient of a weight counts in this step."""
        return self._step is not None and wants_gradient(self._rigl[name], self._step)

    def add(self, name: str, gradient: Tensor, packed: Tensor) -> None:
        """A backward has computed a gradient of the whole weight."""
        if name in self._sums:
            self._sums[name] += gradient
        else:
            self._sums[name] = gradient.float()
            with self._on_host():
                self._patterns[name] = packed.to("cpu", copy=True)

    def reduce(self, gradients: Mapping[str, Tensor]) -> None:
        """Parameters have the gradients of the whole step, so dense ones are complete, too."""
        for name in gradients.keys() & self._rigl.keys() - self._sums.keys():
            if self.wants(name):
                raise error(
                    "gradient-missing",
                    f"{name!r} has a gradient of its kept weights, and none of the others, by "
                    "which RigL is to grow it",
                    help="this is a mistake of openwafer: please report it; algorithm: set grows "
                    "at random meanwhile",
                )
        for name in gradients.keys() & self._sums.keys():
            gradient, packed = self._sums.pop(name), self._patterns.pop(name)
            assert self._step is not None
            with self._on_host():
                mask = self._rooms[name].pattern(packed).mask()
                found = self._rigl[name].candidates(self._step, gradient.cpu(), mask)
            self._candidates[name] = found

    @property
    def _step(self) -> int | None:
        return None if self._steps_applied is None else self._steps_applied() + 1

    def take(self, name: str) -> GrowthCandidates | None:
        """What is known of a weight's gradient, once."""
        return self._candidates.pop(name, None)


@dataclass(frozen=True)
class _Watcher:
    """Of one weight; see :class:`~openwafer.training.sparsity.products.GradientWatcher`."""

    gradients: DenseGradients
    name: str

    @property
    def is_wanted(self) -> bool:
        return self.gradients.wants(self.name)

    def __call__(self, gradient: Tensor, packed: Tensor) -> None:
        self.gradients.add(self.name, gradient, packed)


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
        kept = SavedWeights(CheckpointArrays(self._copy), UpdateCounts())
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


class MaskUpdates(MethodRun):
    """Updates the masks of a run between its steps.

    Args:
        model: whose sparse modules compute gradients.
        parameters: how each sparse weight is sparse, by name.
        rewinding: goes back to earlier weights, where pruning does.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, SparseParameter],
        rewinding: Rewinding | None = None,
    ) -> None:
        self._parameters = parameters
        self._rewinding = rewinding
        self._model = model
        self._rooms = rooms_of(model)
        self._log = MaskLog(self._rooms)
        self._gradients = DenseGradients(model, parameters)
        self._algorithms = {parameter.algorithm for parameter in parameters.values()}

    def draw_first(self, weights: Mapping[str, Tensor]) -> None:
        """Make pictures of the masks that a run begins with, by the names of its parameters."""
        for name in self._log.pictured:
            self._log.draw(name, self._rooms[name].pattern(weights[pattern_name(name)]), 0)

    def describe(self) -> list[str]:
        """How products use the masks."""
        return describe_products(self._model)

    def attach(self, execution: Execution) -> None:
        """Update masks from the next step on."""
        if self._rewinding is not None:
            self._rewinding.attach(execution)
        execution.between_steps(
            lambda end: self._update(end, execution.updater.counts), self.is_due
        )
        self._gradients.attach(execution)

    def lay_down(self, folder: RunFolder) -> None:
        """See the class that it extends."""
        self._log.write_pictures(folder.path)

    def recording(self, folder: RunFolder, first_step: int) -> AbstractContextManager[Path | None]:
        """See the class that it extends."""
        return self._log.recording(folder, first_step)

    def record(self, row: StepMetrics) -> StepMetrics:
        """See the class that it extends."""
        self._log.record(row.step)
        return row

    def is_due(self, steps_applied: int) -> bool:
        """Whether any mask is updated behind so many steps; the store is flushed for it."""
        return any(is_update(algorithm, steps_applied) for algorithm in self._algorithms)

    def _update(self, end: StepEnd, counts: UpdateCounts) -> None:
        due = [
            name
            for name, parameter in self._parameters.items()
            if is_update(parameter.algorithm, end.steps_applied)
        ]
        records = {
            place.spec.name: record
            for record, layout in end.records.items()
            for place in layout.parts[Part.WEIGHTS]
        }
        for name in due:
            layout = end.records[records[name]]
            with end.lent(records[name]) as arrays:
                self._update_one(name, layout, arrays, end.steps_applied)
        if self._rewinding is not None and self._rewinds(end.steps_applied):
            self._rewinding.go_back(end, counts)

    def _rewinds(self, step: int) -> bool:
        return any(
            is_update(algorithm, step) and isinstance(algorithm, IMP) and algorithm.rewinds(step)
            for algorithm in self._algorithms
        )

    def _update_one(self, name: str, layout: RecordLayout, arrays: Arrays, step: int) -> None:
        algorithm = self._parameters[name].algorithm
        candidates = self._gradients.take(name)
        if isinstance(algorithm, RigL) and candidates is None:
            # Nothing passed the layer in this step, so that nothing says where it should grow.
            return
        room = self._rooms[name]
        packed = arrays.tensor(pattern_name(name), Part.WEIGHTS)
        before = room.pattern(packed)
        mask = before.mask()
        keeps_master = has_master(layout, name)
        weights = master_of(arrays, name) if keeps_master else arrays.tensor(name, Part.WEIGHTS)
        dense = before.dense(weights[: before.num_kept])
        found = updated(algorithm, step, name, dense, mask, candidates)
        if not (found.num_dropped or found.num_regrown):
            self._log.note(name, found, before, step)
            return

        def moved(values: Tensor) -> Tensor:
            return room.padded(carried(values[: before.num_kept], mask, found.mask))

        write_weight(arrays, name, moved(weights), keeps_master=keeps_master)
        for place in layout.parts[Part.STATES]:
            # Masters and the flags of their ties follow from the weights.
            is_own = place.spec.name.endswith(f"/{name}") and place.spec.dtype.is_floating_point
            if is_own and place.spec.shape == (room.capacity,):
                state = arrays.tensor(place.spec.name, Part.STATES)
                state.copy_(moved(state))
        after = Pattern.from_mask(found.mask)
        packed.copy_(room.packed(after))
        self._log.note(name, found, after, step)
