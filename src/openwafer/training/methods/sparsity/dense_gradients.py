"""Gradients of whole weights, by which RigL grows: what they take, and what is left of them."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.sparsity.masks.algorithms import (
    GrowthCandidates,
    RigL,
    drop_fraction_at,
    wants_gradient,
)
from openwafer.training.sparsity.masks.structures import Shape
from openwafer.training.sparsity.options import SparseParameter
from openwafer.training.sparsity.packed_linear import packed_linears, rooms_of
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.plan.workload import HeldGradients

GRADIENT_BYTES: Final = 4
CANDIDATE_BYTES: Final = 4 + 8
"""A magnitude and its position."""
ORDER_BYTES: Final = 1 + 3 * 4
"""For each element of the weight whose candidates are found: mask, magnitudes and their order."""


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
