"""Runs the steps of an open run, records them, saves them, and ends in good order."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from openwafer import atomic_file
from openwafer.config import to_yaml
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error, render
from openwafer.trace import Trace
from openwafer.training.data import TokenDataset
from openwafer.training.metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    StepWriter,
    ValidationPoint,
)
from openwafer.training.metrics.progress import Progress
from openwafer.training.metrics.run_record import ENVIRONMENT, TOKENS, describe_machine
from openwafer.training.plan_record import Mode
from openwafer.training.session.allocator import returning_holes
from openwafer.training.session.evaluation import evaluate, held_out
from openwafer.training.session.forward import remark_on_labels
from openwafer.training.session.interruption import Interruption
from openwafer.training.session.learning_rates import remark_on_schedule
from openwafer.training.session.matmul_precision import measured_remark
from openwafer.training.session.opened_run import OpenedRun
from openwafer.training.session.plan_table import show_plan, show_remarks, show_sizes
from openwafer.training.session.run_conditions import token_identity
from openwafer.training.session.run_folder import quoted
from openwafer.training.session.run_log import RunLog
from openwafer.training.session.saver import Saver
from openwafer.training.session.step_meter import StepMeter
from openwafer.training.step import NotFiniteError, Outcome
from openwafer.training.store import list_checkpoints
from openwafer.training.store.checkpoint import NOT_WRITTEN
from openwafer.training.stream.plan.report import to_json


@dataclass(frozen=True)
class TrainResult:
    """How training ended.

    Attributes:
        folder: of the run.
        steps_done: steps behind the run, over all processes.
        is_complete: whether these are all its steps.
        loss: of the last step; NaN when this process ran none.
        checkpoint: the checkpoint written at the end, if one was.
        interrupted_by: the signal that ended the run early, such as SIGINT; empty without one.
    """

    folder: Path
    steps_done: int
    is_complete: bool
    loss: float
    checkpoint: Path | None
    interrupted_by: str


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
    remarks = [remark_on_labels(run.model), _other_schedule(run)]
    remarks += [remark for method in run.config.methods() for remark in method.remarks(run.model)]
    remarks += [remark for method in run.methods for remark in method.remarks()]
    remarks.append(measured_remark(run.config))
    show_remarks(remarks, console)
    # Asked for before there is a run in the folder, as there may be no such documents.
    validation_data = None if run.config.evaluate is None else held_out(run.dataset)
    if run.steps_done:
        console.print(f"goes on from step {run.steps_done}", highlight=False)
    if run.steps_done < run.config.steps:
        _describe(run)
    with ExitStack() as stack:
        stack.enter_context(returning_holes(run.planned.report.predicted_host_bytes))
        for method in run.methods:
            own_file = method.recording(run.folder, run.steps_done)
            _tell_of_damage(stack.enter_context(own_file), console)
        lines = _Lines(
            log,
            stack.enter_context(_metrics_writer(run, console)),
            stack.enter_context(_validation_writer(run, console)),
        )
        progress = stack.enter_context(_progress(run, console))
        loop = _Loop(run, Saver(run), lines, progress, validation_data)
        result = loop.run(stack.enter_context(interruption))
    for line in chain.from_iterable(method.summary() for method in run.methods):
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


def _metrics_writer(run: OpenedRun, console: Console) -> StepWriter[StepMetrics]:
    writer = StepWriter(run.folder.metrics, METRICS_FORMAT, first_step=run.steps_done)
    _tell_of_damage(writer.damaged, console)
    return writer


def _validation_writer(
    run: OpenedRun, console: Console
) -> AbstractContextManager[StepWriter[ValidationPoint] | None]:
    if run.config.evaluate is None:
        return nullcontext()
    path = run.folder.validation
    first_step = run.steps_done if path.exists() else 0
    writer = StepWriter(path, VALIDATION_FORMAT, first_step=first_step)
    _tell_of_damage(writer.damaged, console)
    return writer


def _tell_of_damage(damaged: Path | None, console: Console) -> None:
    if damaged is None:
        return
    warning = Diagnostic(
        Severity.WARNING,
        "run-file-corrupt",
        f"lines of the run's record were damaged, and are left out; they are in {damaged}",
        help="nothing; what the run has learned is elsewhere",
    )
    console.print(render(warning), markup=False, highlight=False, soft_wrap=True)


def _progress(run: OpenedRun, console: Console) -> Progress:
    return Progress(
        run.config.steps,
        device_budget_bytes=run.planned.report.device_budget_bytes,
        samples_before=run.config.batch.sizes.before,
        first_step=run.steps_done,
        log_every=run.config.log_every,
        console=console,
    )


@dataclass(frozen=True)
class _Lines:
    """Files that grow by lines."""

    log: RunLog
    metrics: StepWriter[StepMetrics]
    validation: StepWriter[ValidationPoint] | None


class _Loop:
    """Takes steps, and does between them what is due.

    Args:
        run: its steps.
        saver: saves them.
        lines: where each is written.
        progress: shows them.
        validation_data: held-out documents; ``None`` where nobody evaluates.
    """

    def __init__(
        self,
        run: OpenedRun,
        saver: Saver,
        lines: _Lines,
        progress: Progress,
        validation_data: TokenDataset | None,
    ) -> None:
        self._run = run
        self._saver = saver
        self._lines = lines
        self._progress = progress
        self._held_out = validation_data
        self._meter = StepMeter(run.execution)
        self._trace = Trace()

    def run(self, interruption: Interruption) -> TrainResult:
        run = self._run
        self._saver.begin()
        while run.steps_done < run.config.steps and not interruption.signal_name:
            self._step(run.steps_done)
            self._do_what_is_due()
        is_complete = run.steps_done >= run.config.steps
        interruption.has_ended_run = not is_complete
        return TrainResult(
            folder=run.folder.path,
            steps_done=run.steps_done,
            is_complete=is_complete,
            loss=run.trainer.loss,
            checkpoint=self._saver.finish(is_complete=is_complete),
            interrupted_by="" if is_complete else interruption.signal_name,
        )

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
        self._progress.advance(metrics)

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
        config, steps_done = self._run.config, self._run.steps_done
        is_last = steps_done == config.steps
        if config.evaluate is not None and (is_last or steps_done % config.evaluate.every == 0):
            self._evaluate(config.evaluate.batches)
        if steps_done % config.checkpoint.every == 0 and not is_last:
            self._checkpoint(steps_done)

    def _checkpoint(self, steps_done: int) -> None:
        """Write a checkpoint; a run goes on without, for what it has learned is in its memory."""
        try:
            path = self._saver.checkpoint()
        except OpenwaferError as found:
            if found.diagnostics[0].code != NOT_WRITTEN:
                raise
            warning = self._without_checkpoint(found.diagnostics[0], steps_done)
            self._progress.note(render(warning))
        else:
            self._progress.note(f"step {steps_done}: checkpoint {path}")

    def _without_checkpoint(self, found: Diagnostic, steps_done: int) -> Diagnostic:
        config = self._run.config
        next_step = min(steps_done + config.checkpoint.every, config.steps)
        saved = list_checkpoints(self._run.folder.checkpoints)
        return Diagnostic(
            Severity.WARNING,
            found.code,
            found.message,
            notes=(
                f"the run goes on, and tries again after step {next_step}",
                f"the newest checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet",
            ),
            help="free some space on that disk",
        )

    def _evaluate(self, num_batches: int) -> None:
        if self._held_out is None or self._lines.validation is None:
            return
        loss = evaluate(self._run.opened_model, self._held_out, num_batches)
        step = self._run.steps_done - 1
        point = ValidationPoint(step, loss)
        for method in self._run.methods:
            point = method.judged(point)
        told = [text for method in self._run.methods if (text := method.tell(point))]
        text = "; ".join([f"step {step + 1}: validation loss {loss:.4f}", *told])
        if told:
            self._lines.log.write(text)
        self._lines.validation.append(point)
        self._progress.note(text)

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
