"""What a script has told of its program: where it computes, its model and its optimizers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights
from openwafer.training.frontends.scripts.batches import with_long_integers, with_tensors
from openwafer.training.plan_record import Mode
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

MEMORY_VARIABLE: Final = "OPENWAFER_DEVICE_MEMORY"
"""What a step may take on the device, such as ``2GiB``."""
STORE_VARIABLE: Final = "OPENWAFER_STORE"
"""Folder that the store of weights may use."""


@dataclass(frozen=True)
class Room:
    """The memory that a script's steps may use.

    Attributes:
        device_memory, folder: see :func:`stream_weights`; without the first, what is free.
    """

    device_memory: Size | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, device_memory: Size | None, folder: PathLike | None) -> "Room":
        """What a script says, or else the environment by `MEMORY_VARIABLE` and `STORE_VARIABLE`.

        Raises:
            OpenwaferError: ``argument-bytes`` for a size that is none.
        """
        memory = os.environ.get(MEMORY_VARIABLE) if device_memory is None else device_memory
        if memory is not None:
            bytes_of(memory, MEMORY_VARIABLE if device_memory is None else "device_memory")
        store = os.environ.get(STORE_VARIABLE) if folder is None else folder
        return cls(memory, None if store is None else path_of(store, "folder"))

    @staticmethod
    def say_in_environment(device_memory: str | None, folder: Path | None) -> None:
        """Let scripts that say nothing have what is given, see :meth:`of`."""
        for variable, value in ((MEMORY_VARIABLE, device_memory), (STORE_VARIABLE, folder)):
            if value is not None:
                os.environ[variable] = str(value)


@dataclass
class ScriptProgram:
    """The program of a script, in any style.

    Attributes:
        room: see :class:`Room`.
        device_name: as in :class:`StreamOptions`.
        model: the one that trains.
    """

    room: Room
    device_name: str = "auto"
    model: nn.Module | None = None

    @classmethod
    def of_environment(cls) -> "ScriptProgram":
        """That of a script that says nothing of memory.

        Raises:
            OpenwaferError: see :meth:`Room.of`.
        """
        return cls(Room.of(None, None))

    @cached_property
    def device(self) -> torch.device:
        """Where a step computes."""
        return PlanInput(StreamOptions(device=self.device_name)).make_device().torch_device

    def brought(self, batch: Any) -> Any:
        """A batch with its tensors on the device."""
        return with_tensors(lambda tensor: tensor.to(self.device), batch)

    def brought_to_machine(self, batch: Any) -> Any:
        """The same of a script for the vendor's machine, see :func:`with_long_integers`."""
        return with_long_integers(self.brought(batch))

    def streamed(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> StreamedLoop:
        """Let a model's weights stream; what :func:`stream_weights` raises passes.

        Args:
            model: see :func:`stream_weights`.
            optimizers: likewise; a model that is only evaluated needs none.
        """
        mode = None if self.device.type == "cpu" else Mode.STREAMED
        return stream_weights(
            model,
            # Never steps.
            optimizers or [torch.optim.SGD(model.parameters(), lr=0.0)],
            device_memory=self.device_memory,
            folder=self.room.folder,
            options=StreamOptions(device=self.device_name, mode=mode),
        )

    @property
    def device_memory(self) -> Size:
        """What a step may take on the device: what is said, or else what is free."""
        if self.room.device_memory is not None:
            return self.room.device_memory
        if self.device.type == "cpu":
            return psutil.virtual_memory().available
        return torch.cuda.mem_get_info(self.device)[0]


def kind_of(value: object) -> str:
    """What an error calls a value that it did not want."""
    return f"a {type(value).__name__}"
