"""``openwafer cszoo``: the Model Zoo's trainer YAML, as its own command takes it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

cszoo_app = typer.Typer(
    help="Run the trainer that a YAML of the Model Zoo describes.", no_args_is_help=True
)

_Config = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="With the key trainer.")]
_Device = Annotated[
    str | None,
    typer.Option("--target_device", metavar="CPU|GPU|CSX", help="In place of the config's."),
]
_Folder = Annotated[
    Path | None, typer.Option("--model_dir", help="Of checkpoints and logs; by default written.")
]
_Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint_path", help="Go on from it; by default from the last one."),
]
_Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="What a step may take on the device, as 2GiB."),
]
_Store = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where weights may be kept on disk.")
]


@cszoo_app.command()
def fit(
    config: _Config,
    target_device: _Device = None,
    model_dir: _Folder = None,
    checkpoint_path: _Checkpoint = None,
    device_memory: _Memory = None,
    store: _Store = None,
) -> None:
    """Train, with evaluations between."""
    _set_room(device_memory, store)
    _run("fit", config, target_device, model_dir, checkpoint_path)


@cszoo_app.command()
def validate(
    config: _Config,
    target_device: _Device = None,
    model_dir: _Folder = None,
    checkpoint_path: _Checkpoint = None,
    device_memory: _Memory = None,
    store: _Store = None,
) -> None:
    """Evaluate a checkpoint."""
    _set_room(device_memory, store)
    _run("validate", config, target_device, model_dir, checkpoint_path)


@cszoo_app.command("validate_all")
def validate_all(
    config: _Config,
    target_device: _Device = None,
    model_dir: _Folder = None,
    checkpoint_path: _Checkpoint = None,
    device_memory: _Memory = None,
    store: _Store = None,
) -> None:
    """Evaluate all checkpoints on all loaders."""
    _set_room(device_memory, store)
    _run("validate_all", config, target_device, model_dir, checkpoint_path)


def _set_room(device_memory: str | None, store: Path | None) -> None:
    from openwafer.training.frontends.scripts.program import Room

    Room.say_in_environment(device_memory, store)


def _run(
    command: str, config: Path, device: str | None, model_dir: Path | None, path: Path | None
) -> None:
    from openwafer import foreign_modules
    from openwafer.training.frontends.model_zoo.recipe import read_phases, run_phases
    from openwafer.training.frontends.model_zoo.trainer import LAST
    from openwafer.training.frontends.scripts.vendor_names import MODULES, PACKAGES

    # What a YAML names lies beside it, and may import the vendor's names.
    foreign_modules.install(PACKAGES, MODULES)
    sys.path.insert(0, str(config.resolve().parent))
    phases = read_phases(config)
    run_phases(phases, command, device, model_dir, LAST if path is None else path)
