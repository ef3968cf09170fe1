"""Changes the masks of sparse weights between training steps, in the parameter store."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.session.mask_log import MaskLog
from openwafer.training.session.rewinding import Rewinding
from openwafer.training.sparsity.masks import (
    IMP,
    GrowthCandidates,
    MaskUpdate,
    RigL,
    is_update,
    updated,
    wants_gradient,
)
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.packed_linear import PackedLinear
from openwafer.training.sparsity.parameters import SparseParameter
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.rooms import pattern_name, rooms_of
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.execute.step_hooks import StepEnd
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.records import Arrays, has_master, master_of, write_weight


class MaskUpdates:
    """Updates the masks of a run; attached to an execution it needs no further calls.

    Args:
        model: whose sparse modules compute gradients.
        parameters: how each sparse weight is sparse, by name.
        num_steps: training steps of the run.
        rewinding: goes back to earlier weights, where pruning does.

    Attributes:
        log: knows what updates have done.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, SparseParameter],
        num_steps: int,
        rewinding: Rewinding | None = None,
    ) -> None:
        self._parameters = parameters
        self._rewinding = rewinding
        self._rooms = rooms_of(model)
        self.log = MaskLog(self._rooms)
        self._gradients = _DenseGradients(model, parameters)
        self._every = _common_step(parameters, num_steps)

    def draw_first(self, weights: Mapping[str, Tensor]) -> None:
        """Make pictures of the masks that a run begins with, by the names of its parameters."""
        for name in self.log.pictured:
            self.log.draw(name, self._rooms[name].pattern(weights[pattern_name(name)]), 0)

    def attach(self, execution: Execution, steps_applied: int | None) -> None:
        """Update masks from the next step on.

        Args:
            execution: of the run.
            steps_applied: behind the saved step from which the run goes on; ``None`` begins it.
        """
        # Also where no update is within the run's steps: it may go on with more of them.
        if self._rewinding is not None:
            self._rewinding.attach(execution, steps_applied)
        if self._every is None:
            return
        execution.between_steps(
            lambda end: self._update(end, execution.updater.counts), every=self._every
        )
        if self._gradients.is_wanted:
            self._gradients.steps_applied = lambda: execution.updater.counts.steps_applied
            execution.watch_gradients(self._gradients.reduce)

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
        algorithms = {parameter.algorithm for parameter in self._parameters.values()}
        return any(
            is_update(algorithm, step) and isinstance(algorithm, IMP) and algorithm.rewinds(step)
            for algorithm in algorithms
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
        keeps_master = has_master(layout, name)
        weights = master_of(arrays, name) if keeps_master else arrays.tensor(name, Part.WEIGHTS)
        found = updated(
            algorithm,
            step,
            name,
            before.dense(weights[: before.num_kept]),
            before.mask(),
            candidates,
        )
        if not (found.num_dropped or found.num_regrown):
            self.log.note(name, found, before, step)
            return
        move = _Move(room, before, found)
        write_weight(arrays, name, move.of(weights), keeps_master=keeps_master)
        for place in layout.parts[Part.STATES]:
            # Masters and the flags of their ties follow from the weights.
            is_own = place.spec.name.endswith(f"/{name}") and place.spec.dtype.is_floating_point
            if is_own and place.spec.shape == (room.capacity,):
                state = arrays.tensor(place.spec.name, Part.STATES)
                state.copy_(move.of(state))
        after = move.after
        packed.copy_(room.packed(after))
        self.log.note(name, found, after, step)


@dataclass(frozen=True)
class _Move:
    """From the order of one pattern to that of the next."""

    room: PackedRoom
    before: Pattern
    update: MaskUpdate

    @property
    def after(self) -> Pattern:
        return Pattern.from_mask(self.update.mask)

    def of(self, values: Tensor) -> Tensor:
        """Values `[capacity]` of the former pattern in the latter's order, 0 where they are new."""
        dense = self.before.dense(values[: self.before.num_kept])
        found = self.after.values_of(dense)
        return torch.cat([found, found.new_zeros(self.room.capacity - found.numel())])


def _common_step(parameters: Mapping[str, SparseParameter], num_steps: int) -> int | None:
    """The largest number that divides every step of an update; none where there is none."""
    steps = [
        step
        for algorithm in {parameter.algorithm for parameter in parameters.values()}
        for step in algorithm.target.updates.until(num_steps)
    ]
    return math.gcd(*steps) if steps else None


class _DenseGradients:
    """Gradients of dense weights in steps behind which RigL grows, each for as long as it must."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, SparseParameter]) -> None:
        self._rigl: dict[str, RigL] = {}
        self._sums: dict[str, Tensor] = {}
        self._masks: dict[str, Tensor] = {}
        self._candidates: dict[str, GrowthCandidates] = {}
        # None before the run begins, where a plan walks the model without values.
        self.steps_applied: Callable[[], int] | None = None
        modules = {
            f"{path}.weight" if path else "weight": module
            for path, module in model.named_modules()
            if isinstance(module, PackedLinear)
        }
        for name, parameter in parameters.items():
            if isinstance(parameter.algorithm, RigL):
                self._rigl[name] = parameter.algorithm
                modules[name].multiplication.watcher = _Watcher(self, name, modules[name].room)

    @property
    def is_wanted(self) -> bool:
        """Whether any weight grows by its gradient."""
        return bool(self._rigl)

    def wants(self, name: str) -> bool:
        """Whether the gradient of a weight counts in this step."""
        return self._step is not None and wants_gradient(self._rigl[name], self._step)

    def add(self, name: str, gradient: Tensor, packed: Tensor, room: PackedRoom) -> None:
        """A backward has computed a gradient of the whole weight."""
        if name in self._sums:
            self._sums[name] += gradient
        else:
            self._sums[name] = gradient.float()
            self._masks[name] = room.pattern(packed).mask()

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
            gradient, mask = self._sums.pop(name), self._masks.pop(name)
            assert self._step is not None
            self._candidates[name] = self._rigl[name].candidates(self._step, gradient.cpu(), mask)

    @property
    def _step(self) -> int | None:
        return None if self.steps_applied is None else self.steps_applied() + 1

    def take(self, name: str) -> GrowthCandidates | None:
        """What is known of a weight's gradient, once."""
        return self._candidates.pop(name, None)


@dataclass(frozen=True)
class _Watcher:
    """Of one weight; see :class:`~openwafer.training.sparsity.multiplication.GradientWatcher`."""

    gradients: _DenseGradients
    name: str
    room: PackedRoom

    @property
    def is_wanted(self) -> bool:
        return self.gradients.wants(self.name)

    def __call__(self, gradient: Tensor, packed: Tensor) -> None:
        self.gradients.add(self.name, gradient, packed, self.room)
