"""A session: the part of a script in which its model's weights stream, step by step."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.hooks import is_in_own_step
from openwafer.training.frontends.scripts.closures import Closure, StepClosures
from openwafer.training.frontends.session import modes, program
from openwafer.training.frontends.session.loader import DataLoader
from openwafer.training.frontends.session.lr_scheduler import set_rate
from openwafer.training.store.update_rules.optimizers import parameters_of


class Session:
    """A context in which the program's model trains, or is evaluated, on the batches of a loader.

    Weights and optimizer states are in the store from the first forward on, and return to model
    and optimizers where the context ends. Evaluation computes no gradients.

    Args:
        dataloader: what ``cbtorch.dataloader`` gave, over which the script iterates inside.
        mode: ``modes.TRAIN`` or ``modes.EVAL``.

    Attributes:
        loader: see above.
        num_batches: how many batches it has given.
        streamed: the model's loop, which tells what was planned and clips gradients.

    Raises:
        OpenwaferError: ``session-mode``, ``session-loader``, ``session-not-initialized``.
    """

    def __init__(self, dataloader: DataLoader, mode: str) -> None:
        self._program = program.current("cbtorch.Session")
        self._is_training = modes.require_mode(mode) == modes.TRAIN
        if not isinstance(dataloader, DataLoader):
            raise error(
                "session-loader",
                f"a session takes what cbtorch.dataloader gave, and got a "
                f"{type(dataloader).__name__}",
                help="write loader = cbtorch.dataloader(loader), and iterate over that",
            )
        self.loader = dataloader
        self.num_batches = 0
        self._num_updates = 0
        self._closures = StepClosures()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        running = self._program
        if running.session is not None:
            raise error(
                "session-second",
                "a session begins inside another one",
                help="leave the first one before",
            )
        with ExitStack() as opening:
            opening.callback(self._leave)
            self.streamed = running.stream(is_training=self._is_training)
            opening.enter_context(self.streamed)
            for optimizer in running.optimizers if self._is_training else ():
                self._watch(optimizer, opening)
            if not self._is_training:
                opening.enter_context(torch.no_grad())
            self._open = opening.pop_all()
        running.session = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._open.__exit__(kind, value, trace)
            return
        with self._open:
            self.mark_step()
            self._require_steps()

    def _leave(self) -> None:
        self._program.session = None

    def _watch(self, optimizer: Optimizer, opening: ExitStack) -> None:
        """Look at what an optimizer is about to do, before the stream's own hook does it."""

        def before_step(_: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            if len(args) > 1 or kwargs or is_in_own_step(optimizer):
                # The first calls a closure that brings the gradients.
                return
            if not self.streamed.has_gradients(optimizer):
                raise error(
                    "session-step-without-backward",
                    f"{type(optimizer).__name__} is to take a step, and no parameter of it has a "
                    "gradient",
                    help="call loss.backward() before optimizer.step()",
                )
            self._clip(optimizer)
            rates = self._program.rates_of(optimizer)
            if rates:
                set_rate(optimizer, rates)

        def after_step(*_: object) -> None:
            self._num_updates += 1

        opening.callback(optimizer.register_step_pre_hook(before_step).remove)
        opening.callback(optimizer.register_step_post_hook(after_step).remove)

    def _clip(self, optimizer: Optimizer) -> None:
        # A script whose scaler clips gives its optimizer a clipper that does nothing.
        if self._program.max_gradient_norm is not None:
            self.streamed.clip_grad_norm_(self._program.max_gradient_norm)
        clipper = vars(optimizer).get("gradient_clipper")
        if clipper is not None:
            clipper(parameters_of(optimizer))

    def _require_steps(self) -> None:
        if self._is_training and not self._num_updates:
            raise error(
                "session-without-step",
                "a session that trains ends, and no optimizer has taken a step",
                notes=(f"batches that its loader has given: {self.num_batches}",),
                help="call optimizer.step() inside, and look whether the loader has batches",
            )
        if not self.num_batches:
            raise error(
                "session-without-step",
                "a session that evaluates ends, and its loader has given no batch",
                help="iterate inside over what cbtorch.dataloader gave; it must not be empty",
            )

    def begin_step(self) -> None:
        """A batch is given to the script."""
        self.num_batches += 1

    def add_step_closure(
        self, closure: Closure, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Call a closure at the end of this step, with what its arguments are then.

        A model's forward may ask for it, too; while the stream is planned, nothing comes of that.

        Args:
            closure: it finds weights, optimizer states and losses of the step.
            args, kwargs: for it.
        """
        if not self.streamed.is_planning:
            self._closures.add(closure, args, kwargs or {})

    def mark_step(self) -> None:
        """End the step: call its closures in the order in which they were added."""
        self._closures.run()
