"""How a training ended, and what may come next."""

import math
import shlex
import sys
from typing import TYPE_CHECKING

import typer

from openwafer.cli import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from openwafer.training.session import Session, TrainResult


def tell_result(session: "Session", result: "TrainResult", *, can_write: bool = True) -> None:
    """Print it; a run that was interrupted ends the command with the code for that.

    Args:
        session: of the run.
        result: how it ended.
        can_write: whether the model writes text, if it is one that learns the next token.
    """
    from openwafer.training.models import UserModule
    from openwafer.training.models.transformers_model import Task

    run = shlex.quote(str(result.folder))
    trust = " --trust-code" if isinstance(session.config.model, UserModule) else ""
    if result.is_complete:
        loss = "all before" if math.isnan(result.loss) else f"loss {result.loss:.4f}"
        can_write = can_write and session.config.data.task is Task.CAUSAL_LM
        writing = f"openwafer generate {run} --prompt TEXT{trust} | " if can_write else ""
        if result.stopped_early:
            print(f"early stopping: {result.stopped_early}")
        print(
            f"done: {result.steps_done} steps, {loss}, in {result.folder}\n"
            f"next: {writing}openwafer report {run} | openwafer export {run} FOLDER{trust}"
        )
        return
    print(
        f"{result.interrupted_by}: ended after step {result.steps_done}, which is saved\n"
        f"go on with: openwafer resume {run}{trust}",
        file=sys.stderr,
    )
    raise typer.Exit(EXIT_INTERRUPTED)
