"""A run with its data, its model and its store at hand, from the beginning or from where it was."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.data import Batch, DataSource, Preparation, TokenDataset, prepare
from openwafer.training.data.dataset import find_dataset
from openwafer.training.methods.seam import MethodRun, RunParts
from openwafer.training.models import UserModule
from openwafer.training.session.allocator import return_large_blocks
from openwafer.training.session.building import (
    build_hollow_model,
    build_model,
    build_shapes,
    make_optimizers,
    make_updater,
    plan_input,
    require_embeddings,
    take_weights,
    tokenizer_of,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.disk_tracks import DiskTracks
from openwafer.training.session.earlier_stores import openable
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.opened_model import OpenedModel, room_beside_weights
from openwafer.training.session.pipelined.plan import (
    is_left_to_plan,
    is_pipelined,
    plan_systems,
    require_room,
    with_stages,
)
from openwafer.training.session.pipelined.running import BegunStages, LeadingStage, lead_stages
from openwafer.training.session.planning import ToPlan
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import BufferWatch, RunState, StoreSet
from openwafer.training.session.saved_run import SavedRun, restore_execution
from openwafer.training.session.shared_stores import store_options, store_set
from openwafer.training.session.systems import BegunRun, Systems
from openwafer.training.session.trainer import Trainer
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import (
    Planned,
    assemble,
    split_that_fits,
)
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.replicas.replica_link import Replicas

DATA_STAYS = (
    "batch, seed and data of a run stay as they are, but for changes of batch.schedule that are "
    "still to come; begin a new run to change them"
)

Notify = Callable[[str], None]


@dataclass
class OpenedRun:
    """Everything of a run that one process holds.

    Attributes:
        config, folder: of the run.
        dataset: the training split.
        model: in training mode; its weights are in the store.
        planned, execution, trainer: how steps are run.
        buffers: finds the buffers that training changes.
        methods: those that the config asks for.
        systems: those of the run; ``None`` where there is one.
        steps_done: the number of the next step.
        stores: what the stores of several systems commit as; ``None`` where none do.
    """

    config: RunConfig
    folder: RunFolder
    dataset: TokenDataset
    model: nn.Module
    planned: Planned
    execution: Execution
    trainer: Trainer
    buffers: BufferWatch
    methods: tuple[MethodRun, ...]
    systems: Systems | None = None
    steps_done: int = 0
    stores: StoreSet | None = None

    @property
    def shares_store(self) -> bool:
        """Whether other systems have records in their stores, and not those of a stage."""
        return self.config.shares_store and self.planned.stages is None

    def batches(self, step: int) -> tuple[Batch, ...]:
        """The micro-batches of a step that this system computes."""
        num = self.config.batch.micro_batches_at(step)
        is_whole = self.systems is None or self.planned.stages is not None
        block = None if is_whole or self.systems is None else self.systems.block(num)
        return self.dataset.micro_batches(step, num, block)

    @property
    def opened_model(self) -> OpenedModel:
        """The model as it stands."""
        return OpenedModel(
            self.config,
            self.model,
            self.dataset.tokenizer,
            self.execution,
            self.steps_done,
            room_beside_weights(self.planned),
        )

    def state(self) -> RunState:
        """What a commit or checkpoint of this moment keeps."""
        scaler = self.trainer.scaler
        return RunState(
            steps_done=self.steps_done,
            counts=self.execution.updater.counts.of_wholes(),
            loss_scale={} if scaler is None else scaler.state(),
            data=self.dataset.fingerprint_until(self.steps_done),
            seed=self.config.seed,
            buffers=self.buffers.changed(),
            undone=self.trainer.speculation.undone,
            stores=self.stores,
            methods={each.saved_as: each.state() for each in self.methods if each.saved_as},
        )

    def restore(self, state: RunState) -> None:
        """Go on where another process was; the store holds the arrays of that step already."""
        self.steps_done = state.steps_done
        self.buffers.restore(state.buffers)
        if self.trainer.scaler is not None and state.loss_scale:
            self.trainer.scaler.restore(state.loss_scale)
        self.trainer.speculation.restore(state.undone)
        for method in self.methods:
            if method.saved_as in state.methods:
                method.restore(state.methods[method.saved_as])


@contextmanager
def opened(
    config: RunConfig,
    folder: RunFolder,
    saved: SavedRun | None,
    notify: Notify,
    store: StoreOptions,
    systems: Systems | None = None,
) -> Iterator[OpenedRun]:
    """Context in which a run is open: new, or as it was saved.

    Args:
        config: of the run.
        folder: locked by the caller.
        saved: where to go on; ``None`` begins at step 0.
        notify: told what takes long.
        store: how the store talks to the disk; the run listens to its transfers itself.
        systems: those of the run, which this one leads; ``None`` where there is one.
    """
    return_large_blocks()
    dataset = _open_data(config, folder, saved, notify)
    vocab_size = dataset.tokenizer.vocab_size
    require_embeddings(config.model, dataset.tokenizer)
    notify("building the model")
    model, weights = _build(config, folder, vocab_size, store, is_saved=saved is not None)
    config = config.measured(model)
    optimizers = make_optimizers(model, config, vocab_size)
    tracks, buffers = DiskTracks(), BufferWatch(model)
    opening = RunParts(model, dataset, folder, weights if saved is None else {})
    methods = tuple(method.begin(opening) for method in config.methods())
    notify("planning the step")
    to_disk = store_options(replace(store, on_transfer=tracks.add), config, systems)
    measured = None if systems is None else systems.measure()
    parts = ToPlan(model, optimizers, vocab_size, to_disk, folder.store, weights.values(), measured)
    planned = parts.planned(config) if systems is None else plan_systems(parts, config, folder)
    if saved is not None:
        saved = openable(saved, planned, config, folder, systems, notify)
    stores = store_set(saved, config, planned)
    if planned.stages is not None:
        assert systems is not None
        stages, counts = planned.stages.plan, _counts_of(saved)
        begun = BegunStages(with_stages(config, len(stages.spans)), vocab_size, stages, counts)
        execution: Execution = lead_stages(systems, planned, begun, saved, folder, weights)
    else:
        replicas = _joined(systems, _begun(config, dataset, planned, saved, stores))
        execution = _execute(saved, model, planned, folder, weights, replicas)
    weights.clear()
    tracks.recorder = execution.recorder
    try:
        trainer = _make_trainer(config, model, execution, optimizers, systems, methods)
        held = dataset, model, planned, execution, trainer, buffers, methods, systems
        run = OpenedRun(config, folder, *held, stores=stores)
        if saved is not None:
            run.restore(saved.state)
        yield run
    finally:
        execution.close()
        execution.store.close()


def _joined(systems: Systems | None, begun: BegunRun) -> Replicas | None:
    """Begin the run on the other systems, if there are any; how weights and gradients pass."""
    if systems is None:
        return None
    systems.begin(begun)
    return systems.replicas_by(begun.config.reduction, begun.owners if begun.shares else {})


def _make_trainer(
    config: RunConfig,
    model: nn.Module,
    execution: Execution,
    optimizers: Sequence[Optimizer],
    systems: Systems | None,
    methods: Sequence[MethodRun],
) -> Trainer:
    if isinstance(execution, LeadingStage):
        return execution.trainer(optimizers)
    rates = LearningRates(optimizers, config)
    return Trainer(model, execution, rates, config, systems, methods)


def _require_room(
    config: RunConfig, folder: RunFolder, vocab_size: int, store: StoreOptions
) -> None:
    """Refuse what the store has no room for before weights are drawn: large ones go to a file."""
    model = None if isinstance(config.model, UserModule) else build_shapes(config, vocab_size)
    if model is None:
        return
    updater = make_updater(make_optimizers(model, config, vocab_size), model, config)
    if is_pipelined(config):
        require_room(model, updater, config)
        return
    try:
        split_that_fits(model, updater, plan_input(config, store), folder=folder.store)
    except OpenwaferError:
        if not is_left_to_plan(config):
            raise
        require_room(model, updater, with_stages(config, config.systems))


def _build(
    config: RunConfig,
    folder: RunFolder,
    vocab_size: int,
    store: StoreOptions,
    *,
    is_saved: bool,
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model, and its initial weights where nothing has been saved."""
    if not is_saved:
        _require_room(config, folder, vocab_size, store)
        model = build_model(config, vocab_size, folder.path)
        return model, take_weights(model, config)
    written = type(config).load(folder.config)
    model = build_hollow_model(config, vocab_size, folder.path)
    config.require_same(written, model)
    return model, {}


