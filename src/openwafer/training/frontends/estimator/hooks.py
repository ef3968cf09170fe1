"""Hooks around an estimator's steps, and what they may ask of a step."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from openwafer.diagnostics import error
from openwafer.training.torch_private import pytree

__all__ = [
    "LoggingTensorHook",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
]

LOG = logging.getLogger("openwafer.estimator")


@dataclass(frozen=True)
class SessionRunArgs:
    """What a hook wants of the step that follows.

    Attributes:
        fetches: a tensor of the first spec, the global step, a name (``loss``, ``global_step``, of
            a prediction), or these in lists, tuples and mappings.
        feed_dict, options: nothing reads them.
    """

    fetches: Any
    feed_dict: Any = None
    options: Any = None


@dataclass(frozen=True)
class SessionRunValues:
    """What a hook gets: `results` has the structure of its fetches."""

    results: Any
    options: Any = None
    run_metadata: Any = None


@dataclass
class SessionRunContext:
    """A step, as hooks see it.

    Attributes:
        original_args: None: a step fetches its loss.
        session: has `run`, which returns values of the last step by their names.
        stop_requested: whether this step is the last.
    """

    original_args: Any
    session: "StepValues"
    stop_requested: bool = False

    def request_stop(self) -> None:
        """Let this step be the last."""
        self.stop_requested = True


class SessionRunHook:
    """Calls around the steps of a run; a subclass has those that it needs."""

    def begin(self) -> None:
        """The run begins, before the first step."""

    def after_create_session(self, session: "StepValues", coord: Any) -> None:
        """The weights are there."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """A step begins; returns what is wanted of it."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """A step is over, and weights are updated."""

    def end(self, session: "StepValues") -> None:
        """The run is over; it is not called behind an error."""


class StepValues:
    """Values of the last step, by name or by a tensor of the first one.

    Args:
        first: tensors of the first spec by name.
        global_step: the tensor that counts steps.
    """

    def __init__(self, first: Mapping[str, torch.Tensor], global_step: torch.Tensor) -> None:
        self._names = {id(tensor): name for name, tensor in first.items()}
        self._names[id(global_step)] = "global_step"
        self._first, self._global_step = first, global_step
        self.last: Mapping[str, torch.Tensor] = first

    def run(self, fetches: Any) -> Any:
        """The values.

        Raises:
            OpenwaferError: ``estimator-fetch``.
        """
        return pytree.tree_map(self._value, fetches)

    def _value(self, fetch: Any) -> Any:
        name = fetch if isinstance(fetch, str) else self._names.get(id(fetch), "")
        # As graphs of TensorFlow number outputs.
        name = name.removesuffix(":0")
        if name == "global_step":
            return int(self._global_step)
        if name in self.last:
            value = self.last[name].detach()
            return value.item() if value.ndim == 0 else value
        raise error(
            "estimator-fetch",
            f"a hook asks for {fetch!r}"
            if isinstance(fetch, str)
            else f"a hook asks for a {type(fetch).__name__} that is not in the spec",
            notes=(f"a step has {', '.join((*self.last, 'global_step'))}",),
            help="give one of these names, or return the tensor in predictions",
        )


class Hooks:
    """The hooks of a run."""

    def __init__(self, hooks: Sequence[SessionRunHook], values: StepValues) -> None:
        self._hooks, self._values = hooks, values

    def begin(self) -> None:
        """See :class:`SessionRunHook`."""
        for hook in self._hooks:
            hook.begin()
        for hook in self._hooks:
            hook.after_create_session(self._values, None)

    def run(self, step: Callable[[], Mapping[str, torch.Tensor]]) -> bool:
        """Take a step between its hooks; returns whether one of them ends the run."""
        context = SessionRunContext(None, self._values)
        asked = [hook.before_run(context) for hook in self._hooks]
        self._values.last = step()
        for hook, args in zip(self._hooks, asked, strict=True):
            results = None if args is None else self._values.run(args.fetches)
            hook.after_run(context, SessionRunValues(results))
        return context.stop_requested

    def end(self) -> None:
        """See :class:`SessionRunHook`."""
        for hook in self._hooks:
            hook.end(self._values)


class LoggingTensorHook(SessionRunHook):
    """Logs values every so many steps.

    Args:
        tensors: names, or values by the names that are logged.
        every_n_iter: steps from one line to the next.
        formatter: makes a line of the values.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[str],
        every_n_iter: int = 100,
        formatter: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        self._fetches = (
            dict(tensors)
            if isinstance(tensors, Mapping)
            else dict(zip(tensors, tensors, strict=True))
        )
        self._every, self._formatter, self._count = every_n_iter, formatter, 0

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """See :class:`SessionRunHook`."""
        return None if self._count % self._every else SessionRunArgs(self._fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See :class:`SessionRunHook`."""
        self._count += 1
        found = run_values.results
        if found is not None:
            plain = ", ".join(f"{name} = {value}" for name, value in found.items())
            LOG.info("%s", self._formatter(found) if self._formatter else plain)


class StopAtStepHook(SessionRunHook):
    """Ends a run.

    Args:
        num_steps: of this run.
        last_step: global step.

    Raises:
        OpenwaferError: ``estimator-steps`` for both or none.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise error(
                "estimator-steps",
                f"StopAtStepHook got num_steps={num_steps} and last_step={last_step}",
                help="give one of them",
            )
        self._left, self._last = num_steps, last_step

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """See :class:`SessionRunHook`."""
        return SessionRunArgs("global_step")

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See :class:`SessionRunHook`."""
        if self._left is not None:
            self._left -= 1
        if self._left == 0 or (self._last is not None and run_values.results >= self._last):
            run_context.request_stop()


class StepCounterHook(SessionRunHook):
    """Logs steps a second.

    Args:
        every_n_steps: steps from one line to the next.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        self._every, self._count, self._since = every_n_steps, 0, time.monotonic()

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See :class:`SessionRunHook`."""
        self._count += 1
        if self._count % self._every == 0:
            now = time.monotonic()
            LOG.info("global_step/sec: %g", self._every / (now - self._since))
            self._since = now
