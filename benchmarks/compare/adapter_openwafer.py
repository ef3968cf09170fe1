"""openwafer: weights stream from a parameter store in host memory or on disk."""

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from run_tokens import run_of
from system import Setup, serve

from openwafer.training.plan_record import PlanRecord
from openwafer.training.session.run import Saver, opened, run_step
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.store import StoreOptions
from openwafer.training.stream.records import weights_of


class OpenWafer:
    """A run of the product, one step at a time."""

    def __init__(self, setup: Setup) -> None:
        config = run_of(setup)
        self._stack = ExitStack()
        folder = RunFolder(config.path)
        self._stack.enter_context(folder.beginning())
        opening = opened(config, folder, None, lambda _text: None, StoreOptions())
        self._run = self._stack.enter_context(opening)
        self._saver = Saver(self._run)
        self._saver.begin()

    @property
    def plan(self) -> PlanRecord:
        """The plan, without the time of a step."""
        return self._run.planned.outline

    def step(self, tokens: torch.Tensor) -> float:
        run = self._run
        batches = [batch.input_ids for batch in run.batches(run.steps_done)]
        if not torch.equal(torch.cat(batches), tokens):
            raise ValueError(f"step {run.steps_done} of the run has other tokens than the others")
        run_step(run, self._saver)
        return run.trainer.loss

    def settle(self) -> None:
        """Apply the updates of the last step and wait until its commit is on disk."""
        self._saver.settle()

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return weights_of(self._run.execution.store)

    def close(self) -> None:
        self._stack.close()


if __name__ == "__main__":
    serve(OpenWafer)
