"""Files of a run that grow by lines, and loggers of others that get the same numbers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from openwafer.config.writing import settings_of
from openwafer.diagnostics import Diagnostic, Severity, render
from openwafer.training.metrics import (
    METRICS_FORMAT,
    VALIDATION_FORMAT,
    StepMetrics,
    StepWriter,
    ValidationPoint,
)
from openwafer.training.metrics.loggers import RunLoggers, run_loggers
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_folder import RunFolder, RunLog


@dataclass(frozen=True)
class RunLines:
    """See the module; ``validation`` is ``None`` where nobody evaluates."""

    log: RunLog
    metrics: StepWriter[StepMetrics]
    validation: StepWriter[ValidationPoint] | None
    loggers: RunLoggers


@contextmanager
def opened_lines(
    config: RunConfig, folder: RunFolder, first_step: int, log: RunLog, console: Console
) -> Iterator[RunLines]:
    """Context in which the lines of a run are written from a step on."""
    with ExitStack() as stack:
        metrics = StepWriter(folder.metrics, METRICS_FORMAT, first_step=first_step)
        stack.enter_context(metrics)
        tell_of_damage(metrics.damaged, console)
        validation = None
        if config.evaluate is not None:
            begun = first_step if folder.validation.exists() else 0
            validation = StepWriter(folder.validation, VALIDATION_FORMAT, first_step=begun)
            stack.enter_context(validation)
            tell_of_damage(validation.damaged, console)
        loggers = run_loggers(config.loggers, folder.path, settings_of(config), first_step)
        yield RunLines(log, metrics, validation, stack.enter_context(loggers))


def tell_of_damage(damaged: Path | None, console: Console) -> None:
    """Warn of a file whose damaged lines were left out, if there was one."""
    if damaged is None:
        return
    warning = Diagnostic(
        Severity.WARNING,
        "run-file-corrupt",
        f"lines of the run's record were damaged, and are left out; they are in {damaged}",
        help="nothing; what the run has learned is elsewhere",
    )
    console.print(render(warning), markup=False, highlight=False, soft_wrap=True)
