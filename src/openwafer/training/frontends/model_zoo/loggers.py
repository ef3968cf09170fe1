"""Where a trainer's metrics go."""

import logging
from typing import TYPE_CHECKING, Any, Literal

import torch

from openwafer.diagnostics import error
from openwafer.training.frontends.model_zoo.hooks import Callback
from openwafer.training.frontends.present.loader import size_of
from openwafer.training.frontends.present.rates import RateTracker
from openwafer.training.frontends.present.tensorboard import SummaryWriter
from openwafer.training.metrics.loggers import imported

if TYPE_CHECKING:
    from openwafer.training.frontends.model_zoo.trainer import Trainer

_LOG = logging.getLogger("openwafer.trainer")


class Logging(Callback):
    """How often loggers are told, and what Python's own log shows.

    Args:
        log_steps: every so many steps, and in the last; 0 is the last alone.
        log_level: of the log.
        wsc_log_level, enable_act_frequency: of the vendor's machine; nothing reads them.

    Raises:
        OpenwaferError: ``trainer-logging``.
    """

    def __init__(
        self,
        log_steps: int = 1,
        log_level: str = "INFO",
        wsc_log_level: dict[str, Any] | None = None,
        enable_act_frequency: bool = False,
    ) -> None:
        level = log_level.upper()
        if log_steps < 0 or level not in logging.getLevelNamesMapping():
            raise error(
                "trainer-logging",
                f"log_steps is {log_steps}, and log_level {log_level!r}",
                help="log_steps is at least 0; levels are DEBUG, INFO, WARNING and ERROR",
            )
        # Of no step but the last.
        self.log_steps, self._level = log_steps or 2**62, level

    def pre_setup(self, trainer: "Trainer") -> None:
        """Let the trainer's messages show, on the terminal."""
        _LOG.setLevel(self._level)
        if not logging.getLogger().handlers and not _LOG.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
            _LOG.addHandler(handler)


class Logger(Callback):
    """Takes metrics by name; a subclass says where to."""

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Take the metrics of a step.

        Raises:
            OpenwaferError: ``trainer-logger`` where a subclass does not say.
        """
        raise error(
            "trainer-logger",
            f"{type(self).__name__} has no log_metrics",
            help="write log_metrics(self, metrics, step) into it",
        )

    def flush(self) -> None:
        """Write what waits; at the end of each loop."""


class ProgressLogger(Logger):
    """Tells of each logged step in one line of Python's log."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._samples = RateTracker()

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Keep them for the line."""
        self._metrics |= {name.partition("/")[2]: value for name, value in metrics.items()}

    def on_fit_start(self, trainer: "Trainer", *_: Any) -> None:
        """Count from here."""
        self._samples.reset()

    def on_train_batch_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell of a step."""
        self._samples.add(size_of(batch) or 0)
        self._tell_later(trainer, f"Train Device={trainer.backend.device}", None)

    def on_validate_batch_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell of a batch."""
        self._tell_later(trainer, f"Eval Device={trainer.backend.device}", batch_idx + 1)

    def _tell_later(self, trainer: "Trainer", head: str, batch: int | None) -> None:
        trainer.at_end_of_step(lambda: self._tell(trainer, head, batch))

    def _tell(self, trainer: "Trainer", head: str, batch: int | None) -> None:
        if not trainer.is_log_step:
            return
        found, self._metrics = self._metrics, {}
        parts = [f"| {head}, {'Step' if batch is None else 'GlobalStep'}={trainer.global_step}"]
        parts += [] if batch is None else [f"Batch={batch}"]
        loss = found.get("loss", found.get("val_loss"))
        parts += [] if loss is None else [f"Loss={float(loss):.5f}"]
        rates = {"Rate": "local_samples_per_sec", "GlobalRate": "avg_samples_per_sec"}
        parts += [f"{k}={found[v]:.2f} samples/sec" for k, v in rates.items() if v in found]
        _LOG.info(", ".join(parts))

    def on_fit_end(self, trainer: "Trainer", loop: Any) -> None:
        """Tell of the whole."""
        samples, seconds = self._samples.total_samples, self._samples.total_time
        _LOG.info("Processed %d training sample(s) in %.1f seconds.", samples, seconds)


class TensorBoardLogger(Logger):
    """Writes scalars and tensors for TensorBoard.

    Args:
        summary_dir: by default ``events`` in the trainer's folder.
        legacy_event_dirs: of older releases.

    Raises:
        OpenwaferError: ``logger-not-installed`` where it is not installed; ``trainer-logger`` for
            `legacy_event_dirs`.
    """

    def __init__(self, summary_dir: str | None = None, legacy_event_dirs: bool = False) -> None:
        if legacy_event_dirs:
            raise error(
                "trainer-logger",
                "TensorBoardLogger is asked for legacy_event_dirs",
                help="leave it out: names begin with train/ and validate_0/",
            )
        self._folder = summary_dir
        self._writer: SummaryWriter | None = None

    def setup(self, trainer: "Trainer") -> None:
        """Open the folder."""
        self._writer = SummaryWriter(self._folder or trainer.model_dir / "events")

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Write them."""
        assert self._writer is not None
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                self._writer.add_tensor(name, value, step)
            elif isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, float(value), step)

    def flush(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            self._writer.flush()


class WandbLogger(Logger):
    """Gives metrics to Weights and Biases, by its own library.

    Args:
        project, group, run_id, run_name, job_type, tags, resume, entity: for ``wandb.init``.

    Raises:
        OpenwaferError: ``logger-not-installed``.
    """

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        project: str | None = None,
        group: str | None = None,
        run_id: str | None = None,
        run_name: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        resume: Literal["never", "allow", "auto", "must"] = "auto",
        entity: str | None = None,
    ) -> None:
        self._options = {
            "project": project,
            "group": group,
            "id": run_id,
            "name": run_name,
            "job_type": job_type,
            "tags": tags,
            "resume": resume,
            "entity": entity,
        }
        self._run: Any = None

    def setup(self, trainer: "Trainer") -> None:
        """Begin its run."""
        self._run = imported("wandb", "wandb", "a WandbLogger").init(
            dir=str(trainer.model_dir), **self._options
        )

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Give them."""
        values = {
            n: v.item() if torch.is_tensor(v) and v.numel() == 1 else v for n, v in metrics.items()
        }
        self._run.log(values, step=step)

    def finalize(self, trainer: "Trainer") -> None:
        """End its run."""
        self._run.finish()
