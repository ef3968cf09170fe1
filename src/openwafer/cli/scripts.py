"""``openwafer python``: training scripts of the vendor's styles, as they are."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

# What follows the script is the script's own.
OWN_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


def python(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGUMENT ...]", help="What Python would run.")
    ],
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What a step may take on the device, as 2GiB."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where weights may be kept on disk.")
    ] = None,
) -> None:
    """Run a script for cerebras.pytorch or cerebras.framework.torch; its weights stream."""
    from openwafer.training.frontends.scripts.program import MEMORY_VARIABLE, STORE_VARIABLE
    from openwafer.training.frontends.scripts.script import run_script, show_mistake

    for variable, value in ((MEMORY_VARIABLE, device_memory), (STORE_VARIABLE, store)):
        if value is not None:
            os.environ[variable] = str(value)
    sys.excepthook = show_mistake
    run_script(script)
