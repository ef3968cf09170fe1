"""The Model Zoo's trainer: a model, an optimizer and callbacks, over loops of the present style."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from glob import glob
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.frontends.model_zoo.callbacks import LogLoss
from openwafer.training.frontends.model_zoo.checkpoints import Checkpoint, read_state, write_state
from openwafer.training.frontends.model_zoo.hooks import Callback, call
from openwafer.training.frontends.model_zoo.loggers import Logger, Logging
from openwafer.training.frontends.model_zoo.loops import TrainingLoop, ValidationLoop
from openwafer.training.frontends.model_zoo.positions import (
    OngoingBatches,
    random_state,
    set_random_state,
)
from openwafer.training.frontends.model_zoo.precision import MixedPrecision
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present.backends import Backend
from openwafer.training.frontends.present.executor import DataExecutor
from openwafer.training.frontends.present.loader import DataLoader
from openwafer.training.frontends.present.schedulers import Scheduler
from openwafer.training.frontends.present.sparse import SparsityAlgorithm
from openwafer.training.frontends.scripts.program import kind_of
from openwafer.training.stream.execute.thread_state import keeping_torch_generators

__all__ = ["Trainer", "summarize_scalar"]

LAST: Final = ...
"""In place of a checkpoint's path: the last one of the folder, where the trainer loads it."""
Place = PathLike | None
_OWN: Final = "openwafer"


class _Process:
    """Whose loop is under way."""

    trainer: "Trainer | None" = None


