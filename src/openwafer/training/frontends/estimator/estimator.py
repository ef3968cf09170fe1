"""The Estimator: a model function, trained, evaluated and asked for predictions."""

import inspect
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import torch

from openwafer.config import PathLike, Size, path_of
from openwafer.diagnostics import error
from openwafer.training.frontends.estimator import global_step as counter
from openwafer.training.frontends.estimator import states
from openwafer.training.frontends.estimator.beginning import Beginning
from openwafer.training.frontends.estimator.checkpoints import Checkpoint, Index
from openwafer.training.frontends.estimator.functions import place_of
from openwafer.training.frontends.estimator.graph import Graph, Outputs
from openwafer.training.frontends.estimator.hooks import Hooks, SessionRunHook, StepValues
from openwafer.training.frontends.estimator.inputs import Batch, batches_of
from openwafer.training.frontends.estimator.metrics import Means
from openwafer.training.frontends.estimator.run_config import RunConfig
from openwafer.training.frontends.estimator.spec import EstimatorSpec, ModeKeys, require_mode
from openwafer.training.frontends.estimator.train_ops import TrainStep
from openwafer.training.frontends.estimator.training import SavingListener, Summaries, TrainingRun
from openwafer.training.frontends.scripts.program import Room, ScriptProgram
from openwafer.training.plan_record import PlanRecord

__all__ = ["CerebrasEstimator"]

LOG = logging.getLogger("openwafer.estimator")
Function = Callable[..., Any]


