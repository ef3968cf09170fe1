"""A training run that is executed now in one way and now in another, over one store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.store.layout import Part, state_name
from openwafer.training.store.parameter_store import ParameterStore, Tier
from openwafer.training.store.update_rules.update_pass import AVERAGE
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import (
    StepContext,
    StepHook,
    each,
)
from openwafer.training.stream.execute.resident import ResidentExecution
from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.updates import UpdateCounts, Updater
from openwafer.training.stream.records import borrowed_parts, lay_out_records, write_weights
from tests.training.stream.both_loops import seed_of
from tests.training.stream.small_gpt import build_gpt, gpt_loss, gpt_run

Optimize = Callable[[nn.Module], list[Optimizer]]
COEFFICIENT = 0.5


@dataclass
class OneStore:
    """The small GPT's weights and states in DRAM, and the number of the next step.

    Odd steps leave the module `resting` alone.
    """

    optimize: Optimize
    average_decay: float | None = None
    resting: str | None = None
    on_step: StepHook | None = None
    counts: UpdateCounts = field(default_factory=UpdateCounts)
    steps_done: int = 0

    def __post_init__(self) -> None:
        model = build_gpt()
        parameters = dict(model.named_parameters())
        updater = self._updater(model)
        layouts = lay_out_records(
            partition(model),
            parameters=parameters,
            state_arrays=updater.state_arrays,
            keeps_gradients=False,
        )
        places = dict.fromkeys(product(layouts, Part), Tier.DRAM)
        self.store = ParameterStore.create(layouts.values(), places, folder=None, ring_bytes=0)
        write_weights(self.store, parameters)
        updater.initialise(self.store)

    def _updater(self, model: nn.Module) -> Updater:
        return Updater(self.optimize(model), model, average_decay=self.average_decay)

    def execute(
        self, kind: type[ResidentExecution], device: Device, num_steps: int
    ) -> ResidentExecution:
        """Go on for some steps with a model of its own; every gradient is multiplied first."""
        model = build_gpt()
        updater = self._updater(model)
        updater.counts = self.counts
        execution = kind(model, self.store, StepContext(updater, device))
        if self.on_step is not None:
            execution.between_steps(self.on_step, each(1))
        for step in range(self.steps_done, self.steps_done + num_steps):
            if self.resting is not None:
                model.get_submodule(self.resting).requires_grad_(step % 2 == 0)
            batch = gpt_run().batch(step, 0).to(device.torch_device)
            forward = partial(gpt_loss, model, batch)
            execution.run([forward], lambda loss: loss, partial(seed_of, step))
            execution.complete_step(COEFFICIENT)
        self.steps_done += num_steps
        return execution

    def go_on(self, kind: type[ResidentExecution], device: Device, num_steps: int) -> None:
        """The same, with the store up to date in the end."""
        execution = self.execute(kind, device, num_steps)
        execution.flush()
        execution.close()

    def averages(self) -> Mapping[str, Tensor]:
        """Averages by parameter, their missed moves made."""
        assert self.average_decay is not None
        arrays = self.arrays()
        found = {}
        for name, _ in build_gpt().named_parameters():
            found[name] = arrays[state_name(AVERAGE, name)]
            averaging = self.counts.averaging(name, self.average_decay, self.steps_done)
            averaging.catch_up(found[name], arrays[name])
        return found

    def arrays(self) -> Mapping[str, Tensor]:
        """Weights and states by name."""
        return {
            place.spec.name: loan.tensor(place.spec.name, part).clone()
            for part in (Part.WEIGHTS, Part.STATES)
            for layout, loan in borrowed_parts(self.store, part)
            for place in layout.parts[part]
        }
