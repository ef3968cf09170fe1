"""Plans a run from its model and its config."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.training.session.building import make_updater, make_workload, plan_input
from openwafer.training.session.config import RunConfig
from openwafer.training.session.systems import MeasuredSystems
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import Planned, plan_run


@dataclass(frozen=True)
class ToPlan:
    """What a run is planned from beside its config.

    Attributes:
        model: its parameters need no values.
        optimizers: over them.
        vocab_size: token ids of the tokenizer.
        store: how the store talks to the disk.
        folder: where a disk tier would be.
        weights: initial ones that the model does not hold.
        measured: what the systems have found out of themselves; ``None`` where they have not met.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    vocab_size: int
    store: StoreOptions
    folder: Path
    weights: Iterable[torch.Tensor] = ()
    measured: MeasuredSystems | None = None

    def planned(self, config: RunConfig) -> Planned:
        """The plan of a run whose systems, one or several, have no stages."""
        return plan_run(
            make_workload(self.model, config, self.vocab_size),
            make_updater(self.optimizers, self.model, config),
            plan_input(config, self.store, self.measured),
            folder=self.folder,
            weights=self.weights,
        )
