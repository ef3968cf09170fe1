"""Arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to train.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run, such as runs/NAME.")]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a value of the config, a.b=value; repeatable."
    ),
]

TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that the run's folder names as its model."),
]

SavedStep = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH|best",
        help="A checkpoint of the run, or the best one that it keeps; by default its newest step.",
    ),
]

CyclesOf = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Take cycles from this run on the simulated wafer."),
]

NumSystems = Annotated[
    int | None,
    typer.Option(
        "--systems",
        min=1,
        metavar="N",
        help="Processes that run each step together; by default what the config says.",
    ),
]