class CerebrasEstimator:
    """A model function whose weights stream, with its checkpoints in a folder.

    Each call of `train`, `evaluate` or `predict` builds the model from its function and gives it
    the weights of the latest checkpoint. In such a call the function is called at every step, and
    gets back what it constructed at the first; see :mod:`template`.

    Args:
        model_fn: takes features and, if it asks for them, ``labels``, ``mode``, ``params`` and
            ``config``; returns an :class:`EstimatorSpec`.
        model_dir: folder of checkpoints; by default that of `config`, or else a temporary one.
        config: a :class:`RunConfig` or :class:`CSRunConfig`.
        params: for `model_fn` and input functions.
        warm_start_from: a checkpoint, or a folder of them, whose weights the first training begins
            with.
        use_cs: where a script would run; the numbers are the same, and nothing reads it.
        compile_dir: likewise.
        device_memory: what a step may take on the device, as ``"2GiB"`` or in bytes; without it,
            what ``OPENWAFER_DEVICE_MEMORY`` says, or else what is free.
        folder: where the store of weights may use disk; without it, what ``OPENWAFER_STORE``
            says, or else host memory alone.

    Attributes:
        model_dir, params, config: see above.

    Raises:
        OpenwaferError: ``estimator-model-dir`` for two folders, ``estimator-config``,
            ``argument-bytes``.
    """

    def __init__(  # noqa: PLR0913 - the vendor's, each with a default but one
        self,
        model_fn: Function,
        model_dir: PathLike | None = None,
        compile_dir: PathLike | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: PathLike | None = None,
        use_cs: bool | None = None,
        *,
        device_memory: Size | None = None,
        folder: PathLike | None = None,
    ) -> None:
        if isinstance(compile_dir, RunConfig):
            raise error(
                "estimator-config",
                f"compile_dir, the third argument, is a {type(compile_dir).__name__}",
                help="give it by its name: config=...",
            )
        config = config or RunConfig()
        if not isinstance(config, RunConfig):
            raise error(
                "estimator-config",
                f"config is a {type(config).__name__}: {config!r}",
                help="give a CSRunConfig or a RunConfig, and params by its name: params={...}",
            )
        if None not in (model_dir, config.model_dir) and str(model_dir) != str(config.model_dir):
            raise error(
                "estimator-model-dir",
                f"model_dir is {model_dir}, and that of config is {config.model_dir}",
                help="give one of them",
            )
        where = model_dir or config.model_dir or tempfile.mkdtemp()
        self.model_dir = path_of(where, "model_dir")
        self.config = config.replace(model_dir=self.model_dir)
        self.params = dict(params or {})
        self._model_fn = model_fn
        self._warm_start_from = warm_start_from
        self._program = ScriptProgram(Room.of(device_memory, folder))

    @property
    def model_fn(self) -> Function:
        """The model function."""
        return self._model_fn

    # Calls.

    def train(
        self,
        input_fn: Function,
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[SavingListener] | None = None,
        use_cs: bool | None = None,
    ) -> Self:
        """Train from the latest checkpoint on, until batches end or steps are taken.

        A call that was cut off goes on behind the batches of its latest checkpoint, by the random
        numbers that it would have had.

        Args:
            input_fn: returns batches; it may ask for ``params``, ``mode`` and ``config``.
            hooks: around steps.
            steps: to take.
            max_steps: global step at which training ends; nothing is done behind it.
            saving_listeners: are called with each checkpoint.
            use_cs: nothing reads it.

        Raises:
            OpenwaferError: ``estimator-steps``, and what input and model functions cause.
        """
        _check_steps(steps, max_steps)
        index, checkpoint = self._latest()
        start = 0 if checkpoint is None else checkpoint.notes.global_step
        if max_steps is not None and start >= max_steps:
            LOG.info("Skipping training since max_steps has already saved.")
            return self
        begun = Beginning.of(
            index,
            checkpoint,
            self.config.tf_random_seed,
            partial(self._batches, input_fn, ModeKeys.TRAIN, steps),
        )
        if begun.first is None:
            index.ended().write(self.model_dir)
            return self
        with counter.counting(start) as step:
            end_step = max_steps if steps is None else start + steps
            run, spec = self._training(begun, step, end_step)
            if checkpoint is not None:
                run.restore(checkpoint)
            elif self._warm_start_from is not None:
                states.restore_weights(run.graph, self._checkpoint(self._warm_start_from))
            of_spec = (*(spec.training_hooks or ()), *(spec.training_chief_hooks or ()))
            found = Hooks((*(hooks or ()), *of_spec), StepValues(_named(spec), step))
            run.run(self._program, found, saving_listeners or ())
        return self

    def evaluate(
        self,
        input_fn: Function,
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: PathLike | None = None,
        name: str | None = None,
        use_cs: bool | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint.

        Args:
            input_fn: see :meth:`train`.
            steps: batches that are evaluated; without it, all.
            hooks: around them.
            checkpoint_path: which one; by default the latest.
            name: of several evaluations, for their summaries.
            use_cs: nothing reads it.

        Returns:
            Means over the batches: ``loss`` and the metrics; and ``global_step``.

        Raises:
            OpenwaferError: ``estimator-no-checkpoint``, and see :meth:`train`.
        """
        _check_steps(steps, None)
        checkpoint = self._checkpoint(checkpoint_path)
        batches = self._batches(input_fn, ModeKeys.EVAL, steps)
        means = Means()
        with counter.counting(checkpoint.notes.global_step) as step:
            graph, spec, batches = self._restored(ModeKeys.EVAL, batches, checkpoint)
            values = StepValues(_named(spec), step)
            found = Hooks([*(hooks or ()), *(spec.evaluation_hooks or ())], values)
            with self._streamed(graph):
                found.begin()
                # No batch is asked for behind the last step.
                for batch in islice(batches, steps):
                    if found.run(partial(_evaluate, graph, self._program.brought(batch), means)):
                        break
                found.end()
        num_steps = checkpoint.notes.global_step
        results = {**means.values(), "global_step": num_steps}
        LOG.info("Saving dict for global step %d: %s", num_steps, results)
        summaries = Summaries(self.model_dir / (f"eval_{name}" if name else "eval"))
        summaries.add(results, num_steps)
        summaries.close()
        return results

    def predict(  # noqa: PLR0913 - TensorFlow's
        self,
        input_fn: Function,
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: PathLike | None = None,
        yield_single_examples: bool = True,
        num_samples: int | None = None,
        use_cs: bool | None = None,
    ) -> Iterator[Any]:
        """Predictions of a checkpoint, while its weights stream.

        Args:
            input_fn: see :meth:`train`; labels are left out.
            predict_keys: those of a mapping that are wanted.
            hooks: around batches.
            checkpoint_path: which one; by default the latest.
            yield_single_examples: gives examples one by one, not batches.
            num_samples: how many of these are given; without it, all.
            use_cs: nothing reads it.

        Returns:
            A generator of arrays, or of arrays by name.

        Raises:
            OpenwaferError: ``estimator-no-checkpoint``, ``estimator-predict-keys``, and see
                :meth:`train`.
        """
        checkpoint = self._checkpoint(checkpoint_path)
        batches = self._batches(input_fn, ModeKeys.PREDICT, num_samples)

        def given(outputs: Outputs) -> Sequence[Any]:
            arrays = _arrays(outputs.predictions, predict_keys)
            return list(_examples(arrays)) if yield_single_examples else [arrays]

        yield from self._predictions(checkpoint, batches, hooks or (), given, num_samples)

    def _predictions(
        self,
        checkpoint: Checkpoint,
        batches: Iterator[Batch],
        hooks: Sequence[SessionRunHook],
        given: Callable[[Outputs], Sequence[Any]],
        num_left: int | None,
    ) -> Iterator[Any]:
        with counter.counting(checkpoint.notes.global_step) as step:
            unlabelled = (Batch(batch.features) for batch in batches)
            graph, spec, asked = self._restored(ModeKeys.PREDICT, unlabelled, checkpoint)
            found = Hooks([*hooks, *(spec.prediction_hooks or ())], StepValues(_named(spec), step))
            with self._streamed(graph):
                found.begin()
                for batch in asked:
                    outputs: list[Outputs] = []
                    is_last = found.run(
                        partial(_predict, graph, self._program.brought(batch), outputs)
                    )
                    some = given(outputs[0])[:num_left]
                    yield from some
                    num_left = None if num_left is None else num_left - len(some)
                    if is_last or num_left == 0:
                        break
                found.end()

    def compile(
        self, input_fn: Function, validate_only: bool = False, mode: str = ModeKeys.TRAIN
    ) -> PlanRecord | None:
        """Build the model for a mode and plan how its weights stream; nothing is trained.

        Args:
            input_fn: see :meth:`train`.
            validate_only: builds and checks it alone.
            mode: see :class:`ModeKeys`.

        Returns:
            The plan; None with `validate_only`.

        Raises:
            OpenwaferError: see :meth:`train`.
        """
        mode = require_mode(mode)
        before = torch.get_rng_state()
        first = next(self._batches(input_fn, mode, 1))
        if mode == ModeKeys.PREDICT:
            first = Batch(first.features)
        try:
            with counter.counting(0):
                graph, spec = self._build(mode, first)
                is_trained = mode == ModeKeys.TRAIN
                where = place_of(self._model_fn, "model_fn")
                optimizers = TrainStep.of(spec.train_op, where).optimizers if is_trained else ()
                if validate_only:
                    return None
                with self._program.streamed(graph, optimizers) as streamed:
                    streamed.begin_without_gradients()
                    with torch.set_grad_enabled(is_trained):
                        graph(*self._program.brought(first))
                    return streamed.plan
        finally:
            torch.set_rng_state(before)

    # Checkpoints.

    def latest_checkpoint(self) -> str | None:
        """Path of the latest checkpoint, without a suffix; None where there is none."""
        found = Index.of(self.model_dir).latest
        return None if found is None else str(self.model_dir / found)

    def get_variable_names(self) -> list[str]:
        """Names of what the latest checkpoint has: weights, states as ``weight/state``, counters.

        Raises:
            OpenwaferError: ``estimator-no-checkpoint``.
        """
        return sorted(self._checkpoint(None).names)

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """A value of the latest checkpoint.

        Raises:
            OpenwaferError: ``estimator-no-checkpoint``, ``estimator-variable-name``.
        """
        checkpoint = self._checkpoint(None)
        if name not in checkpoint.names:
            raise error(
                "estimator-variable-name",
                f"{checkpoint.path} has nothing of the name {name!r}",
                help="get_variable_names() lists what it has",
            )
        return _array(checkpoint.read(name))

    def _latest(self) -> tuple[Index, Checkpoint | None]:
        index = Index.of(self.model_dir)
        latest = index.latest
        return index, None if latest is None else Checkpoint(str(self.model_dir / latest))

    def _checkpoint(self, path: PathLike | None) -> Checkpoint:
        """The checkpoint of a path, or the latest of a folder; without a path, of our own."""
        found = self.model_dir if path is None else path_of(path, "checkpoint_path")
        if path is not None and not found.is_dir():
            return Checkpoint(str(found))
        latest = Index.of(found).latest if found.is_dir() else None
        if latest is None:
            raise error(
                "estimator-no-checkpoint",
                f"{found} has no checkpoint",
                help="train first, or name a checkpoint by checkpoint_path",
            )
        return Checkpoint(str(found / latest))

    # Graphs.

    def _training(
        self, begun: Beginning, step: torch.Tensor, end_step: int | None
    ) -> tuple[TrainingRun, EstimatorSpec]:
        """A run from the first batch on, with weights that are made anew."""
        assert begun.first is not None
        graph, spec = self._build(ModeKeys.TRAIN, begun.first)
        if begun.is_resumed:
            # Numbers that were drawn for weights were drawn before the call was cut off.
            torch.set_rng_state(begun.random_state)
        train_step = TrainStep.of(spec.train_op, place_of(self._model_fn, "model_fn"))
        return TrainingRun(graph, train_step, self.config, begun, step, end_step), spec

    def _batches(self, input_fn: Function, mode: str, steps: int | None) -> Iterator[Batch]:
        given = {"params": self.params, "mode": mode, "config": self.config}
        needs_end = steps is None and mode != ModeKeys.TRAIN
        return batches_of(input_fn, given, needs_end=needs_end)

    def _build(self, mode: str, first: Batch) -> tuple[Graph, EstimatorSpec]:
        where = place_of(self._model_fn, "model_fn")
        known = {"mode": mode, "params": self.params, "config": self.config}
        graph = Graph(_bound(self._model_fn, known, first, where), mode, where)
        return graph, graph.build(first)

    def _restored(
        self, mode: str, batches: Iterator[Batch], checkpoint: Checkpoint
    ) -> tuple[Graph, EstimatorSpec, Iterator[Batch]]:
        before = torch.get_rng_state()
        first = next(batches)
        graph, spec = self._build(mode, first)
        states.restore_weights(graph, checkpoint)
        torch.set_rng_state(before)
        return graph, spec, chain((first,), batches)

    @contextmanager
    def _streamed(self, graph: Graph) -> Iterator[None]:
        """Context in which the weights of a graph stream for forwards alone."""
        with self._program.streamed(graph, ()) as streamed, torch.no_grad():
            streamed.begin_without_gradients()
            yield


def _bound(
    model_fn: Function, known: Mapping[str, Any], first: Batch, where: str
) -> Callable[[Any, Any], Any]:
    """A model function of features and labels alone."""
    names = list(inspect.signature(model_fn).parameters)
    given = {name: value for name, value in known.items() if name in names}
    takes_labels = len(names) > 1 and (names[1] not in known)
    if takes_labels:
        return lambda features, labels: model_fn(features, labels, **given)
    if first.labels is not None:
        raise error(
            "estimator-signature",
            f"{where} takes no labels, and input_fn gives them",
            help="write def model_fn(features, labels, mode, params)",
        )
    return lambda features, _labels: model_fn(features, **given)


def _check_steps(steps: int | None, max_steps: int | None) -> None:
    if steps is not None and max_steps is not None:
        raise error(
            "estimator-steps",
            f"steps is {steps} and max_steps is {max_steps}",
            notes=("steps counts those of this call, max_steps all since the first one",),
            help="give one of them",
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise error(
                "estimator-steps",
                f"{name} is {value!r}",
                help="give a whole number of at least 1",
            )


def _named(spec: EstimatorSpec) -> dict[str, torch.Tensor]:
    return Outputs(spec.loss, spec.predictions, {}).named()


def _evaluate(graph: Graph, batch: Batch, means: Means) -> dict[str, torch.Tensor]:
    outputs: Outputs = graph(*batch)
    assert outputs.loss is not None
    means.add({"loss": (outputs.loss, torch.ones(())), **outputs.metrics})
    return outputs.named()


def _predict(graph: Graph, batch: Batch, outputs: list[Outputs]) -> dict[str, torch.Tensor]:
    outputs.append(graph(*batch))
    return outputs[-1].named()


def _arrays(predictions: Any, keys: Sequence[str] | None) -> Any:
    if not isinstance(predictions, Mapping):
        return _array(predictions)
    for key in keys or ():
        if key not in predictions:
            raise error(
                "estimator-predict-keys",
                f"predict is asked for {key!r}",
                help=f"the predictions of model_fn are {', '.join(predictions)}",
            )
    return {name: _array(predictions[name]) for name in keys or predictions}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return wide.detach().cpu().numpy()


def _examples(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, dict):
        yield from batch
        return
    for index in range(len(next(iter(batch.values())))):
        yield {name: values[index] for name, values in batch.items()}
