"""Loggers of other libraries, which get the numbers of a run's steps; each imported when wanted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from openwafer.diagnostics import error
from openwafer.training.metrics.step_lines import StepMetrics, ValidationPoint

Log: TypeAlias = Callable[[Mapping[str, float], int], object]
"""Takes numbers by name, and the step that they are of, from 0."""
Config: TypeAlias = Mapping[str, str]


class Logger(StrEnum):
    """Whose logger."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    MLFLOW = "mlflow"
    AIM = "aim"


def imported(module: str, package: str, wanted_by: str) -> Any:
    """A library that may be absent.

    Args:
        module: what is imported.
        package: what brings it.
        wanted_by: what asks for it, as its user wrote it.

    Raises:
        OpenwaferError: ``logger-not-installed``.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        raise error(
            "logger-not-installed",
            f"{wanted_by} is asked for, and {package} is not installed: {missing}",
            help=f"install it: pip install {package}, or leave {wanted_by} out",
        ) from missing


def tensorboard_writers(wanted_by: str) -> Any:
    """The module of torch that has TensorBoard's ``SummaryWriter``.

    Raises:
        OpenwaferError: ``logger-not-installed``.
    """
    return imported("torch.utils.tensorboard", "tensorboard", wanted_by)


class RunLoggers:
    """The loggers of a run.

    Args:
        logs: what each is called with.
    """

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs

    def add(self, row: StepMetrics | ValidationPoint) -> None:
        """Give them the numbers of a row, as ``train/loss`` and ``validation/loss``."""
        if not self._logs:
            return
        part = "train" if isinstance(row, StepMetrics) else "validation"
        values = {
            f"{part}/{name}": float(value)
            for name, value in asdict(row).items()
            if name != "step" and isinstance(value, int | float)
        }
        for log in self._logs:
            log(values, row.step)


@contextmanager
def run_loggers(
    loggers: Sequence[Logger], folder: Path, config: Config, first_step: int
) -> Iterator[RunLoggers]:
    """Context in which loggers are open.

    Args:
        loggers: which; what they are not told they take from their own environment variables.
        folder: of the run, whose name is the run's; files lie in folders of it.
        config: its settings by name, as texts.
        first_step: what was logged from it on was of steps that are taken anew.

    Raises:
        OpenwaferError: ``logger-not-installed``.
    """
    with ExitStack() as stack:
        yield RunLoggers(
            [stack.enter_context(_OPENED[one](folder, config, first_step)) for one in loggers]
        )


@contextmanager
def _tensorboard(folder: Path, _config: Config, first_step: int) -> Iterator[Log]:
    writers = tensorboard_writers("loggers: [tensorboard]")
    with writers.SummaryWriter(str(folder / "tensorboard"), purge_step=first_step) as writer:

        def log(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield log


@contextmanager
def _wandb(folder: Path, config: Config, _first_step: int) -> Iterator[Log]:
    library = imported("wandb", "wandb", "loggers: [wandb]")
    # Where WANDB_RUN_ID names a run, it goes on.
    given = {"dir": str(folder), "name": folder.name, "config": dict(config), "resume": "allow"}
    with library.init(**given) as run:
        yield lambda values, step: run.log(dict(values), step=step)


@contextmanager
def _mlflow(folder: Path, config: Config, _first_step: int) -> Iterator[Log]:
    library = imported("mlflow", "mlflow", "loggers: [mlflow]")
    # Where MLFLOW_RUN_ID names a run, it goes on, and keeps its own name.
    with library.start_run(run_name=folder.name):
        library.log_params(dict(config))
        yield lambda values, step: library.log_metrics(dict(values), step=step)


@contextmanager
def _aim(folder: Path, config: Config, _first_step: int) -> Iterator[Log]:
    library = imported("aim", "aim", "loggers: [aim]")
    repository = library.Repo.from_path(str(folder / "aim"), init=True)
    # Its one run, where a run goes on.
    known = repository.list_all_runs() or [None]
    run = library.Run(
        known[0], repo=repository, system_tracking_interval=None, capture_terminal_logs=False
    )
    run.name = folder.name
    run["config"] = dict(config)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            run.track(value, name=name, step=step)

    with closing(run):
        yield log


_OPENED: Final = {
    Logger.TENSORBOARD: _tensorboard,
    Logger.WANDB: _wandb,
    Logger.MLFLOW: _mlflow,
    Logger.AIM: _aim,
}
