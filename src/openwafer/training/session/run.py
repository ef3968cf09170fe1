"""One run: opened with its data, model and store, its steps run and recorded, saved, and ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from openwafer import atomic_file
from openwafer.config import to_yaml
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error, render
from openwafer.figures import Origin
from openwafer.trace import Trace
from openwafer.training.data import Batch, TokenDataset
from openwafer.training.host_memory import return_large_blocks, returning_holes
from openwafer.training.methods.seam import MethodRun, RunParts
from openwafer.training.metrics import ValidationPoint
from openwafer.training.metrics.progress import Progress, StepSamples
from openwafer.training.metrics.run_record import (
    ENVIRONMENT,
    FABRIC_REPORT,
    TOKENS,
    describe_machine,
)
from openwafer.training.models import UserModule
from openwafer.training.models.transformers_model import Task
from openwafer.training.plan_record import Mode
from openwafer.training.session.building import (
    Notify,
    ToPlan,
    build_hollow_model,
    build_model,
    build_shapes,
    make_optimizers,
    make_updater,
    open_saved_data,
    plan_input,
    prepare_data,
    require_embeddings,
    take_weights,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import remark_on_labels, remark_on_positions
from openwafer.training.session.held_out_losses import losses_so_far
from openwafer.training.session.matmul_precision import measured_remark
from openwafer.training.session.opened_model import (
    OpenedModel,
    check_evaluation,
    evaluate,
    held_out,
)
from openwafer.training.session.optimizers import LearningRates, remark_on_schedule
from openwafer.training.session.pipelined.plan import (
    is_left_to_plan,
    is_pipelined,
    plan_systems,
    require_room,
    with_stages,
)
from openwafer.training.session.pipelined.running import StageOfSystem, StageTrainer, joined
from openwafer.training.session.plan_table import correction, show_plan, show_remarks, show_sizes
from openwafer.training.session.run_conditions import token_identity
from openwafer.training.session.run_folder import RunFolder, RunLog, quoted
from openwafer.training.session.run_lines import RunLines, opened_lines, tell_of_damage
from openwafer.training.session.run_state import BufferWatch, RunState, StoreSet
from openwafer.training.session.saved_run import SavedRun, restore_execution
from openwafer.training.session.shared_stores import (
    openable,
    store_options,
    store_set,
    write_checkpoint,
)
from openwafer.training.session.step_meter import DiskTracks, FirstSteps, StepMeter
from openwafer.training.session.systems import BegunRun, Interruption, Systems, gathered_counts
from openwafer.training.session.trainer import Trainer
from openwafer.training.step import NotFiniteError, Outcome
from openwafer.training.store import StoreOptions, list_checkpoints
from openwafer.training.store.checkpoint import NOT_WRITTEN, keep_last
from openwafer.training.stream.assemble import (
    Planned,
    assemble,
    split_that_fits,
)
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.plan.report import to_json
from openwafer.training.stream.replicas.replica_link import Replicas
from openwafer.training.systems.owner import Owner


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
        held_out: documents that the run evaluates on; ``None`` where it does not.
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
    held_out: TokenDataset | None = None

    @property
    def shares_store(self) -> bool:
        """Whether other systems have records in their stores."""
        return len(self.planned.shares) > 1

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
            self.planned,
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
    # Asked for before anything long, as there may be no such documents.
    held_out_data = None if config.evaluate is None else held_out(dataset)
    config = config.in_steps(dataset.num_samples)
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
    replicas = None
    if systems is not None:
        begun = _begun(config, dataset, planned, saved, stores)
        systems.begin(begun)
        flow_of = None if planned.stages is None else planned.stages.flow_of
        replicas = joined(systems, begun, flow_of)
    execution = _execute(saved, model, planned, folder, weights, replicas)
    weights.clear()
    tracks.recorder = execution.recorder
    try:
        trainer = _make_trainer(config, model, execution, optimizers, systems, methods)
        held = dataset, model, planned, execution, trainer, buffers, methods, systems
        run = OpenedRun(config, folder, *held, stores=stores, held_out=held_out_data)
        if saved is not None:
            run.restore(saved.state)
        yield run
    finally:
        execution.close()
        execution.store.close()


def _make_trainer(
    config: RunConfig,
    model: nn.Module,
    execution: Execution,
    optimizers: Sequence[Optimizer],
    systems: Systems | None,
    methods: Sequence[MethodRun],
) -> Trainer:
    rates = LearningRates(optimizers, config)
    if isinstance(execution, StageOfSystem):
        assert systems is not None
        return StageTrainer(execution, rates, config, systems)
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
    stages = planned.stages
    return BegunRun(
        config if stages is None else with_stages(config, len(stages.plan.spans)),
        dataset.folder.parent.absolute(),
        dataset.fingerprint,
        planned.contract,
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


class Saver:
    """Saves the steps of an open run.

    Updates of a step may still be applied while the next one runs, so a step's state is noted
    when the step ends and committed when the execution says that its updates are in the store.

    Attributes:
        commits: whether there is a disk tier, which is committed every step.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._store = run.execution.store
        # The systems, where others than this one have records.
        self._sharing = run.systems if run.shares_store else None
        self._state = run.state()
        self._last_checkpoint = -1
        self.commits = run.planned.uses_disk
        run.execution.on_updates_applied = self._updates_applied

    def begin(self) -> None:
        """Make the state the run begins with the first committed one."""
        self._state = self._run.state()
        if self.commits and self._store.step != self._state.steps_done:
            self._commit(is_asked_for=True)

    def note_step(self) -> None:
        """Take the run's state at the end of a step, before its updates are applied."""
        self._state = self._run.state()

    def note_no_updates(self) -> None:
        """The step noted last applies nothing, so that the store is up to date already."""
        self._commit()

    def checkpoint(self) -> Path:
        """Write a checkpoint of the last step and delete those that are too many."""
        self._flush()
        path = self._write()
        self._delete_superfluous()
        return path

    def keep_best(self) -> Path:
        """Write a checkpoint of the last step, which stays until another is the best."""
        self._flush()
        path = self._write()
        self._run.folder.name_best(path)
        self._delete_superfluous()
        return path

    def _delete_superfluous(self) -> None:
        folder = self._run.folder
        keep_last(folder.checkpoints, self._run.config.checkpoint.keep, folder.best_checkpoint)

    def rescue(self) -> Path | None:
        """Save the last step of a run that goes wrong; older checkpoints all stay.

        Returns:
            The checkpoint, or ``None`` where the store's commit is enough.
        """
        self.settle()
        return None if self.commits else self._write()

    def finish(self, *, is_complete: bool) -> Path | None:
        """Make the last step durable; returns its checkpoint where there is to be one."""
        self.settle()
        # Stores of several systems are of use to as many alone.
        may_move = self._sharing is not None and not is_complete
        is_wanted = may_move or (is_complete and self._run.config.checkpoint.at_end)
        if self.commits and not is_wanted:
            return None
        return self.checkpoint()

    def settle(self) -> None:
        """Apply the updates of the last step, and wait until its commit is on disk."""
        self._flush()
        if self.commits:
            self._store.commit_wait()

    def _flush(self) -> None:
        """Bring the stores of all systems up to date."""
        if self._sharing is not None:
            self._sharing.ask(Owner.flush)
        self._run.execution.flush()

    def _write(self) -> Path:
        state = self._complete_state()
        if self._sharing is not None:
            counts = gathered_counts(self._sharing, state.counts)
            state = replace(state, counts=counts, stores=None)
        if self._last_checkpoint == state.steps_done:
            return list_checkpoints(self._run.folder.checkpoints)[-1]
        path = write_checkpoint(state, self._run.execution.records, self._run.folder)
        self._last_checkpoint = state.steps_done
        return path

    def _updates_applied(self) -> None:
        counts = self._run.execution.updater.counts
        self._commit(is_asked_for=self._run.execution.is_hook_due(counts.steps_applied))

    def _commit(self, *, is_asked_for: bool = False) -> None:
        """Commit, as all owners do by themselves unless they have to be asked for it."""
        if self.commits:
            state = self._complete_state()
            if is_asked_for and self._sharing is not None:
                self._sharing.ask(partial(Owner.commit, steps_done=state.steps_done))
            self._store.commit_begin(state.steps_done, state.to_json())

    def _complete_state(self) -> RunState:
        # The counts move when the updates do, which is after the state was noted.
        return replace(self._state, counts=self._run.execution.updater.counts.of_wholes())


