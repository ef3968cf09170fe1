"""What the system that leads tells those that have the other stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import Inputs
from openwafer.training.session.systems import BegunStep
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.stages.stage_plan import StagePlan


@dataclass(frozen=True)
class BegunStages:
    """A run that begins or goes on; the leader fills the stores.

    Attributes:
        config: of the run.
        vocab_size: token ids of its tokenizer.
        stages: who has what.
        counts: of the updates so far.
    """

    config: RunConfig
    vocab_size: int
    stages: StagePlan
    counts: UpdateCounts


@dataclass(frozen=True)
class BegunPass(BegunStep):
    """Forward and backward of a step.

    Attributes:
        inputs: of each micro-batch.
        num_targets: of each.
    """

    inputs: Sequence[Inputs] = ()
    num_targets: Sequence[int] = ()

    @property
    def shares(self) -> list[float]:
        """Of each micro-batch in the mean over all targets."""
        return [number / sum(self.num_targets) for number in self.num_targets]


@dataclass(frozen=True)
class BegunEvaluation:
    """Forwards without gradients.

    Attributes:
        inputs: of each.
        is_training: whether the model is in training mode.
    """

    inputs: Sequence[Inputs]
    is_training: bool


@dataclass(frozen=True)
class Settled:
    """What becomes of the gradients of a pass: multiplied and applied, or forgotten for None."""

    coefficient: float | None
