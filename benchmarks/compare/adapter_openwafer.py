"""openwafer: weights stream from a parameter store in host memory or on disk."""

from collections.abc import Iterator
from functools import partial

import torch
from system import Setup, serve
from workload import batch_of, build_model, build_optimizer, loss_of

from openwafer.training.plan_record import Activations, Mode, PlanRecord
from openwafer.training.session.gradient_norm import GradientNorm
from openwafer.training.session.speculation import Speculation
from openwafer.training.store.update_rules import clip_coefficient
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.dry_run import Workload as StepWorkload
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.records import weights_of
from openwafer.training.stream.stream_options import StreamOptions


class OpenWafer:
    """Streams always, and keeps activations as the other systems do."""

    def __init__(self, setup: Setup) -> None:
        self._clip_norm = setup.workload.clip_norm
        self._model = build_model(setup.workload)
        optimizer = build_optimizer(self._model)
        self._is_on_disk = setup.tier == "disk"
        options = StreamOptions(
            device="cpu",
            mode=Mode.STREAMED,
            tier=StoreTier(setup.tier),
            host_memory_bytes=setup.host_bytes if self._is_on_disk else None,
            default_activations=Activations.KEEP,
            keeps_gradients=self._clip_norm is not None,
            commits_steps=self._is_on_disk,
            may_speculate=self._is_on_disk and self._clip_norm is not None,
        )
        work = StepWorkload(self._model, [batch_of(setup.workload, 0)], loss_of)
        folder = setup.folder / "store"
        self._planned = plan_run(work, Updater(optimizer, self._model), options, folder=folder)
        self._execution = assemble(self._model, self._planned, folder=folder)
        self._speculation = None
        if self._planned.speculates and isinstance(self._execution, StreamedExecution):
            self._speculation = Speculation(self._execution, self._model)
        self._norm = GradientNorm([name for name, _ in self._model.named_parameters()])
        self._num_committed = 0
        if self._clip_norm is not None:
            self._execution.watch_gradients(self._norm.add)
        if self._is_on_disk:
            self._execution.on_updates_applied = self._commit

    def _commit(self) -> None:
        """Begin to make the last step crash-safe, which a run on the disk tier does every step."""
        self._num_committed += 1
        self._execution.store.commit_begin(self._num_committed, {})

    @property
    def plan(self) -> PlanRecord:
        """The plan, without the time of a step."""
        return self._planned.outline

    def step(self, tokens: torch.Tensor) -> float:
        if self._speculation is not None:
            self._speculation.begin_step()
        loss, coefficient = self._run(tokens)
        if self._speculation is not None:
            if coefficient != 1.0 and self._speculation.is_under_way:
                self._speculation.begin_again(coefficient)
                self._run(tokens)
            self._speculation.end_step(is_undone=coefficient != 1.0)
        self._execution.complete_step(coefficient)
        return loss

    def _run(self, tokens: torch.Tensor) -> tuple[float, float]:
        [loss] = self._execution.run([partial(loss_of, self._model, tokens)], _same, None)
        if self._clip_norm is None:
            return loss, 1.0
        return loss, clip_coefficient(self._norm.total(), self._clip_norm)

    def settle(self) -> None:
        """Apply the updates of the last step and wait until its commit is on disk."""
        self._execution.flush()
        if self._is_on_disk:
            self._execution.store.commit_wait()

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return weights_of(self._execution.store)

    def close(self) -> None:
        self._execution.close()
        self._execution.store.close()


def _same(loss: torch.Tensor) -> torch.Tensor:
    return loss


if __name__ == "__main__":
    serve(OpenWafer)