@dataclass(frozen=True)
class TrainResult:
    """How training ended.

    Attributes:
        folder: of the run.
        steps_done: steps behind the run, over all processes.
        is_complete: whether these are all its steps, or as many as ``early_stopping`` wants.
        loss: of the last step; NaN when this process ran none.
        checkpoint: the checkpoint written at the end, if one was.
        interrupted_by: the signal that ended the run early, such as SIGINT; empty without one.
        stopped_early: why ``early_stopping`` ended it; empty where it did not.
    """

    folder: Path
    steps_done: int
    is_complete: bool
    loss: float
    checkpoint: Path | None
    interrupted_by: str
    stopped_early: str = ""


def train(run: OpenedRun, console: Console, log: RunLog, interruption: Interruption) -> TrainResult:
    """Run the steps that are left.

    SIGINT and SIGTERM end the run after the step under way, also where another system got them.

    Raises:
        OpenwaferError: ``loss-not-finite``, with the last good step saved; or whatever the store,
            the device or the model meets.
    """
    log.write(f"training from step {run.steps_done} to {run.config.steps}")
    for line in chain.from_iterable(method.describe() for method in run.methods):
        log.write(line)
    show_plan(run.planned.report, console)
    show_sizes(run.config.batch.sizes, console)
    length = run.config.batch.sequence_length
    remarks = [_other_schedule(run), remark_on_positions(run.model, length)]
    if run.config.data.task is Task.CAUSAL_LM:
        remarks.append(remark_on_labels(run.model))
    remarks += [remark for method in run.config.methods() for remark in method.remarks(run.model)]
    remarks += [remark for method in run.methods for remark in method.remarks()]
    remarks.append(measured_remark(run.config))
    show_remarks(remarks, console)
    if run.held_out is not None and run.config.evaluate is not None:
        check_evaluation(run.opened_model, run.held_out, run.config.evaluate.batches)
    if run.steps_done:
        console.print(f"goes on from step {run.steps_done}", highlight=False)
    if run.steps_done < run.config.steps:
        _describe(run)
    with ExitStack() as stack:
        stack.enter_context(returning_holes(run.planned.report.predicted_host_bytes))
        for method in run.methods:
            own_file = method.recording(run.folder, run.steps_done)
            tell_of_damage(stack.enter_context(own_file), console)
        lines = opened_lines(run.config, run.folder, run.steps_done, log, console)
        progress = stack.enter_context(_progress(run, console))
        written = stack.enter_context(lines)
        loop = _Loop(run, Saver(run), written, progress)
        result = loop.run(stack.enter_context(interruption))
    summaries = [method.summary() for method in run.methods]
    report = run.execution.device.backend.report()
    if report is not None:
        FABRIC_REPORT.write(run.folder.path, report)
        summaries.append(report.table().splitlines())
    for line in chain.from_iterable(summaries):
        log.write(line)
        console.print(line, markup=False, highlight=False)
    log.write(f"ended at step {result.steps_done}, checkpoint {result.checkpoint}")
    return result


