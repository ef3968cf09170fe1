"""Saving and loading of a script's states."""

from pathlib import Path
from typing import Any

import torch

from openwafer.atomic_file import replacing
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.frontends.present import backends, mdl_files
from openwafer.training.torch_private import pytree

__all__ = ["load", "save"]


def save(state_dict: Any, checkpoint_file: PathLike) -> None:
    """Write a state as the vendor's HDF5, whole or not at all.

    Args:
        state_dict: such as state_dicts of model and optimizer, whose weights come from the store.
        checkpoint_file: a new file; its folder is made.

    Those before it that are more than the backend's ``max_checkpoints`` are deleted, the oldest
    first.

    Raises:
        OpenwaferError: ``present-checkpoint-exists``, and what :func:`mdl_files.write` raises.
    """
    path = path_of(checkpoint_file, "checkpoint_file")
    if path.exists():
        raise error(
            "present-checkpoint-exists",
            f"cstorch.save would write over {path}",
            help="save to another name, as with the number of the step in it",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        mdl_files.write(temporary, state_dict)
    if (backend := backends.running()) is not None:
        keep_latest(backend.checkpoints, path, backend.max_checkpoints)


def keep_latest(written: list[Path], path: Path, most: int | None) -> None:
    """Note a new file behind those that were written, and delete the oldest of more than `most`."""
    # A script may have deleted one and saved it again, or go to another folder.
    path = path.absolute()
    written[:] = [*(one for one in written if one != path), path]
    while most is not None and len(written) > most:
        written.pop(0).unlink(missing_ok=True)


def load(checkpoint_file: PathLike, map_location: Any = None, **others: Any) -> Any:
    """A state that :func:`save` wrote, or ``torch.save``.

    Args:
        checkpoint_file: the file.
        map_location: device of its tensors; by default host memory.
        others: for ``torch.load``, of a file that is no HDF5.

    Raises:
        OpenwaferError: what :func:`mdl_files.read` raises.
    """
    path = path_of(checkpoint_file, "checkpoint_file")
    if not mdl_files.is_mdl(path):
        return torch.load(path, map_location=map_location or "cpu", **others)
    state = mdl_files.read(path)
    if map_location is None or map_location == "cache":
        return state
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(map_location), state)
