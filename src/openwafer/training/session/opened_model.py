"""A model of a run with what executes it: all that evaluation and generation need."""

from dataclasses import dataclass

from torch import nn

from openwafer.training.data import Tokenizer
from openwafer.training.session.config import RunConfig
from openwafer.training.stream.execute.execution import Execution


@dataclass(frozen=True)
class OpenedModel:
    """A model whose weights are in a store, or on the device.

    Attributes:
        config: of the run.
        model: in training mode.
        tokenizer: of its tokens.
        execution: runs its passes.
        steps_done: training steps behind the weights.
    """

    config: RunConfig
    model: nn.Module
    tokenizer: Tokenizer
    execution: Execution
    steps_done: int
