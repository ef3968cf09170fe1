"""Checkpoints of a trainer: when they are written, what they hold, and which one is loaded."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from openwafer.atomic_file import replacing
from openwafer.diagnostics import did_you_mean, error
from openwafer.training.frontends.model_zoo.hooks import Callback
from openwafer.training.frontends.present.storage import keep_latest, load, save

if TYPE_CHECKING:
    from openwafer.training.frontends.model_zoo.trainer import Trainer

_STAMP: Final = "%Y%m%d_%H%M%S"


class Checkpoint(Callback):
    """When checkpoints are written, and where.

    Args:
        steps: a checkpoint every so many steps of a fit, and in its last; None and 0 are never.
        autoload_last_checkpoint: whether a run without ``ckpt_path`` begins with the last one of
            the folder.
        disable_strict_checkpoint_loading: whether the weights of a checkpoint may be others than
            the model's; as ``strict=False`` of torch.
        save_initial_checkpoint: whether one is written before the first step.
        checkpoint_root: where to; by default the trainer's folder.
        checkpoint_name: of the files, with ``{step}``. What does not end in ``.mdl`` is a file of
            ``torch.save``, which needs no h5py.
        strict_version: of the vendor's releases; nothing reads it.

    Raises:
        OpenwaferError: ``trainer-checkpoint``.
    """

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        steps: int | None = None,
        autoload_last_checkpoint: bool = True,
        disable_strict_checkpoint_loading: bool = False,
        save_initial_checkpoint: bool = False,
        checkpoint_root: str | None = None,
        checkpoint_name: str = "checkpoint_{step}.mdl",
        strict_version: bool = True,
    ) -> None:
        if steps is not None and steps < 0:
            raise error(
                "trainer-checkpoint",
                f"checkpoints are to be written every {steps} steps",
                help="give a whole number of at least 1, or 0 for none",
            )
        if set(re.findall(r"{(.*?)}", checkpoint_name)) != {"step"}:
            raise error(
                "trainer-checkpoint",
                f"checkpoint_name is {checkpoint_name!r}",
                help="write {step} into it, as in checkpoint_{step}.mdl",
            )
        self.steps, self.is_loaded_again = steps or 0, autoload_last_checkpoint
        self.is_strict = not disable_strict_checkpoint_loading
        self.saves_first = save_initial_checkpoint
        self._root = None if checkpoint_root is None else Path(checkpoint_root)
        self._name = checkpoint_name

    def pre_setup(self, trainer: "Trainer") -> None:
        """Know the trainer's folder."""
        self._root = self._root or trainer.model_dir

    @property
    def root(self) -> Path:
        """Folder of the files."""
        assert self._root is not None
        return self._root

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, after = map(re.escape, self._name.split("{step}"))
        return re.compile(rf"{before}(?P<step>\d+)(?:_(?P<stamp>\d{{8}}_\d{{6}}))?{after}")

    def path_of(self, step: int) -> Path:
        """A new file for a step; with the time in its name where there is one already."""
        path = self.root / self._name.format(step=step)
        if path.exists():
            path = self.root / self._name.format(step=f"{step}_{datetime.now(UTC):{_STAMP}}")
        return path

    def found(self) -> list[Path]:
        """All that are in the folder, the last one last."""
        if not self.root.is_dir():
            return []
        matched = [(self._pattern.fullmatch(path.name), path) for path in self.root.iterdir()]
        known = [(int(m["step"]), m["stamp"] or "", path) for m, path in matched if m is not None]
        return [path for _, _, path in sorted(known)]

    def is_due(self, num_done: int, total_steps: int) -> bool:
        """Whether one is written behind so many steps of a fit."""
        return self.steps > 0 and (num_done == total_steps or num_done % self.steps == 0)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a new file, whole or not at all: the vendor's HDF5, or by its name torch's."""
    if path.suffix == ".mdl":
        save(state, path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        torch.save(state, temporary)


def read_state(path: Path) -> dict[str, Any]:
    """The state of a file.

    Raises:
        OpenwaferError: ``trainer-checkpoint`` where there is none, or its state has no names.
    """
    if not path.is_file():
        raise error(
            "trainer-checkpoint",
            f"there is no checkpoint {path}",
            help="give the path of a checkpoint_STEP.mdl, or leave ckpt_path out",
        )
    state = load(path)
    if not isinstance(state, dict):
        raise error(
            "trainer-checkpoint",
            f"{path} holds a {type(state).__name__}",
            help='a trainer\'s checkpoint has "model", "optimizer" and "global_step"',
        )
    return state


class KeepNCheckpoints(Callback):
    """Deletes the oldest checkpoint that this run wrote, where there are more than `n`.

    Raises:
        OpenwaferError: ``trainer-checkpoint``.
    """

    def __init__(self, n: int | None = None) -> None:
        if n is not None and n < 1:
            raise error("trainer-checkpoint", f"n is {n}", help="keep at least 1 checkpoint")
        self._n, self._written = n, list[Path]()

    def on_after_save_checkpoint(self, trainer: "Trainer", ckpt_path: Path) -> None:
        """Forget the oldest."""
        keep_latest(self._written, ckpt_path, self._n)


class LoadCheckpointStates(Callback):
    """Loads some of a checkpoint's states, by their names.

    Args:
        load_checkpoint_states: ``"all"``, or names such as ``"model,optimizer"``.

    Raises:
        OpenwaferError: ``trainer-checkpoint`` of a name that the checkpoint does not have.
    """

    def __init__(self, load_checkpoint_states: str | Sequence[str] = "all") -> None:
        self._names = _names_of(load_checkpoint_states)

    def preprocess_checkpoint(self, trainer: "Trainer", state_dict: dict[str, Any]) -> None:
        """Drop the others."""
        for name in set(state_dict) - chosen(state_dict, self._names):
            del state_dict[name]


class SaveCheckpointState(Callback):
    """Writes a part of every `k`-th checkpoint into a file beside it, which is kept.

    Args:
        k: see above.
        checkpoint_states: names of states, or ``"all"``.
        checkpoint_name: with ``{checkpoint_states}`` and ``{ckpt_name}``.

    Raises:
        OpenwaferError: ``trainer-checkpoint``.
    """

    def __init__(
        self,
        k: int,
        checkpoint_states: str | Sequence[str] = "model",
        checkpoint_name: str = "{checkpoint_states}_{ckpt_name}",
    ) -> None:
        if k < 1:
            raise error("trainer-checkpoint", f"k is {k}", help="give at least 1")
        self._every, self._names, self._name = k, _names_of(checkpoint_states), checkpoint_name
        self._num_since, self._state = 0, dict[str, Any]()

    def on_save_checkpoint(self, trainer: "Trainer", state_dict: dict[str, Any]) -> None:
        """Know the state, to which other callbacks may add until it is written."""
        self._state = state_dict

    def on_after_save_checkpoint(self, trainer: "Trainer", ckpt_path: Path) -> None:
        """Write it."""
        state, self._state = self._state, {}
        self._num_since += 1
        if self._num_since < self._every:
            return
        self._num_since = 0
        names = "all" if self._names is None else "_".join(self._names)
        file = self._name.format(checkpoint_states=names, ckpt_name=ckpt_path.name)
        part = {name: state[name] for name in sorted(chosen(state, self._names))}
        write_state(ckpt_path.with_name(file), part)


def _names_of(written: str | Sequence[str]) -> tuple[str, ...] | None:
    if isinstance(written, str):
        return None if written.lower() == "all" else tuple(written.split(","))
    return tuple(written)


def chosen(state: dict[str, Any], names: tuple[str, ...] | None) -> set[str]:
    """The names of a state that were asked for.

    Raises:
        OpenwaferError: ``trainer-checkpoint`` of one that it does not have.
    """
    for name in names or ():
        if name not in state:
            raise error(
                "trainer-checkpoint",
                f"a checkpoint has no state {name!r}",
                notes=(f"it has {', '.join(sorted(state))}",),
                help=did_you_mean(name, state),
            )
    return set(state) if names is None else set(names)
