"""One run, from its config to its last checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from rich.console import Console

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error, render
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.host_memory import return_large_blocks
from openwafer.training.methods.registered import RunConfig, load_config
from openwafer.training.metrics.run_record import PLAN, SAMPLE, GeneratedSample
from openwafer.training.models import TransformersModel, UserModule
from openwafer.training.models.loss import LOSS, require_text_loss
from openwafer.training.plan_record import Mode, PlanRecord
from openwafer.training.session.building import (
    ToPlan,
    build_hollow_model,
    expected_vocab_size,
    largest_block,
    make_optimizers,
    open_saved_data,
)
from openwafer.training.session.matmul_precision import multiplying
from openwafer.training.session.opened_model import (
    GeneratedTexts,
    OpenedModel,
    check_evaluation,
    evaluate,
    generate,
    held_out,
    require_held_out,
)
from openwafer.training.session.pipelined.plan import (
    as_one_system,
    is_left_to_plan,
    not_in_stages,
    plan_systems,
)
from openwafer.training.session.run import OpenedRun, TrainResult, opened, train
from openwafer.training.session.run_folder import RunFolder, RunLog
from openwafer.training.session.saved_model import ExportFormat, export, opened_to_read
from openwafer.training.session.saved_run import (
    SavedRun,
    find_newest,
    from_checkpoint,
    naming_checkpoints,
    read_newest,
)
from openwafer.training.session.scoring import Continuation, Score, score
from openwafer.training.session.shared_stores import StoreFinder
from openwafer.training.session.systems import (
    Interruption,
    Systems,
    require_alone,
    require_work_for_all,
)
from openwafer.training.session.writing import Sampling
from openwafer.training.store import StoreOptions
from openwafer.training.store.checkpoint import being_read
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.execute.execution import StepHook, each
from openwafer.training.stream.plan.step_time import MeasuredStep, measure_step

Result = TypeVar("Result")


class Session:
    """A run: new from a config, or one that is in its folder already.

    Args:
        source: a :class:`RunConfig`, the path of a YAML file, or the folder of a run.
        overrides: ``a.b=value`` each, on top of a file.
        console: where progress goes; standard output by default.
        store: how the parameter store talks to the disk; nothing of it needs to be set.
        trusts_code: whether a factory that the config in a run's folder names may be imported and
            called; one in a config of your own always may.
        systems: those that train with this one, which leads them; ``None`` where there is one.

    Attributes:
        config: the config with all defaults.
        folder: of the run.

    Raises:
        OpenwaferError: every mistake of the config with its place, ``run-missing``, ``run-code``
            where the folder of a run names code that is not trusted, ``model-task``.
    """

    def __init__(
        self,
        source: RunConfig | PathLike,
        overrides: Sequence[str] = (),
        *,
        console: Console | None = None,
        store: StoreOptions = StoreOptions(),  # noqa: B008 - frozen
        trusts_code: bool = False,
        systems: Systems | None = None,
    ) -> None:
        self.config, self.folder = _read(source, tuple(overrides), trusts_code)
        if isinstance(self.config.model, TransformersModel):
            require_text_loss(self.config.model, self.config.data.task)
        self._console = console or Console()
        self._store = store
        self._met = systems
        self._interruption = Interruption() if systems is None else systems.interruption
        # A launcher may have started one process: a step of it waits for no other.
        self._systems = None if systems is None or systems.size == 1 else systems
        if systems is not None:
            self.config = replace(self.config, systems=systems.size)
        self._step_hooks: list[tuple[StepHook, int]] = []

    def plan(self) -> PlanRecord:
        """Plan the run; nothing is created, no weight is drawn and no data read.

        Raises:
            OpenwaferError: it cannot fit; the text has the numbers.
        """
        with multiplying(self.config.matmul_precision):
            return self._planned().report

    def measure(self) -> tuple[PlanRecord, MeasuredStep | Diagnostic]:
        """The plan of one of the run's systems, and what its step takes there by layer.

        A warning says why the second is not known, where a step has more to it than is modelled.

        Raises:
            OpenwaferError: see :meth:`plan`.
        """
        with multiplying(self.config.matmul_precision):
            return self._measured()

    def _measured(self) -> tuple[PlanRecord, MeasuredStep | Diagnostic]:
        planned = self._planned()
        more = _beyond_the_model(self.config, planned)
        if more is not None:
            return planned.report, Diagnostic(
                Severity.WARNING,
                "systems-unmodelled",
                f"the time of a step on {self.config.systems} systems is not foretold for {more}",
                help="train for a few steps, and see their seconds in metrics.jsonl",
            )
        return planned.report, measure_step(
            planned.plan,
            planned.updater,
            planned.device,
            planned.workload.allocation,
            len(largest_block(self.config)),
            planned.given.options.store_systems,
        )

    def _planned(self) -> Planned:
        self.folder.require_place()
        require_held_out(self.config)
        # What a run would take is timed with its allocator.
        return_large_blocks()
        config = self._kept_config()
        vocab_size = expected_vocab_size(config)
        with TemporaryDirectory(prefix="openwafer-") as scratch:
            model = build_hollow_model(as_one_system(config), vocab_size, Path(scratch))
        optimizers = make_optimizers(model, config, vocab_size)
        parts = ToPlan(model, optimizers, vocab_size, self._store, self.folder.store)
        if config.systems == 1:
            return parts.planned(config)
        return plan_systems(parts, config, self.folder)

    def between_steps(self, hook: StepHook, *, every: int = 1) -> None:
        """Call ``hook`` after each ``every``-th step of training, before the step is committed.

        It may read and write weights and optimizer states, record by record.
        """
        self._step_hooks.append((hook, every))

    def train(self) -> TrainResult:
        """Begin the run and train to its last step.

        Raises:
            OpenwaferError: ``run-exists`` where there is a run in the folder already; see
                :func:`~openwafer.training.session.run.train` for the rest.
        """
        with self._leading(), self.folder.beginning(), naming_checkpoints(self.folder):
            return self._train(None)

    def resume(self, checkpoint: PathLike | None = None) -> TrainResult:
        """Go on from the newest saved step to the last one, bit for bit as if nothing had been.

        Args:
            checkpoint: go on from this one, or from the ``best``; what is newer is set aside in the
                run folder.
        """
        named = None if checkpoint is None else path_of(checkpoint, "checkpoint")
        self.folder.require_run()
        chosen = None if named is None else self.folder.chosen_checkpoint(named)
        with self._leading(), self._held():
            if chosen is None:
                return self._train(self._newest())
            return self._train(from_checkpoint(chosen, is_chosen=True))

    def evaluate(
        self,
        num_batches: int | None = None,
        checkpoint: PathLike | None = None,
        measure: str = LOSS,
    ) -> float:
        """Mean loss over held-out batches; by default as many as the config says, or 8.

        Here and in what else reads a run, `checkpoint` is one by its path or the ``best``, and
        ``None`` the newest saved step. A `measure` is another scalar that the model's forward
        returns, by its name; its mean is that over the samples.
        """
        chosen = None if checkpoint is None else path_of(checkpoint, "checkpoint")
        configured = self.config.evaluate.batches if self.config.evaluate else 8

        def read(saved: SavedRun) -> float:
            dataset = held_out(open_saved_data(self.config, self.folder, saved))
            with self._opened_to_read(saved) as opened:
                check_evaluation(opened, dataset, num_batches or configured)
                return evaluate(opened, dataset, num_batches or configured, measure)

        return self._read(read, chosen)

    def score(
        self, continuations: Sequence[Continuation], checkpoint: PathLike | None = None
    ) -> list[Score]:
        """How likely each continuation is behind the tokens before it.

        Each layer comes to the device once for as many of them as a micro-batch has samples.
        """
        chosen = None if checkpoint is None else path_of(checkpoint, "checkpoint")

        def read(saved: SavedRun) -> list[Score]:
            with self._opened_for_texts(saved) as opened:
                return score(opened, continuations)

        return self._read(read, chosen)

    def generate(self, prompt: str, sampling: Sampling = Sampling()) -> str:  # noqa: B008
        """The text that the model writes after a prompt."""
        return self.generate_all([prompt], sampling).texts[0]

    def generate_all(
        self,
        prompts: Sequence[str],
        sampling: Sampling = Sampling(),  # noqa: B008
        checkpoint: PathLike | None = None,
    ) -> GeneratedTexts:
        """The texts that the model writes after prompts, all of them side by side.

        Each layer comes to the device once for a token of every text, and a text is the one that
        the model writes after its prompt alone; only the seed of its draws depends on its index.
        """
        chosen = None if checkpoint is None else path_of(checkpoint, "checkpoint")

        def read(saved: SavedRun) -> GeneratedTexts:
            with self._opened_for_texts(saved) as opened, self._console.status("") as status:
                return generate(opened, prompts, sampling, status.update)

        return self._read(read, chosen)

    def keep_sample(self, prompt: str, text: str, step: int) -> None:
        """Keep a text that the model wrote in the run's folder, where the report finds it."""
        self.folder.require_run()
        with self._held():
            SAMPLE.write(self.folder.path, GeneratedSample(step, prompt, text))

    def count_plain_loop(self) -> int:
        """Count what a device would hold of a plain loop, and keep it with the run's plan.

        That is the most that the resident plan takes, without a budget, and all optimizer states.
        """
        self.folder.require_run()
        streaming = replace(self.config.streaming, mode=Mode.RESIDENT)
        resident = replace(self.config, device_memory=None, streaming=streaming)
        plan = Session(resident, store=self._store).plan()
        states_bytes = sum(layer.states_bytes for layer in plan.layers)
        found = plan.predicted_peak_bytes + states_bytes
        with self._held():
            kept = PLAN.read(self.folder.path)
            PLAN.write(self.folder.path, replace(kept, plain_loop_bytes=found))
        return found

    def export(
        self,
        folder: PathLike,
        form: ExportFormat = ExportFormat(),  # noqa: B008
        checkpoint: PathLike | None = None,
    ) -> Path:
        """Write the weights in the Hugging Face layout; returns the folder."""
        target = path_of(folder, "folder")
        chosen = None if checkpoint is None else path_of(checkpoint, "checkpoint")
        return self._read(
            lambda saved: export(self._kept_config(), self.folder, saved, target, form), chosen
        )

    def _kept_config(self) -> RunConfig:
        """The config with what the run has measured, once it has begun."""
        return self.config.begun_in(self.folder)

    def _config_to_train(self) -> RunConfig:
        config = self._kept_config()
        if self._step_hooks and is_left_to_plan(config):
            # A hook sees all weights between two steps.
            streaming = replace(config.streaming, mode=Mode.STREAMED)
            config = replace(config, streaming=streaming)
        return config

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self.folder.locked(), naming_checkpoints(self.folder):
            yield

    def _read(self, read: Callable[[SavedRun], Result], named: Path | None = None) -> Result:
        """Use what the run has saved last, or in a checkpoint, be it in training or not."""
        self.folder.require_run()
        with naming_checkpoints(self.folder):
            if named is None:
                return read_newest(self.folder, read)
            chosen = self.folder.chosen_checkpoint(named)
            with being_read(chosen):
                return read(from_checkpoint(chosen))

    def _opened_for_texts(self, saved: SavedRun) -> AbstractContextManager[OpenedModel]:
        """The same for texts of any length, and one token behind others, which no fabric takes."""
        return self._opened_to_read(saved, self._kept_config().off_the_fabric)

    @contextmanager
    def _opened_to_read(
        self, saved: SavedRun, config: RunConfig | None = None
    ) -> Iterator[OpenedModel]:
        """The model of a saved step, its preparation shown while it lasts."""
        # Whoever reads is alone, however many systems train.
        config = replace(config or self._kept_config(), systems=1)
        with ExitStack() as stack:
            stack.enter_context(multiplying(config.matmul_precision))
            with self._console.status("") as status:
                opened = stack.enter_context(
                    opened_to_read(config, self.folder, saved, status.update, self._store)
                )
            yield opened

    def _leading(self) -> AbstractContextManager[None]:
        if self._met is None:
            require_alone(self.config)
            return nullcontext()
        return self._met.leading()

    @contextmanager
    def _opened(self, saved: SavedRun | None) -> Iterator[OpenedRun]:
        """The run, its preparation shown while it lasts."""
        with ExitStack() as stack:
            stack.enter_context(multiplying(self.config.matmul_precision))
            with self._console.status("") as status:

                def notify(text: str) -> None:
                    # Other systems wait to be told of the run.
                    self._interruption.end_now()
                    status.update(text)

                run = stack.enter_context(
                    opened(
                        self._config_to_train(),
                        self.folder,
                        saved,
                        notify,
                        self._store,
                        self._systems,
                    )
                )
            yield run

    def _newest(self) -> SavedRun | None:
        """The step to go on from; where stores that hold a newer one are of no use, it is said."""
        finder = StoreFinder(self.folder, self._systems)
        saved = find_newest(self.folder, find=finder.find)
        told = []
        if saved is None or saved.found is None:
            told += [render(warning) for warning in finder.warnings]
        if saved is None:
            told.append("no step of this run has been kept, so it begins anew")
        for text in told:
            RunLog(self.folder.log).write(text)
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        return saved

    def _train(self, saved: SavedRun | None) -> TrainResult:
        # Known before data and weights are made.
        require_held_out(self.config)
        require_work_for_all(self.config)
        with self._opened(saved) as run:
            if self._step_hooks and run.planned.stages is not None:
                raise not_in_stages("a hook between steps", "it would see one stage's weights")
            for hook, every in self._step_hooks:
                run.execution.between_steps(hook, each(every))
            return train(run, self._console, RunLog(self.folder.log), self._interruption)


