"""A step as a function, and calls that wait for its end."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.frontends.present import backends
from openwafer.training.frontends.present.backends import Backend
from openwafer.training.frontends.present.step_watch import StepWatch, traced_code
from openwafer.training.frontends.scripts.program import kind_of
from openwafer.training.torch_private import pytree

__all__ = [
    "checkpoint_closure",
    "compile",
    "step_closure",
    "summarize_scalar",
    "summarize_tensor",
    "trace",
]

P = ParamSpec("P")
T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def compile(model: nn.Module, backend: str | Backend | None = None) -> nn.Module:  # noqa: A001
    """Let the executors from now on stream a model, and return it.

    Args:
        model: its weights stream while a script iterates over an executor.
        backend: the one of this process, or the type of one to make; without either, the CPU.

    Raises:
        OpenwaferError: ``present-model``, ``present-backend``, ``present-executor-open``.
    """
    chosen = backends.running() if backend is None else backend
    if chosen is None or isinstance(chosen, str):
        chosen = _made(chosen or "CPU")
    elif chosen is not backends.running():
        raise error(
            "present-backend",
            f"cstorch.compile takes the backend of this process, and got {kind_of(chosen)}",
            help="give what cstorch.backend returned last, or nothing",
        )
    return chosen.take_model(model)


def _made(kind: str) -> Backend:
    running = backends.running()
    if running is not None and running.backend_type.name == kind.upper():
        return running
    made = backends.backend(kind)
    assert made is not None
    return made


def trace(step_fn: Callable[P, T]) -> Callable[P, T]:
    """A training or evaluation step: its forward, and backward and update where it trains.

    It runs as it is written, each time. In the loop over an executor it has to call the model that
    was compiled, whose weights stream. Where the script means the vendor's machine, it is told once
    where a step calls other operators than the first one; see :mod:`step_watch`.

    Raises:
        OpenwaferError: ``present-model-unused``.
    """

    watch = StepWatch(traced_code(step_fn))

    @wraps(step_fn)
    def traced(*args: P.args, **kwargs: P.kwargs) -> T:
        running = backends.running()
        executor = None if running is None else running.executor
        if executor is None:
            return step_fn(*args, **kwargs)
        if executor.backend.is_csx:
            with executor.watched_by(watch):
                found = step_fn(*args, **kwargs)
            watch.compare()
        else:
            found = step_fn(*args, **kwargs)
        executor.require_planned()
        return found

    return traced


def step_closure(closure: Callable[P, object]) -> Callable[P, None]:
    """A function that is called at the end of the step in which the script calls it.

    Its tensors are those of the call. While the model is planned, nothing comes of a call; outside
    of the loop over an executor, it is called at once.
    """

    @wraps(closure)
    def later(*args: P.args, **kwargs: P.kwargs) -> None:
        running = backends.running()
        executor = None if running is None else running.executor
        if running is None or executor is None:
            closure(*args, **kwargs)
        elif executor.streamed is None or not executor.streamed.is_planning:
            kept_args, kept_kwargs = pytree.tree_map_only(torch.Tensor, _kept, (args, kwargs))
            running.closures.add(closure, kept_args, kept_kwargs)

    return later


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    # A step may write to it before the closure reads it.
    return tensor.detach().clone()


def checkpoint_closure(closure: Callable[P, object]) -> Callable[P, None]:
    """A step closure that is called in the steps of ``checkpoint_steps`` only."""

    @step_closure
    @wraps(closure)
    def in_its_step(*args: P.args, **kwargs: P.kwargs) -> None:
        running = backends.running()
        executor = None if running is None else running.executor
        if executor is None or executor.is_checkpoint_step:
            closure(*args, **kwargs)

    return in_its_step


@step_closure
def summarize_scalar(name: str, scalar: Any) -> None:
    """Give a number of the step to the executor's writer, where it has one."""
    _summarize("scalar", name, scalar.item() if isinstance(scalar, torch.Tensor) else scalar)


@step_closure
def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Give a tensor of the step to the executor's writer, where it has one."""
    _summarize("tensor", name, tensor)


def _summarize(kind: str, name: str, value: Any) -> None:
    executor = backends.current(f"cstorch.summarize_{kind}").executor
    if executor is None or executor.writer is None:
        _LOG.warning("%s is not written: the executor was given no writer", name)
        return
    add = getattr(executor.writer, f"add_{kind}")
    add(name, value, executor.writer.base_step + executor.iteration)