def run_step(run: OpenedRun, saver: Saver) -> Outcome:
    """Take the next step and save it; its last updates and their commit may be under way still.

    Raises:
        NotFiniteError: see :class:`Step`; nothing of the step was applied.
    """

    def settled() -> None:
        run.steps_done += 1
        saver.note_step()

    made = run.trainer.take(run.steps_done, run.batches(run.steps_done), settled)
    if made.coefficient is None:
        saver.note_no_updates()
    return made


def _other_schedule(run: OpenedRun) -> Diagnostic | None:
    if not run.steps_done:
        return None
    return remark_on_schedule(type(run.config).load(run.folder.config), run.config, run.steps_done)


def _describe(run: OpenedRun) -> None:
    """Write what the run folder says of the run before its first step."""
    folder = run.folder
    run.dataset.tokenizer.save(folder.path)
    TOKENS.write(folder.path, token_identity(run.dataset))
    ENVIRONMENT.write(folder.path, describe_machine(str(run.execution.device.torch_device)))
    atomic_file.write_text(folder.plan, to_json(run.planned.report))
    for method in run.methods:
        method.lay_down(folder)
    # The config comes last: from here on there is a run in this folder.
    atomic_file.write_text(folder.config, to_yaml(run.config))


def _progress(run: OpenedRun, console: Console) -> Progress:
    return Progress(
        run.config.steps,
        device_budget_bytes=run.planned.report.device_budget_bytes,
        first_step=run.steps_done,
        samples=StepSamples(
            run.config.batch.sizes.before,
            None if run.config.epochs is None else run.dataset.num_samples,
        ),
        log_every=run.config.log_every,
        console=console,
    )


