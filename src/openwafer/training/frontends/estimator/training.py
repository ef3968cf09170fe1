"""One call of ``train``: steps of a streamed loop, with its hooks and checkpoints."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from openwafer.training.frontends.estimator import checkpoints, states
from openwafer.training.frontends.estimator.beginning import Beginning
from openwafer.training.frontends.estimator.checkpoints import Checkpoint, Index
from openwafer.training.frontends.estimator.graph import Graph, Outputs
from openwafer.training.frontends.estimator.hooks import Hooks
from openwafer.training.frontends.estimator.inputs import Batch
from openwafer.training.frontends.estimator.run_config import RunConfig
from openwafer.training.frontends.estimator.train_ops import TrainStep
from openwafer.training.frontends.scripts.program import ScriptProgram
from openwafer.training.metrics.loggers import tensorboard_writers

LOG = logging.getLogger("openwafer.estimator")


class Summaries:
    """Scalars for TensorBoard; none where it is not installed.

    Args:
        folder: of its events.
    """

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        if find_spec("tensorboard") is not None:
            self._writer = tensorboard_writers("a summary").SummaryWriter(str(folder))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write values."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class SavingListener(Protocol):
    """What is called around the writing of a checkpoint.

    ``begin()``, ``before_save(session, global_step_value)`` and ``end(session,
    global_step_value)`` are called, too, where it has them; no session is given.
    """

    def after_save(self, session: Any, global_step_value: int) -> Any:
        """A checkpoint is written; what is true ends the run behind this step."""


@dataclass
class TrainingRun:
    """One call of ``train``.

    Attributes:
        graph, step: that is built.
        config: of the estimator.
        begun: batches and random numbers.
        global_step: counts steps.
        end_step: last one; None where the batches end.
    """

    graph: Graph
    step: TrainStep
    config: RunConfig
    begun: Beginning
    global_step: torch.Tensor
    end_step: int | None

    def __post_init__(self) -> None:
        self._names = {id(parameter): name for name, parameter in self.graph.named_parameters()}
        self._folder = Path(str(self.config.model_dir))
        self._num_batches = self.begun.num_batches
        # What a call has left that was cut off is the present state.
        self._saved_step = int(self.global_step) if self.begun.is_resumed else None
        self._saved_time = time.monotonic()
        self._loss = torch.tensor(math.nan)
        self._listeners: Sequence[SavingListener] = ()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Begin with a checkpoint's weights and states.

        Raises:
            OpenwaferError: what the functions of :mod:`states` raise.
        """
        states.restore_weights(self.graph, checkpoint)
        states.restore_step(self._names, self.step, checkpoint)

    def run(
        self, program: ScriptProgram, hooks: Hooks, listeners: Sequence[SavingListener]
    ) -> None:
        """Take the steps."""
        summaries = Summaries(self._folder)
        self._listeners = listeners
        with program.streamed(self.graph, self.step.optimizers):
            hooks.begin()
            self._tell("begin")
            is_over = self._save()
            for batch in () if is_over else self.begun.batches:
                brought = program.brought(batch)
                is_over = hooks.run(lambda: self._take(brought))  # noqa: B023 - called here
                self._log(summaries)
                is_over = (self._is_due() and self._save()) or is_over
                if is_over or self._is_last():
                    # No batch is asked for behind the last step.
                    break
            self._save()
            self._tell("end", None, int(self.global_step))
            hooks.end()
        summaries.close()
        Index.of(self._folder).ended().write(self._folder)

    def _is_last(self) -> bool:
        return self.end_step is not None and int(self.global_step) >= self.end_step

    def _take(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        outputs: Outputs = self.graph(*batch)
        assert outputs.loss is not None
        outputs.loss.backward()
        self.step.take()
        self.global_step += 1
        self._num_batches += 1
        self._loss = outputs.loss.detach()
        return outputs.named()

    def _log(self, summaries: Summaries) -> None:
        step = int(self.global_step)
        if self.config.log_step_count_steps and step % self.config.log_step_count_steps == 0:
            LOG.info("loss = %s, step = %d", self._loss.item(), step)
        if self.config.save_summary_steps and step % self.config.save_summary_steps == 0:
            summaries.add({"loss": self._loss.item()}, step)

    def _is_due(self) -> bool:
        if self.config.save_checkpoints_steps:
            return int(self.global_step) % self.config.save_checkpoints_steps == 0
        waited = time.monotonic() - self._saved_time
        return self.config.save_checkpoints_secs is not None and (
            waited >= self.config.save_checkpoints_secs
        )

    def _tell(self, name: str, *args: Any) -> None:
        for listener in self._listeners:
            if hasattr(listener, name):
                getattr(listener, name)(*args)

    def _save(self) -> bool:
        """Write a checkpoint, if this step has none; returns whether a listener ends the run."""
        step = int(self.global_step)
        if self._saved_step == step:
            return False
        self._tell("before_save", None, step)
        random_state, counted = torch.get_rng_state(), torch.tensor(step)
        tensors = [
            *states.tensors_of(self._names, self.graph, self.step),
            (states.GLOBAL_STEP, lambda: counted),
            (states.RANDOM, lambda: random_state),
            (states.RANDOM_AT_BEGIN, lambda: self.begun.random_at_begin),
        ]
        notes = states.notes_of(self._names, self.step, step, self._num_batches)
        path = checkpoints.write(self._folder, tensors, notes, self.config.keep_checkpoint_max or 0)
        LOG.info("Saving checkpoints for %d into %s", step, path)
        self._saved_step, self._saved_time = step, time.monotonic()
        asked = [one.after_save(None, step) for one in self._listeners]
        return any(asked)