def _counts_of(saved: SavedRun | None) -> UpdateCounts:
    """Of the updates so far."""
    return UpdateCounts() if saved is None else saved.state.counts


def _begun(
    config: RunConfig,
    dataset: TokenDataset,
    planned: Planned,
    saved: SavedRun | None,
    stores: StoreSet | None,
) -> BegunRun:
    found = None if saved is None else saved.found
    ranks = range(config.systems) if config.shares_store else ()
    return BegunRun(
        config,
        dataset.folder.parent.absolute(),
        dataset.fingerprint,
        planned.plan.contract,
        planned.owners,
        tuple(map(planned.share, ranks)),
        _counts_of(saved),
        dataset.tokenizer.vocab_size,
        config.path.absolute(),
        stores,
        None if found is None or found.stores is None else found.step,
        keeps_old=saved is not None and saved.is_chosen,
    )


def _execute(
    saved: SavedRun | None,
    model: nn.Module,
    planned: Planned,
    folder: RunFolder,
    weights: Mapping[str, torch.Tensor],
    replicas: Replicas | None,
) -> Execution:
    if saved is not None:
        return restore_execution(saved, model, planned, folder, replicas)
    # Nothing was saved, so what lies in the store's place was never promised to anyone.
    folder.delete_store()
    return assemble(model, planned, folder=folder.store, weights=weights, replicas=replicas)


