"""Checkpoints of an estimator: a safetensors file for each, and an index of TensorFlow's form.

docs/formats/openwafer-estimator-checkpoint.md describes both.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from openwafer import atomic_file
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store import ArraySpec
from openwafer.training.store.safetensors_file import write_header

VERSION: Final = 2
INDEX: Final = "checkpoint"
_SUFFIX: Final = ".safetensors"
_PREFIX: Final = "model.ckpt-"
_KEY: Final = "openwafer-estimator-checkpoint"
_LISTED: Final = re.compile(r'^all_model_checkpoint_paths: "(.*)"$', re.MULTILINE)
_LATEST: Final = re.compile(r'^model_checkpoint_path: "(.*)"$', re.MULTILINE)

_ENDED: Final = "# train ended here"

Read = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Notes:
    """What a checkpoint has beside tensors.

    Attributes:
        global_step: steps that were taken.
        num_batches: that the call of ``train`` which wrote it had taken.
        optimizers: for each, numbers of its states by parameter, and options of its groups.
        schedulers: states of learning-rate schedulers.
    """

    global_step: int
    num_batches: int = 0
    optimizers: tuple[Mapping[str, Any], ...] = ()
    schedulers: tuple[Mapping[str, Any], ...] = ()


def write(folder: Path, tensors: Iterable[tuple[str, Read]], notes: Notes, keep: int) -> str:
    """Write a checkpoint, whole or not at all, then the index; then remove the oldest ones.

    Args:
        folder: that of the model.
        tensors: names, and what reads a tensor when its turn comes.
        notes: see :class:`Notes`.
        keep: how many stay; 0 keeps all.

    Returns:
        The checkpoint's path, without a suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{_PREFIX}{notes.global_step}"
    # Dtypes and shapes are known without the values, of which one at a time is held.
    named = list(tensors)
    specs = [_spec_of(one, read()) for one, read in named]
    text = json.dumps({"version": VERSION, **vars(notes)}, default=_plain)
    path = folder / f"{name}{_SUFFIX}"
    with atomic_file.replacing(path) as temporary, temporary.open("xb") as file:
        write_header(file, specs, {"format": "pt", _KEY: text})
        for _, read in named:
            flat = read().detach().clone().cpu().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
    _write_index(folder, name, keep)
    return str(folder / name)


def _spec_of(name: str, tensor: torch.Tensor) -> ArraySpec:
    return ArraySpec(name, tensor.dtype, tuple(tensor.shape))


def _plain(value: object) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        return value.item()
    raise error(
        "estimator-checkpoint-value",
        f"the state of an optimizer or a scheduler has a {type(value).__name__}",
        notes=("a checkpoint has tensors, numbers and texts",),
        help="use an optimizer or a scheduler whose state_dict has no other",
    )


def _write_index(folder: Path, name: str, keep: int) -> None:
    listed = [*(one for one in Index.of(folder).paths if one != name), name]
    kept = listed[-keep:] if keep else listed
    Index(name, tuple(kept)).write(folder)
    for gone in set(listed) - set(kept):
        with suppress(FileNotFoundError):
            (folder / f"{gone}{_SUFFIX}").unlink()


@dataclass(frozen=True)
class Index:
    """The file that names a folder's checkpoints.

    Attributes:
        latest: the last one's name; None where there is no file.
        paths: names of all.
        is_ended: whether the call of ``train`` that wrote the last one is over.
    """

    latest: str | None = None
    paths: tuple[str, ...] = ()
    is_ended: bool = False

    @classmethod
    def of(cls, folder: Path) -> "Index":
        """That of a folder.

        Raises:
            OpenwaferError: ``estimator-index`` for one that names no checkpoint.
        """
        path = folder / INDEX
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return cls()
        found = _LATEST.search(text)
        if found is None:
            raise error(
                "estimator-index",
                f"{path} names no checkpoint",
                help=f'write model_checkpoint_path: "{_PREFIX}N" into it, or remove it',
            )
        return cls(found[1], tuple(_LISTED.findall(text)), _ENDED in text.splitlines())

    def ended(self) -> "Index":
        """The same behind the end of the call."""
        return replace(self, is_ended=True)

    def write(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        lines = [f'model_checkpoint_path: "{self.latest}"']
        lines += [f'all_model_checkpoint_paths: "{one}"' for one in self.paths]
        lines += [_ENDED] if self.is_ended else []
        atomic_file.write_text(folder / INDEX, "\n".join(lines) + "\n")


def _opened(path: Path) -> Any:
    # The library's class has no types.
    return safe_open(path, "pt")


class Checkpoint:
    """A checkpoint that is read tensor by tensor.

    Args:
        path: with or without its suffix.

    Attributes:
        path: with its suffix.
        notes: see :class:`Notes`.
        names: of its tensors.

    Raises:
        OpenwaferError: ``estimator-checkpoint`` for a file that is none.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path if path.endswith(_SUFFIX) else f"{path}{_SUFFIX}")
        try:
            # Kept open: to open it is to parse its header, which names all tensors.
            self._file = _opened(self.path)
            self.names = frozenset(self._file.keys())
            written = json.loads((self._file.metadata() or {}).get(_KEY, "null"))
        except (OSError, SafetensorError, ValueError) as cause:
            raise self._refused(str(cause)) from cause
        if not isinstance(written, dict) or written.get("version") != VERSION:
            version = written.get("version") if isinstance(written, dict) else None
            raise self._refused(f"its version is {version}, and {VERSION} is known")
        del written["version"]
        self.notes = Notes(**written)

    def _refused(self, why: str) -> OpenwaferError:
        return error(
            "estimator-checkpoint",
            f"{self.path} is no checkpoint of an estimator: {why}",
            help="name a model.ckpt-N of a model_dir that an estimator has written",
        )

    def read(self, name: str) -> torch.Tensor:
        """A tensor in host memory."""
        found: torch.Tensor = self._file.get_tensor(name)
        # What the library gives is the open file's mapping, the same one each time.
        return found.clone()
