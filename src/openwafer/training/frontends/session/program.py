"""What a script has told of its one program: the model, the optimizers, the session it is in."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights
from openwafer.training.plan_record import Mode
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

if TYPE_CHECKING:
    from openwafer.training.frontends.session.session import Session

MEMORY_VARIABLE: Final = "OPENWAFER_DEVICE_MEMORY"
"""What a step may take on the device, such as ``2GiB``."""
STORE_VARIABLE: Final = "OPENWAFER_STORE"
"""Folder that the store of weights may use."""


@dataclass
class Program:
    """The program of a script.

    Attributes:
        device_memory, folder: see :func:`stream_weights`; without the first, what is free.
        model: that of ``cbtorch.module``.
        optimizers: over its parameters.
        max_gradient_norm, loss_scale: of ``amp.GradScaler``; gradients are clipped to the first.
        session: the one that is open.
    """

    device_memory: Size | None = None
    folder: PathLike | None = None
    model: nn.Module | None = None
    optimizers: list[Optimizer] = field(default_factory=list)
    max_gradient_norm: float | None = None
    loss_scale: float | str | None = None
    session: "Session | None" = None

    @cached_property
    def device(self) -> torch.device:
        """Where a step computes."""
        return PlanInput(StreamOptions()).make_device().torch_device

    def take_model(self, model: nn.Module) -> None:
        """Make a model the program's own.

        Raises:
            OpenwaferError: ``session-model`` for what is no module, ``session-second-model``.
        """
        if not isinstance(model, nn.Module):
            raise error(
                "session-model",
                f"cbtorch.module takes a torch.nn.Module, and got {_kind(model)}",
                help="write model = cbtorch.module(model)",
            )
        if self.model is not None:
            which = "this" if self.model is model else "another"
            raise error(
                "session-second-model",
                f"cbtorch.module has {which} {type(self.model).__name__} already",
                notes=("a program has one model",),
                help="call it once, or begin a new program by cbtorch.initialize()",
            )
        self.model = model

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Let a session know an optimizer; one that it knows stays known once.

        Raises:
            OpenwaferError: ``session-optimizer`` for what is no optimizer.
        """
        if not isinstance(optimizer, Optimizer):
            raise error(
                "session-optimizer",
                f"cbtorch.optimizer takes an optimizer of torch, and got {_kind(optimizer)}",
                help="write optimizer = cbtorch.optimizer(torch.optim.SGD(...))",
            )
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)

    def stream(self, *, is_training: bool) -> StreamedLoop:
        """Let the model's weights stream.

        Raises:
            OpenwaferError: ``session-without-model``, ``session-without-optimizer`` where it is to
                be trained, and what :func:`stream_weights` raises.
        """
        if self.model is None:
            raise error(
                "session-without-model",
                "a session begins, and there is no model",
                help="write model = cbtorch.module(model) before it",
            )
        if is_training and not self.optimizers:
            raise error(
                "session-without-optimizer",
                "a session is to train, and knows no optimizer",
                help="write optimizer = cbtorch.optimizer(optimizer) before it",
            )
        streamed = stream_weights(
            self.model,
            # Never steps: a model that is evaluated alone has no optimizer.
            self.optimizers or [torch.optim.SGD(self.model.parameters(), lr=0.0)],
            device_memory=self._memory(),
            folder=self.folder,
            options=StreamOptions(mode=None if self.device.type == "cpu" else Mode.STREAMED),
        )
        if not is_training:
            streamed.begin_without_gradients()
        return streamed

    def _memory(self) -> Size:
        if self.device_memory is not None:
            return self.device_memory
        if self.device.type == "cpu":
            return psutil.virtual_memory().available
        return torch.cuda.mem_get_info(self.device)[0]


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


class _Process:
    program: Program | None = None


def begin(device_memory: Size | None, folder: PathLike | None) -> None:
    """Begin the program of this process; a session of the one before it must be over.

    Args:
        device_memory: as in :func:`stream_weights`; by default that of `MEMORY_VARIABLE`.
        folder: likewise, of `STORE_VARIABLE`.

    Raises:
        OpenwaferError: ``argument-bytes`` for a size that is none, ``session-open``.
    """
    before = running()
    if before is not None and before.session is not None:
        raise error(
            "session-open",
            "cbtorch.initialize begins a new program, and a session of the one before is open",
            help="leave that session first",
        )
    memory = os.environ.get(MEMORY_VARIABLE) if device_memory is None else device_memory
    if memory is not None:
        bytes_of(memory, MEMORY_VARIABLE if device_memory is None else "device_memory")
    store = os.environ.get(STORE_VARIABLE) if folder is None else folder
    _Process.program = Program(memory, None if store is None else Path(path_of(store, "folder")))


def end() -> None:
    """Forget the program of this process."""
    _Process.program = None


def running() -> Program | None:
    """The program of this process; None before ``cbtorch.initialize``."""
    return _Process.program


def current(caller: str) -> Program:
    """The program of this process.

    Args:
        caller: what asks for it, as the script wrote it.

    Raises:
        OpenwaferError: ``session-not-initialized``.
    """
    program = running()
    if program is None:
        raise error(
            "session-not-initialized",
            f"{caller} is called before cbtorch.initialize",
            help="write cbtorch.initialize() at the beginning",
        )
    return program
