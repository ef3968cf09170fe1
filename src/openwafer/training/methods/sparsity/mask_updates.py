"""Changes the masks of sparse weights between training steps, in the parameter store."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor, nn

from openwafer.training.methods.seam import MethodRun
from openwafer.training.methods.sparsity.dense_gradients import DenseGradients
from openwafer.training.methods.sparsity.mask_log import MaskLog
from openwafer.training.methods.sparsity.rewinding import Rewinding
from openwafer.training.methods.sparsity.sparse_products import describe_products
from openwafer.training.metrics import StepMetrics
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sparsity.masks.algorithms import IMP, RigL, carried, is_update, updated
from openwafer.training.sparsity.options import SparseParameter
from openwafer.training.sparsity.packed_linear import pattern_name, rooms_of
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import Execution, StepEnd
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.records import has_master, master_of, write_weight


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
