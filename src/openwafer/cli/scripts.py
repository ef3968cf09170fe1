"""``openwafer python``: training scripts of the vendor's styles, as they are."""

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
    from openwafer.training.frontends.scripts.program import Room
    from openwafer.training.frontends.scripts.script import run_script, show_mistake

    Room.say_in_environment(device_memory, store)
    sys.excepthook = show_mistake
    run_script(script)
