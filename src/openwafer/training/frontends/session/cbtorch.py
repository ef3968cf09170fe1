"""What scripts call ``cbtorch``: a program, its model, loader and optimizer, and sessions."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from openwafer.config import PathLike, Size
from openwafer.diagnostics import error
from openwafer.training.frontends.session import amp, optim, program
from openwafer.training.frontends.session import loader as data
from openwafer.training.frontends.session import scopes as core
from openwafer.training.frontends.session.cb_model import save
from openwafer.training.frontends.session.session import Session
from openwafer.training.frontends.session.settings import env, state

__all__ = [
    "Session",
    "amp",
    "core",
    "data",
    "dataloader",
    "env",
    "initialize",
    "load",
    "module",
    "optim",
    "optimizer",
    "save",
    "state",
]

_PLACES = frozenset(("appliance", "compile_dir", "cs_ip", "service_workdir", "use_appliance_data"))


def initialize(
    *, device_memory: Size | None = None, folder: PathLike | None = None, **vendor: Any
) -> None:
    """Begin a program: a model, and sessions that train or evaluate it.

    Args:
        device_memory: what a step may take on the device, as ``"2GiB"`` or in bytes; without it,
            what ``OPENWAFER_DEVICE_MEMORY`` says, or else what is free.
        folder: where the store of weights may use disk; without it, what ``OPENWAFER_STORE``
            says, or else host memory alone.
        vendor: where a machine is and what it compiles. ``cs_ip``, ``compile_dir``,
            ``service_workdir``, ``appliance`` and ``use_appliance_data`` mean nothing here.

    Raises:
        OpenwaferError: ``argument-bytes``, ``session-open``; ``session-initialize`` for another
            argument that asks for something.
    """
    asked = {name: value for name, value in vendor.items() if value and name not in _PLACES}
    if asked:
        raise error(
            "session-initialize",
            f"cbtorch.initialize is asked for {', '.join(f'{n}={v!r}' for n, v in asked.items())}",
            notes=("a session streams weights in their own number format, and compiles nothing",),
            help="leave it out, or set it to False",
        )
    program.begin(device_memory, folder)


def module(model: nn.Module, device: torch.device | None = None) -> nn.Module:
    """Make a model that of the program, and return it.

    Args:
        model: its weights stream within sessions.
        device: of another kind of run; sessions choose theirs.

    Raises:
        OpenwaferError: ``session-model``, ``session-second-model``, ``session-not-initialized``.
    """
    program.current("cbtorch.module").take_model(model)
    return model


def dataloader(loader: Iterable[Any]) -> data.DataLoader:
    """Batches for a session; see :class:`DataLoader`."""
    return data.DataLoader(loader)


def optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let sessions know an optimizer over the model's parameters, and return it.

    Its ``gradient_clipper``, if it is given one, gets the parameters before each step.

    Raises:
        OpenwaferError: ``session-optimizer``, ``session-not-initialized``.
    """
    program.current("cbtorch.optimizer").take_optimizer(optimizer)
    return optimizer


def load(path: PathLike) -> Any:
    """What ``cbtorch.save`` wrote, in host memory."""
    return torch.load(path, map_location="cpu")