class Trainer:
    """Trains and evaluates a model; its weights stream while it does.

    Args:
        device: ``"CPU"``, ``"GPU"`` or ``"CSX"``, in place of
        backend: what ``cstorch.backend`` returned.
        model_dir: folder of checkpoints and logs; made.
        model: it, or a function that makes it. Called with a batch it returns its loss: a scalar,
            a pair that begins with it, or a mapping that has it under ``"loss"``. A model of the
            transformers library is called with the names of a batch.
        optimizer: one of ``cstorch.optim``, or a function of the model; None where it is only
            evaluated.
        schedulers: of the optimizer, or functions of it.
        precision, loop, checkpoint, logging: see their classes.
        sparsity: of ``cstorch.sparse``, or a function that makes it.
        callbacks, loggers: are called in their order, loggers last.
        seed: of torch's generators, before the model is made.

    Attributes:
        global_step: updates that were done, over resumes.
        executor: of the loop under way.

    Raises:
        OpenwaferError: ``trainer-device``, ``trainer-argument``, and what the parts raise.
    """

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        device: str | None = None,
        backend: Backend | None = None,
        model_dir: PathLike = "model_dir",
        *,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: Optimizer | Callable[[nn.Module], Optimizer] | None = None,
        schedulers: Sequence[Scheduler | Callable[[Optimizer], Scheduler]] | None = None,
        precision: MixedPrecision | None = None,
        sparsity: SparsityAlgorithm | Callable[[], SparsityAlgorithm] | None = None,
        loop: TrainingLoop | ValidationLoop | None = None,
        checkpoint: Checkpoint | None = None,
        logging: Logging | None = None,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
        seed: int | None = None,
    ) -> None:
        self.model_dir = path_of(model_dir, "model_dir")
        self.model_dir.mkdir(parents=True, exist_ok=True)
        self.loop = loop or TrainingLoop(num_epochs=1)
        self.checkpoint, self.logging = checkpoint or Checkpoint(), logging or Logging()
        self.precision, self.loggers = precision, list(loggers)
        self.callbacks = [self.logging, self.checkpoint, LogLoss(), *callbacks, *loggers]
        self.global_step = 0
        self.executor: DataExecutor | None = None
        self.should_run_optimizer_step, self._is_at_end = True, False
        self._scope, self._batches = "", OngoingBatches(DataLoader(list))
        if seed is not None:
            torch.manual_seed(seed)
        self.backend = _backend_of(device, backend)
        self._call("pre_setup")
        self.model = model if isinstance(model, nn.Module) else model()
        self.compiled_model = cstorch.compile(self.model, self.backend)
        self.optimizer = (
            optimizer
            if optimizer is None or isinstance(optimizer, Optimizer)
            else optimizer(self.model)
        )
        self.schedulers = [self._scheduler(one) for one in schedulers or ()]
        self.sparsity = (
            sparsity()
            if callable(sparsity) and not isinstance(sparsity, SparsityAlgorithm)
            else sparsity
        )
        self._begin()

    def _scheduler(self, given: Scheduler | Callable[[Optimizer], Scheduler]) -> Scheduler:
        if isinstance(given, Scheduler):
            return given
        if self.optimizer is None:
            raise error(
                "trainer-argument",
                "schedulers are given, and no optimizer",
                help="give an optimizer, or leave the schedulers out",
            )
        return given(self.optimizer)

    def _begin(self) -> None:
        if self.sparsity is not None:
            self.model.apply(self.sparsity)
            if self.optimizer is not None:
                self.sparsity.apply(self.optimizer)
        self._call("setup")
        self._call("post_setup")
        self._traced_training = cstorch.trace(self.training_step)
        self._traced_validation = cstorch.trace(self.validation_step)
        self._log_later = cstorch.step_closure(self._log)
        self.at_end_of_step = cstorch.step_closure(self._called)
        self._save_later = cstorch.step_closure(self.save_checkpoint)

    def _call(self, hook: str, *args: Any) -> None:
        call(self.callbacks, hook, self, *args)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Context whose exceptions the callbacks are told of."""
        before, _Process.trainer = _Process.trainer, self
        try:
            yield
        except Exception as mistake:
            self._call(f"on_{what}_exception", mistake)
            raise
        finally:
            _Process.trainer = before
            for logger in self.loggers:
                logger.flush()

    def fit(
        self,
        train_dataloader: DataLoader,
        val_dataloader: DataLoader | Sequence[DataLoader] | None = None,
        ckpt_path: Any = LAST,
    ) -> None:
        """Train, with evaluations between as the loop says.

        Args:
            train_dataloader: its batches go on where they were behind an evaluation, and behind a
                checkpoint that is loaded.
            val_dataloader: one or several.
            ckpt_path: to go on from; by default the last one of the folder. None begins anew.

        Raises:
            OpenwaferError: ``trainer-argument`` without an optimizer or a training loop,
                ``trainer-checkpoint``, ``present-steps``.
        """
        loop = self.loop
        if self.optimizer is None or not isinstance(loop, TrainingLoop):
            raise error(
                "trainer-argument",
                f"fit is called of a trainer with {kind_of(self.optimizer)} as its optimizer and "
                f"{kind_of(loop)} as its loop",
                help="give Trainer an optimizer, and a TrainingLoop",
            )
        loaders = _listed(val_dataloader) if loop.eval_frequency else []
        self._batches = OngoingBatches(train_dataloader)
        with self._telling("fit"):
            self.load_checkpoint(ckpt_path)
            self.first_step = self.global_step
            self.total_steps = loop.total_steps(train_dataloader, self.global_step)
            self._call("on_fit_start", train_dataloader, val_dataloader, loop)
            if self.checkpoint.saves_first:
                self.save_checkpoint()
            stages = loop.stages(self.total_steps) if loaders else [self.total_steps]
            for number, num_steps in enumerate(stages):
                self._train(loop, num_steps, number)
                self._validate_on(loaders, loop.val_loop)
            self._call("on_fit_end", loop)

    def _train(self, loop: TrainingLoop, num_steps: int, number: int) -> None:
        num_batches = 1 if self.backend.is_csx else loop.grad_accum_steps
        self._num_batches, self._scope = num_batches, "train/"
        self.model.train()
        with self._telling("train"):
            self._call("on_train_start", self.model, self._batches.loader, loop, number)
            self.executor = DataExecutor(
                DataLoader(lambda: self._batches), num_steps=num_steps * num_batches
            )
            for index, batch in enumerate(self.executor):
                self.should_run_optimizer_step = (index + 1) % num_batches == 0
                self._call("on_train_batch_start", self.model, batch, index)
                outputs = self._traced_training(batch)
                self.global_step += self.should_run_optimizer_step
                self._call("on_train_batch_end", self.model, outputs, batch, index)
                if self.should_run_optimizer_step and self._is_checkpoint_due():
                    self._save_later()
            self.executor = None
            self._call("on_train_end", self.model, loop, number)

    def _is_checkpoint_due(self) -> bool:
        return self.checkpoint.is_due(self.global_step - self.first_step, self.total_steps)

    def training_step(self, batch: Any) -> Mapping[str, Any]:
        """A forward and a backward, and where enough batches are through it, an update."""
        self._call("on_train_step_start", self.model, batch)
        outputs = self.forward(batch)
        loss = outputs.get("loss")
        self._call("on_before_backward", self.model, outputs)
        _require_loss(self.model, loss).div(self._num_batches).backward()
        self._call("on_after_backward", self.model, outputs)
        if self.should_run_optimizer_step:
            self._update()
        self._call("on_train_step_end", self.model, outputs, batch)
        return outputs

    def _update(self) -> None:
        optimizer = self.optimizer
        assert optimizer is not None
        with self._around("optimizer_step", optimizer):
            if self.precision is not None:
                self.precision.clip_gradients(optimizer)
            optimizer.step()
        with self._around("optimizer_zero_grad", optimizer):
            optimizer.zero_grad()
        for scheduler in self.schedulers:
            with self._around("scheduler_step", optimizer, scheduler):
                scheduler.step()

    @contextmanager
    def _around(self, what: str, *args: Any) -> Iterator[None]:
        self._call(f"on_before_{what}", self.model, *args)
        yield
        self._call(f"on_after_{what}", self.model, *args)

    def forward(self, batch: Any) -> Mapping[str, Any]:
        """The outputs of the model for a batch, by name."""
        precision, model = self.precision, self.compiled_model
        context = nullcontext() if precision is None else precision.forward_context(self.backend)
        with context:
            args: list[Any] = [] if self._takes_names(batch) else [batch]
            names = {} if args else dict(batch)
            self._call("on_before_forward", self.model, batch, args, names)
            outputs = _named(model(*args, **names))
            self._call("on_after_forward", self.model, outputs, batch)
        return outputs

    def _takes_names(self, batch: Any) -> bool:
        # Its class says so without its library being loaded.
        modules = {kind.__module__.partition(".")[0] for kind in type(self.model).__mro__}
        return isinstance(batch, Mapping) and "transformers" in modules

    def validate(
        self,
        val_dataloader: DataLoader,
        ckpt_path: Any = LAST,
        loop: ValidationLoop | None = None,
    ) -> None:
        """Evaluate on a loader's batches.

        Args:
            val_dataloader: see above.
            ckpt_path: see :meth:`fit`.
            loop: by default the trainer's.

        Raises:
            OpenwaferError: ``trainer-checkpoint``.
        """
        self.load_checkpoint(ckpt_path)
        self._validate_on([val_dataloader], loop or self._validation_loop())

    def validate_all(
        self,
        val_dataloaders: DataLoader | Sequence[DataLoader] | None = None,
        ckpt_paths: Any = LAST,
        loop: ValidationLoop | None = None,
    ) -> None:
        """Evaluate checkpoints on loaders, all with all.

        Args:
            val_dataloaders: one or several.
            ckpt_paths: paths or globs; by default all of the folder.
            loop: by default the trainer's.

        Raises:
            OpenwaferError: ``trainer-checkpoint``.
        """
        loaders = _listed(val_dataloaders)
        for path in self._expanded(ckpt_paths):
            self.load_checkpoint(path)
            self._validate_on(loaders, loop or self._validation_loop())

    def _expanded(self, given: Any) -> list[Place]:
        if given is LAST and self.checkpoint.is_loaded_again:
            found = self.checkpoint.found()
        elif given is LAST or given is None:
            return [None]
        else:
            globs = [given] if isinstance(given, str | Path) else given
            found = [Path(path) for each in globs for path in sorted(glob(str(each)))]
        if not found:
            raise error(
                "trainer-checkpoint",
                f"no checkpoint is found for ckpt_paths={'all' if given is LAST else given}",
                help=f"train before, give paths, or look into {self.checkpoint.root}",
            )
        return list(found)

    def _validation_loop(self) -> ValidationLoop:
        return self.loop.val_loop if isinstance(self.loop, TrainingLoop) else self.loop

    def _validate_on(self, loaders: Sequence[DataLoader], loop: ValidationLoop) -> None:
        for number, loader in enumerate(loaders):
            self._validate(loader, loop, number)

    def _validate(self, loader: DataLoader, loop: ValidationLoop, number: int) -> None:
        self._scope = f"validate_{number}/"
        self.model.eval()
        # Orders that are drawn here are no part of the training's.
        with self._telling("validate"), keeping_torch_generators():
            self._call("on_validate_start", self.model, loader, loop)
            self.executor = DataExecutor(loader, num_steps=loop.eval_steps)
            for index, batch in enumerate(self.executor):
                self._call("on_validate_batch_start", self.model, batch, index)
                outputs = self._traced_validation(batch)
                self._call("on_validate_batch_end", self.model, outputs, batch, index)
            self.executor = None
            self._call("on_validate_end", self.model, loop)

    @torch.no_grad()
    def validation_step(self, batch: Any) -> Mapping[str, Any]:
        """A forward."""
        self._call("on_validate_step_start", self.model, batch)
        outputs = self.forward(batch)
        self._call("on_validate_step_end", self.model, outputs, batch)
        return outputs

    def finish(self) -> None:
        """Let the callbacks close what they hold."""
        self._call("finalize")

    @property
    def is_training(self) -> bool:
        """Whether the loop under way trains."""
        return self._scope == "train/"

    @property
    def is_log_step(self) -> bool:
        """Whether the loggers are told of this step."""
        executor, every = self.executor, self.logging.log_steps
        if executor is None:
            return True
        if not self.is_training:
            return executor.on_final_iteration or executor.user_iteration % every == 0
        return self.should_run_optimizer_step and self._is_logged(self.global_step)

    @property
    def logs_next_step(self) -> bool:
        """Whether the loggers will be told of the update under way."""
        return self._is_logged(self.global_step + 1)

    def _is_logged(self, step: int) -> bool:
        num_done = step - self.first_step
        return num_done % self.logging.log_steps == 0 or num_done == self.total_steps

    def log_metrics(self, **metrics: Any) -> None:
        """Tell the loggers of metrics, at the end of a step where one is under way."""
        if self._is_at_end:
            self._log(metrics)
        else:
            self._log_later(metrics)

    def _called(self, function: Callable[[], object]) -> None:
        self._is_at_end = True
        try:
            function()
        finally:
            self._is_at_end = False

    def _log(self, metrics: Mapping[str, Any]) -> None:
        if self.is_log_step:
            named = {f"{self._scope}{name}": value for name, value in metrics.items()}
            for logger in self.loggers:
                logger.log_metrics(named, self.global_step)

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the step that is done."""
        state: dict[str, Any] = {"model": self.model.state_dict(), "global_step": self.global_step}
        if self.optimizer is not None:
            state["optimizer"] = self.optimizer.state_dict()
        if self.schedulers:
            state["schedulers"] = [scheduler.state_dict() for scheduler in self.schedulers]
        if self.sparsity is not None:
            state["sparsity"] = self.sparsity.state_dict()
        if self._batches.loader.is_restartable:
            state["dataloader"] = self._batches.loader.state_dict()
        state[_OWN] = {"random": random_state(), "batches": self._batches.state_dict()}
        self._call("on_save_checkpoint", state)
        path = self.checkpoint.path_of(self.global_step)
        self._call("on_before_save_checkpoint", path)
        write_state(path, state)
        self._call("on_after_save_checkpoint", path)

    def load_checkpoint(self, ckpt_path: Any = LAST) -> None:
        """Go on from a checkpoint.

        Args:
            ckpt_path: by default the last one of the folder, where the trainer loads it; None is
                none.

        Raises:
            OpenwaferError: ``trainer-checkpoint`` for a file that is not there, and for weights
                that are not the model's.
        """
        path = ckpt_path
        if path is LAST:
            path = self.checkpoint.found()[-1:] if self.checkpoint.is_loaded_again else None
            path = path[0] if path else None
        self._call("on_before_load_checkpoint", path)
        if path is None:
            return
        state = read_state(Path(path))
        self._call("preprocess_checkpoint", state)
        self._take(state, Path(path))
        self._call("on_load_checkpoint", state)
        self._call("on_after_load_checkpoint", path)

    def _take(self, state: Mapping[str, Any], path: Path) -> None:
        if "model" in state:
            self._take_weights(state["model"], path)
        if self.optimizer is not None and "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        for scheduler, own in zip(self.schedulers, state.get("schedulers", ()), strict=False):
            scheduler.load_state_dict(own)
        if self.sparsity is not None and "sparsity" in state:
            self.sparsity.load_state_dict(state["sparsity"])
        self.global_step = int(state.get("global_step", self.global_step))
        is_restartable = self._batches.loader.is_restartable
        if is_restartable and "dataloader" in state:
            self._batches.loader.load_state_dict(state["dataloader"])
        if own := state.get(_OWN):
            if not is_restartable:
                self._batches.load_state_dict(own["batches"])
            set_random_state(own["random"])

    def _take_weights(self, weights: Mapping[str, Any], path: Path) -> None:
        try:
            self.model.load_state_dict(weights, strict=self.checkpoint.is_strict)
        except RuntimeError as cause:
            raise error(
                "trainer-checkpoint",
                f"the weights of {path} are not those of the {type(self.model).__name__}: {cause}",
                help="load one of this model; disable_strict_checkpoint_loading lets names differ",
            ) from cause


