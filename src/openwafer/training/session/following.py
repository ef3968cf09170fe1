"""What a system does that does not lead: the steps that it is told, with its share of the batch.

Where it owns records, it opens their store and commits it. The leader decides about a step, by the
norms of all gradients, which their owners report; what it then asks of the owners, an
:class:`~openwafer.training.systems.owner.Owner` does.
"""

import shutil
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import error
from openwafer.training.data import TokenDataset, prepare
from openwafer.training.data.dataset import find_dataset
from openwafer.training.host_memory import keeping_freed_memory, return_large_blocks
from openwafer.training.session.building import (
    build_hollow_model,
    make_optimizers,
    make_updater,
    make_workload,
    plan_input,
    tokenizer_of,
)
from openwafer.training.session.config_sections import Precision
from openwafer.training.session.forward import forward_of, seed_micro_batch
from openwafer.training.session.matmul_precision import multiplying
from openwafer.training.session.optimizers import LearningRates
from openwafer.training.session.pipelined.plan import Flows, as_one_system
from openwafer.training.session.pipelined.running import (
    BegunEvaluation,
    BegunPass,
    StageOfSystem,
    joined,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import OWNER_VERSION, OwnerState
from openwafer.training.session.shared_stores import (
    EarlierStores,
    FindRun,
    FindStores,
    store_options,
    tell_run,
    tell_stores,
)
from openwafer.training.session.systems import (
    BegunRun,
    BegunStep,
    Measure,
    Systems,
    gathered_reports,
)
from openwafer.training.session.trainer import StepRoot
from openwafer.training.step import NotFiniteError, StepGradients
from openwafer.training.store import ParameterStore, StoreOptions
from openwafer.training.stream.assemble import execute_by
from openwafer.training.stream.execute.execution import StepContext
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.systems.owner import Owner


def follow(systems: Systems) -> None:
    """Compute this system's share of a run's steps until the leader ends it.

    A signal that this system gets ends the run on all of them, after their step.

    Raises:
        OpenwaferError: ``rank-lost``, ``systems-data``, or whatever the model and the device meet.
    """
    return_large_blocks()
    with systems.interruption, closing(EarlierStores(systems)) as stores, ExitStack() as run:
        systems.control.answer = partial(_prepare, systems, stores, run)
        systems.follow()


def _prepare(systems: Systems, stores: EarlierStores, run: ExitStack, told: object) -> None:
    """Do what the leader tells before a run begins, and begin it."""
    match told:
        case Measure():
            systems.share_measurement()
        case FindRun():
            tell_run(systems, told)
        case FindStores():
            tell_stores(systems, told)
        case BegunRun():
            run.enter_context(multiplying(told.config.matmul_precision))
            follower = run.enter_context(closing(_Follower(systems, told)))
            systems.control.answer = follower.do
        case _:
            stores.answer(told)


class _Follower:
    """A run on a system that does not lead: its share of the steps, and the records that it owns.

    Where the leader has all records, the store here is empty.
    """

    def __init__(self, systems: Systems, begun: BegunRun) -> None:
        self._systems, self._begun = systems, begun
        self._config = config = begun.config
        self._contract = contract = begun.contract
        alone, vocab_size, stages = as_one_system(config), begun.vocab_size, contract.stages
        # The first stage alone needs tokens.
        self._dataset = _find_data(begun) if stages is None else None
        with TemporaryDirectory(prefix="openwafer-") as scratch:
            self._model = model = build_hollow_model(alone, vocab_size, Path(scratch))
        self._device = device = plan_input(config, StoreOptions()).make_device()
        flow_of = None
        if stages is not None:
            flow_of = Flows(make_workload(model, alone, vocab_size), stages.layers)
        replicas = joined(systems, begun, flow_of)
        optimizers = make_optimizers(model, alone, vocab_size)
        self._rates = LearningRates(optimizers, config)
        updater = make_updater(optimizers, model, alone)
        # A copy of an owner's stage updates nothing.
        owns = bool(contract.shares) and systems.rank in contract.ownership.owners.values()
        updater.counts = begun.counts.copy() if owns else UpdateCounts(begun.counts.steps_applied)
        context = StepContext(updater, device, config.autocast_dtype, replicas)
        self._store = store = self._open_store()
        self._execution = execute_by(contract, model, store, context)
        self._gradients = StepGradients(
            is_clipped=config.clip_norm is not None,
            is_scaled=config.precision is Precision.FP16,
            norm_dtype=updater.norm_dtype,
        )
        self._execution.watch_gradients(self._gradients.watch)
        self._owner = Owner(self._execution, systems.control.group, self._commit)

    def _open_store(self) -> ParameterStore:
        begun, rank = self._begun, self._systems.rank
        share = self._contract.share(rank)
        if not self._contract.shares:
            return share.create(None, StoreOptions())
        folder = RunFolder(begun.folder)
        path = folder.store_of(rank)
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
            state = OwnerState(OWNER_VERSION, steps_done, stores, self._owner.counts)
            self._store.commit_begin(steps_done, asdict(state))

    def do(self, told: object) -> object:
        """Do what the leader tells; returns what it is answered."""
        match told:
            case BegunStep():
                self._take(told)
            case BegunEvaluation():
                self._stage.share_evaluation(told)
            case _:
                return self._owner.answer(told)
        return None

    @property
    def _stage(self) -> StageOfSystem:
        assert isinstance(self._execution, StageOfSystem)
        return self._execution

    def close(self) -> None:
        """End the threads, and close the store."""
        self._owner.close()

    def _take(self, begun: BegunStep) -> None:
        self._rates.set(begun.step)
        self._gradients.begin(begun.loss_scale)
        try:
            if isinstance(begun, BegunPass):
                with self._systems.measured(begun):
                    self._stage.share_pass(begun, self._gradients)
            else:
                self._run(begun)
        except NotFiniteError:
            # The leader has met it, too, and says what becomes of the run.
            self._execution.discard_gradients()

    def _run(self, begun: BegunStep) -> None:
        """Run this system's micro-batches through all layers."""
        assert self._dataset is not None
        num = self._config.batch.micro_batches_at(begun.step)
        block = self._systems.block(num)
        batches = self._dataset.micro_batches(begun.step, num, block)
        device = self._device.torch_device
        forwards = [forward_of(self._model, batch, device) for batch in batches]
        root = StepRoot(batches, num, begun.loss_scale, self._systems, self._device)

        def seed(index: int) -> None:
            seed_micro_batch(self._config.seed, begun.step, block.start + index)

        with self._systems.measured(begun), keeping_freed_memory():
            self._execution.run(forwards, root, seed)
            if self._contract.shares:
                gathered_reports(self._systems, self._gradients.report)


def _find_data(begun: BegunRun) -> TokenDataset:
    """The run's tokens, prepared here where they are not."""
    config = begun.config
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    folder = begun.data_folder
    dataset = find_dataset(folder, preparation.sampling, begun.data)
    if dataset is None:
        dataset = prepare(preparation, folder, lambda progress: None)
    if dataset.fingerprint != begun.data:
        raise error(
            "systems-data",
            f"the batches of {folder} on this host are not those of the system that leads",
            notes=(f"expected the fingerprint {begun.data}", f"found {dataset.fingerprint}"),
            help="let all hosts see one data folder, or the same source",
        )
    return dataset