def _read(
    source: RunConfig | PathLike, overrides: tuple[str, ...], trusts_code: bool
) -> tuple[RunConfig, RunFolder]:
    if isinstance(source, RunConfig):
        return source, RunFolder(source.path)
    path = path_of(source, "source")
    # What is not there and has no suffix was meant to be a run.
    if path.is_dir() or not (path.exists() or path.suffix):
        folder = RunFolder(path)
        folder.require_run()
        config = load_config(folder.config, overrides)
        written = load_config(folder.config)
        _require_place(folder, config, written)
        if config.epochs not in (None, written.epochs) and config.steps == written.steps:
            # The steps that were written are those of other epochs.
            config = replace(config, steps=0)
        if isinstance(config.model, UserModule) and not trusts_code:
            raise _untrusted(folder, config.model)
        # A run may have been moved or renamed since it was written.
        here = path.absolute()
        return replace(config, folder=here.parent, name=here.name), folder
    config = load_config(path, overrides)
    return config, RunFolder(config.path)


def _untrusted(folder: RunFolder, model: UserModule) -> OpenwaferError:
    return error(
        "run-code",
        f"the run {folder.path} names code of its own, which would be run: {model.factory}",
        notes=(f"model.factory in {folder.config}",),
        help="look at that code; if you trust it and whoever made the folder, add --trust-code, "
        "in Python trusts_code=True",
    )


def _require_place(folder: RunFolder, config: RunConfig, written: RunConfig) -> None:
    for key in ("name", "folder"):
        asked, found = getattr(config, key), getattr(written, key)
        if asked != found:
            raise error(
                "run-place",
                f"{key} is set to {str(asked)!r}, but the run is the folder {folder.path}",
                help=f"leave {key} out; to rename or move a run, rename or move its folder",
            )


def _beyond_the_model(config: RunConfig, planned: Planned) -> str | None:
    """What the systems of a run do that the formula of their step leaves out."""
    if planned.stages is not None:
        return "stages of a pipeline"
    if planned.expert_traffic is not None and planned.expert_traffic.row_bytes:
        return "experts that their owners compute (streaming.experts: owners)"
    if config.reduction is not Reduction.ORDERED:
        return "gradients that the library adds (reduction: fast)"
    return "a store on disk" if planned.uses_disk else None