class _Loop:
    """Takes steps, and does between them what is due.

    Args:
        run: its steps.
        saver: saves them.
        lines: where each is written.
        progress: shows them.
    """

    def __init__(self, run: OpenedRun, saver: Saver, lines: RunLines, progress: Progress) -> None:
        self._run = run
        self._saver = saver
        self._lines = lines
        self._progress = progress
        self._meter = StepMeter(run.execution)
        self._first_steps = FirstSteps(max(run.config.batch.sizes.all))
        self._trace = Trace()
        points = () if lines.validation is None else lines.validation.kept
        self._losses = losses_so_far(run.folder, points, run.config.early_stopping)

    def run(self, interruption: Interruption) -> TrainResult:
        run = self._run
        self._saver.begin()
        # A kill may have come between a step and its evaluation.
        if run.steps_done and self._losses.last_step < run.steps_done - 1:
            self._evaluate_if_due()
        while self._goes_on() and not interruption.signal_name:
            self._step(run.steps_done)
            self._do_what_is_due()
        is_complete = not self._goes_on()
        interruption.has_ended_run = not is_complete
        stopped_early = ""
        if is_complete and run.steps_done < run.config.steps:
            stopped_early = self._losses.reason
            self._lines.log.write(stopped_early)
        return TrainResult(
            folder=run.folder.path,
            steps_done=run.steps_done,
            is_complete=is_complete,
            loss=run.trainer.loss,
            checkpoint=self._saver.finish(is_complete=is_complete),
            interrupted_by="" if is_complete else interruption.signal_name,
            stopped_early=stopped_early,
        )

    def _goes_on(self) -> bool:
        return self._run.steps_done < self._run.config.steps and not self._losses.is_spent

    def _step(self, step: int) -> None:
        run = self._run
        self._meter.start()
        with self._traced(step):
            try:
                made = run_step(run, self._saver)
            except NotFiniteError as found:
                self._end_in_error(step, found)
        metrics = self._meter.stop(
            step,
            loss=run.trainer.loss,
            learning_rate=run.trainer.rates.at(step),
            grad_norm=made.norm,
            num_tokens=run.trainer.num_tokens,
            systems=() if run.systems is None else run.systems.last_step,
        )
        for method in run.methods:
            metrics = method.record(metrics)
        self._lines.metrics.append(metrics)
        self._lines.loggers.add(metrics)
        self._progress.advance(metrics)
        seconds = self._first_steps.note(metrics.seconds, run.config.batch.sizes.at(step))
        if seconds is not None:
            self._tell_measured(seconds)

    def _tell_measured(self, seconds: float) -> None:
        """Write what a step takes beside what was predicted, and say it where that matters."""
        run, plan = self._run, self._run.planned.report
        origins = {**plan.origins, "measured_step_seconds": Origin.MEASURED}
        plan = replace(plan, measured_step_seconds=seconds, origins=origins)
        atomic_file.write_text(run.folder.plan, to_json(plan))
        sizes = run.config.batch.sizes
        samples_left = sizes.before(run.config.steps) - sizes.before(run.steps_done)
        left = samples_left / max(sizes.all)
        corrected = correction(seconds, plan.predicted_step_seconds, left)
        self._lines.log.write(corrected.text)
        if corrected.matters:
            self._progress.note(f"step {run.steps_done}: {corrected.text}")

    @contextmanager
    def _traced(self, step: int) -> Iterator[None]:
        recorder = self._run.execution.recorder
        recorder.step = step
        is_streamed = self._run.planned.plan.mode is Mode.STREAMED
        if not is_streamed or step not in self._run.config.trace_steps:
            yield
            return
        recorder.trace = self._trace
        yield
        recorder.trace = None
        self._trace.write(self._run.folder.trace)

    def _do_what_is_due(self) -> None:
        self._evaluate_if_due()
        config, steps_done = self._run.config, self._run.steps_done
        if steps_done % config.checkpoint.every == 0 and self._goes_on():
            next_step = min(steps_done + config.checkpoint.every, config.steps)
            self._checkpoint(self._saver.checkpoint, "checkpoint", f"after step {next_step}")

    def _evaluate_if_due(self) -> None:
        config, steps_done = self._run.config, self._run.steps_done
        if config.evaluate is not None and (
            steps_done == config.steps or steps_done % config.evaluate.every == 0
        ):
            self._evaluate(config.evaluate.batches)

    def _checkpoint(self, write: Callable[[], Path], name: str, again: str) -> bool:
        """Write a checkpoint, and say whether it is there.

        A run goes on without, for what it has learned is in its memory.

        Args:
            again: when the next try is, for people.
        """
        steps_done = self._run.steps_done
        try:
            path = write()
        except OpenwaferError as found:
            if found.diagnostics[0].code != NOT_WRITTEN:
                raise
            warning = self._without_checkpoint(found.diagnostics[0], again)
            self._progress.note(render(warning))
            return False
        self._progress.note(f"step {steps_done}: {name} {path}")
        return True

    def _without_checkpoint(self, found: Diagnostic, again: str) -> Diagnostic:
        saved = list_checkpoints(self._run.folder.checkpoints)
        return Diagnostic(
            Severity.WARNING,
            found.code,
            found.message,
            notes=(
                f"the run goes on, and tries again {again}",
                f"the newest checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet",
            ),
            help="free some space on that disk",
        )

    def _evaluate(self, num_batches: int) -> None:
        if self._run.held_out is None or self._lines.validation is None:
            return
        loss = evaluate(self._run.opened_model, self._run.held_out, num_batches)
        step = self._run.steps_done - 1
        point = ValidationPoint(step, loss)
        for method in self._run.methods:
            point = method.judged(point)
        told = [text for method in self._run.methods if (text := method.tell(point))]
        text = "; ".join([f"step {step + 1}: validation loss {loss:.4f}", *told])
        if told:
            self._lines.log.write(text)
        self._progress.note(text)
        is_best = self._run.config.checkpoint.best and loss < self._losses.kept
        again = "at the next evaluation below the loss of the best one"
        if is_best and self._checkpoint(self._saver.keep_best, "best checkpoint", again):
            self._losses.kept = loss
        # Behind the checkpoint: where a kill comes between them, the evaluation is made again.
        self._lines.validation.append(point)
        self._lines.loggers.add(point)
        self._losses.add(point)

    def _end_in_error(self, step: int, found: NotFiniteError) -> NoReturn:
        run = self._run
        unsaved: tuple[Diagnostic, ...] = ()
        try:
            where = f"are safe in {self._saver.rescue() or run.folder.store}"
        except OpenwaferError as failure:
            unsaved, where = failure.diagnostics, "could not be saved"
        told = error(
            "loss-not-finite",
            f"step {step}: {found.what}",
            notes=(
                f"the learning rate of this step is {run.trainer.rates.at(step):.6g}",
                f"nothing of the step was applied; the {step} steps before it {where}",
            ),
            help="lower optimizer.learning_rate, warm up longer or set clip_norm, and go on from "
            f"an earlier checkpoint: openwafer resume {quoted(run.folder.path)} --checkpoint "
            f"{quoted(run.folder.checkpoints)}/step-NNNNNNNN --set optimizer.learning_rate=...",
        )
        raise OpenwaferError(*told.diagnostics, *unsaved) from found
