"""A system that does not lead a run owns records: it opens their store, and commits it.

The leader decides about a step, by the norms of all gradients, which their owners report. What it
then asks of the owners, an :class:`~openwafer.training.systems.owner.Owner` does.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict

from torch import nn

from openwafer.training.session.building import make_optimizers, make_updater
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.precision import Precision
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import OWNER_VERSION, OwnerState
from openwafer.training.session.shared_stores import store_options
from openwafer.training.session.systems import BegunRun, BegunStep, Systems
from openwafer.training.step import GradientReport, StepGradients
from openwafer.training.store import ParameterStore, StoreOptions
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import StepContext, StreamedExecution
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.systems.owner import Owner, TellCounts


def gathered_reports(systems: Systems, own: GradientReport) -> list[GradientReport]:
    """Those of all systems; each of them calls this when a pass is over."""
    found = systems.gathered(own, "the norms of its gradients")
    return [report for report in found if isinstance(report, GradientReport)]


def gathered_counts(systems: Systems, own: UpdateCounts) -> UpdateCounts:
    """Counts of the parameters of all systems; the leader calls this between two steps."""
    others = []
    for found in systems.answers(TellCounts(), "how often it has updated its parameters"):
        assert isinstance(found, UpdateCounts)
        others.append(found)
    return own.joined(others)


class OwnedRecords:
    """The store of a system that does not lead, and what updates it.

    Args:
        systems: those of the run.
        begun: the run.
        model: its parameters need no values.
        device: where it runs.
        casting: makes the context that forwards, and nothing else, run in.

    Attributes:
        execution: runs this system's micro-batches, and updates its records.
        owner: does what the leader asks between two steps.
    """

    def __init__(
        self,
        systems: Systems,
        begun: BegunRun,
        model: nn.Module,
        device: Device,
        casting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._systems, config = systems, begun.config
        optimizers = make_optimizers(model, config, begun.vocab_size)
        updater = make_updater(optimizers, model, config)
        updater.counts = begun.counts.copy()
        self._rates = LearningRates(optimizers, config)
        self._begun = begun
        self._store = self._open_store()
        plan, replicas = begun.contract.plan, systems.replicas_by(config.reduction, begun.owners)
        assert plan.schedule is not None
        context = StepContext(plan.schedule.timing, casting, replicas)
        self.execution = StreamedExecution(model, plan, self._store, updater, device, context)
        self._gradients = StepGradients(
            is_clipped=config.clip_norm is not None,
            is_scaled=config.precision is Precision.FP16,
            norm_dtype=updater.norm_dtype,
        )
        self.execution.watch_gradients(self._gradients.watch)
        self.owner = Owner(self.execution, systems.control.group, self._commit)

    def _open_store(self) -> ParameterStore:
        begun, rank = self._begun, self._systems.rank
        folder = RunFolder(begun.folder)
        path, share = folder.store_of(rank), begun.shares[rank]
        options = store_options(StoreOptions(), begun.config, self._systems)
        if begun.store_step is not None:
            return share.open(path, options, begun.store_step)
        if begun.keeps_old:
            folder.put_aside(path)
        # What is still there is of steps that will be made again.
        shutil.rmtree(path, ignore_errors=True)
        return share.create(path, options)

    def _commit(self, steps_done: int) -> None:
        stores = self._begun.stores
        if stores is not None:
            state = OwnerState(OWNER_VERSION, steps_done, stores, self.owner.counts)
            self._store.commit_begin(steps_done, asdict(state))

    def begin_step(self, begun: BegunStep) -> None:
        """Set the learning rates and the loss scale of a step."""
        self._rates.set(begun.step)
        self._gradients.begin(begun.loss_scale)

    def report(self) -> None:
        """Tell the leader of the gradients of the pass that is over."""
        gathered_reports(self._systems, self._gradients.report)

    def abandon_step(self) -> None:
        """Forget a step that is not applied."""
        self.execution.discard_gradients()