def summarize_scalar(name: str, value: torch.Tensor | float) -> None:
    """Tell the loggers of the trainer under way of a number of its step; for models to call.

    Raises:
        OpenwaferError: ``trainer-summary`` where no trainer is under way.
    """
    if _Process.trainer is None:
        raise error(
            "trainer-summary",
            f"summarize_scalar({name!r}, ...) is called, and no trainer trains or evaluates",
            help="call it in the forward of the model that a Trainer has",
        )
    _Process.trainer.log_metrics(**{name: value})


def _backend_of(device: str | None, given: Backend | None) -> Backend:
    if (device is None) == (given is None):
        raise error(
            "trainer-device",
            "a trainer is given both a device and a backend"
            if device
            else "a trainer is given neither a device nor a backend",
            help='give one of device="CSX" and backend=cstorch.backend("CSX")',
        )
    made = cstorch.backend(device) if given is None else given
    assert made is not None
    return made


def _listed(given: DataLoader | Sequence[DataLoader] | None) -> list[DataLoader]:
    if given is None:
        return []
    return [given] if isinstance(given, DataLoader) else list(given)


def _named(output: Any) -> Mapping[str, Any]:
    if isinstance(output, Mapping):
        return output
    if isinstance(output, torch.Tensor):
        return {"loss" if output.numel() == 1 else "output": output}
    if isinstance(output, list | tuple) and output:
        return {"loss": output[0], **({"logits": output[1]} if len(output) > 1 else {})}
    raise error(
        "trainer-loss",
        f"the model returned {kind_of(output)}",
        help='return the loss, a pair that begins with it, or a mapping with "loss"',
    )


def _require_loss(model: nn.Module, loss: Any) -> torch.Tensor:
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss
    found = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else "none"
    raise error(
        "trainer-loss",
        f"the {type(model).__name__} is to return its loss, and returned {found}",
        help='return one number, a pair that begins with it, or a mapping with "loss"',
    )