def _open_data(
    config: RunConfig, folder: RunFolder, saved: SavedRun | None, notify: Notify
) -> TokenDataset:
    if saved is not None:
        return open_saved_data(config, folder, saved)
    return prepare_data(config, folder, notify)


def prepare_data(config: RunConfig, folder: RunFolder, notify: Notify) -> TokenDataset:
    """The tokens that a run will train on, made now unless they are there."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    tokens = config.data.folder or folder.data

    def report(progress: Preparation) -> None:
        share = progress.done_bytes / max(progress.total_bytes, 1)
        notify(f"{progress.stage}: {progress.num_documents} documents, {share:.0%}")

    return prepare(preparation, tokens, report)


def open_saved_data(config: RunConfig, folder: RunFolder, saved: SavedRun) -> TokenDataset:
    """The tokens that a run was trained on; raises ``run-data-changed`` for any others."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    tokens = config.data.folder or folder.data
    _require_same_source(type(config).load(folder.config).data.source, config.data.source)
    # The tokens of the run, whatever has become of the source since; sizes to come may change.
    trained_on = preparation.sampling.until(saved.state.steps_done)
    dataset = find_dataset(tokens, trained_on, saved.state.data)
    if dataset is None:
        raise error(
            "run-data-changed",
            f"the batches of {tokens} are not those that the run {folder.path} was trained on",
            notes=(f"expected the fingerprint {saved.state.data}",),
            help=f"{DATA_STAYS}; if the tokens were moved or deleted, bring them back",
        )
    return replace(dataset, sampling=preparation.sampling)


def _require_same_source(trained_on: DataSource, now: DataSource) -> None:
    if now != trained_on:
        raise error(
            "run-data-changed",
            "data.source is not what the run was trained on",
            notes=(f"expected {trained_on}", f"found {now}"),
            help=DATA_STAYS,
        )
