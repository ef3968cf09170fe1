"""``openwafer official``: the vendor's public front end in its own Python, with our engine."""

from pathlib import Path
from typing import Annotated

import typer


def official(
    python: Annotated[
        Path, typer.Argument(metavar="PYTHON", help="Of the environment with the vendor's wheels.")
    ],
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGUMENT ...]", help="What it would run, or cszoo."),
    ],
    store: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where weights are kept on disk.")
    ] = None,
) -> None:
    """Run a script of the vendor's own packages, whose machine is this engine."""
    from openwafer.training.frontends.official.machine.launch import run_official

    raise SystemExit(run_official(python, script, store))
