"""The loop of a script: its batches, its steps, and what its weights do meanwhile."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.hooks import is_in_own_step
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.frontends.present import backends
from openwafer.training.frontends.present.loader import DataLoader
from openwafer.training.frontends.present.rates import RateTracker
from openwafer.training.frontends.present.step_watch import StepWatch
from openwafer.training.frontends.scripts.batches import losses_take_int32
from openwafer.training.frontends.scripts.program import kind_of

__all__ = ["DataExecutor", "Profiler", "current_executor"]


class Profiler:
    """What a script asks of its speed.

    Attributes:
        rate_tracker: samples a second.
    """

    def __init__(self) -> None:
        self.rate_tracker = RateTracker()

    def rate(self) -> float:
        """Samples a second since this was last asked."""
        return self.rate_tracker.rate

    def global_rate(self) -> float:
        """Samples a second since the loop began."""
        return self.rate_tracker.global_rate

    def total_samples(self) -> int:
        """Samples since the loop began."""
        return self.rate_tracker.total_samples

    def total_time(self) -> float:
        """Seconds since the loop began."""
        return self.rate_tracker.total_time


class DataExecutor:
    """Steps over the batches of a loader, while the weights of the compiled model stream.

    Weights and optimizer states are in the store from the first forward on, and return to model
    and optimizers where the loop ends. To ask for the next batch ends a step: its closures run.

    Args:
        dataloader: a ``cstorch.utils.data.DataLoader``; it begins anew where its batches end.
        num_steps: without it, as many as the loader has batches.
        checkpoint_steps: every how many steps, and in the last, a checkpoint may be taken; None
            and 0 are never.
        activation_steps: every how many steps, and in the last, the closures of a CSX run are
            called. It becomes its greatest common divisor with `checkpoint_steps`.
        writer: takes what ``cstorch.summarize_scalar`` tells.
        vendor: how a machine cuts a batch means nothing here.

    Attributes:
        num_steps, activation_steps, writer: see above.
        iteration: number of the step, from 0; -1 before the first.
        streamed: the model's loop, which tells what was planned and clips gradients.
        profiler: see :class:`Profiler`.
        samples_streamed: of the batches of the steps that have ended.

    Raises:
        OpenwaferError: ``present-no-backend``, ``present-loader``, ``present-steps``.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: int | None = None,
        checkpoint_steps: int | None = None,
        activation_steps: int | None = None,
        writer: Any = None,
        **vendor: Any,
    ) -> None:
        self.backend = backends.current("cstorch.utils.data.DataExecutor")
        if not isinstance(dataloader, DataLoader):
            raise error(
                "present-loader",
                f"an executor takes a cstorch.utils.data.DataLoader, and got {kind_of(dataloader)}",
                help="write loader = cstorch.utils.data.DataLoader(input_fn, ...)",
            )
        _check_vendor(vendor)
        self.dataloader, self.writer = dataloader, writer
        self.num_steps = _num_steps(dataloader, num_steps)
        self._checkpoint_steps = _checked("checkpoint_steps", checkpoint_steps or 0, 0)
        every = min(_checked("activation_steps", activation_steps or 1, 1), self.num_steps)
        if self._checkpoint_steps:
            every = math.gcd(every, min(self._checkpoint_steps, self.num_steps))
        self.activation_steps = every
        self.iteration = -1
        self.profiler = Profiler()
        self.samples_streamed = 0
        self.streamed: StreamedLoop | None = None
        self._optimizers: Sequence[Optimizer] = ()

    def __len__(self) -> int:
        return self.num_steps

    @property
    def user_iteration(self) -> int:
        """Number of the step, from 1; 0 before the first."""
        return self.iteration + 1

    @property
    def on_final_iteration(self) -> bool:
        """Whether the step is the last."""
        return self.user_iteration >= self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether a checkpoint may be taken behind the step."""
        every = self._checkpoint_steps
        return every > 0 and (self.on_final_iteration or self.user_iteration % every == 0)

    def __iter__(self) -> Iterator[Any]:
        backend = self.backend
        with self._running():
            # The range first: no batch is asked for behind the last step.
            for step, batch in zip(range(self.num_steps), self._batches(), strict=False):
                self.iteration = step
                yield backend.program.brought(batch)
                num_samples = self.dataloader.batch_size or 0
                self.samples_streamed += num_samples
                self.profiler.rate_tracker.add(num_samples)
                self._end_step()

    def _end_step(self) -> None:
        closures = self.backend.closures
        is_read = self.on_final_iteration or self.user_iteration % self.activation_steps == 0
        if is_read or not self.backend.is_csx:
            closures.run()
        closures.forget()

    def _batches(self) -> Iterator[Any]:
        """All batches of the loader, again and again."""
        while True:
            is_empty = True
            for batch in self.dataloader:
                is_empty = False
                yield batch
            if is_empty:
                raise error(
                    "present-no-batches",
                    f"the loader has given no batch for step {self.user_iteration + 1} of "
                    f"{self.num_steps}",
                    help="look at the dataset's length, the batch size and drop_last",
                )

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Context in which the model streams and this is the backend's executor."""
        backend, model = self.backend, self.backend.program.model
        if backend.executor is not None:
            raise error(
                "present-executor-open",
                "an executor is iterated over inside the loop of another one",
                help="leave the first loop before",
            )
        if model is None:
            raise error(
                "present-without-model",
                "an executor is iterated over, and no model is compiled",
                help="write compiled_model = cstorch.compile(model, backend) before the loop",
            )
        parameters = {id(parameter) for parameter in model.parameters()}
        optimizers = self._optimizers = backend.optimizers_of(parameters)
        with ExitStack() as leaving:
            leaving.callback(self._leave)
            for sparsity in backend.sparsities:
                sparsity.initialize()
            self.streamed = backend.program.streamed(model, optimizers)
            self.streamed.begin_without_gradients()
            leaving.enter_context(self.streamed)
            hook = register_optimizer_step_pre_hook(_Unknown(optimizers, parameters))
            leaving.callback(hook.remove)
            if backend.is_csx:
                leaving.enter_context(losses_take_int32())
            self.iteration = -1
            self.profiler = Profiler()
            self.samples_streamed = 0
            backend.executor = self
            yield

    def _leave(self) -> None:
        self.backend.executor = None
        self._optimizers = ()
        self.backend.closures.forget()

    @contextmanager
    def watched_by(self, watch: StepWatch) -> Iterator[None]:
        """Context of a step whose calls around the model and its optimizers are watched."""
        model = self.backend.program.model
        assert model is not None
        with watch, ExitStack() as leaving:
            leaving.callback(watch.end_pauses)
            handles = [
                model.register_forward_pre_hook(watch.pause, prepend=True),
                model.register_forward_hook(watch.resume, always_call=True),
            ]
            for optimizer in self._optimizers:
                handles.append(optimizer.register_step_pre_hook(watch.pause))
                handles.append(optimizer.register_step_post_hook(watch.resume))
            for handle in handles:
                leaving.callback(handle.remove)
            yield

    def require_planned(self) -> None:
        """Refuse a step that has not called the model that streams.

        Raises:
            OpenwaferError: ``present-model-unused``.
        """
        assert self.streamed is not None
        if self.streamed.plan is None:
            raise error(
                "present-model-unused",
                f"the step has not called the {type(self.backend.program.model).__name__} that was "
                "compiled last",
                help="call what cstorch.compile returned, and compile one model for a loop",
            )


class _Unknown:
    """A hook before the steps of all optimizers, which refuses those that nobody has told of."""

    def __init__(self, known: Sequence[Optimizer], parameters: set[int]) -> None:
        self._known = {id(optimizer) for optimizer in known}
        self._parameters = parameters

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._known or is_in_own_step(optimizer):
            return
        if backends.is_over(optimizer, self._parameters):
            kind = type(optimizer)
            raise error(
                "present-optimizer",
                f"{kind.__module__}.{kind.__qualname__} is to take a step on the compiled model, "
                "and is no optimizer of cstorch.optim",
                help=f"write cstorch.optim.{kind.__name__}(...) in its place, before the loop",
            )


def current_executor() -> DataExecutor:
    """The executor that is iterated over.

    Raises:
        OpenwaferError: ``present-no-backend``, ``present-no-executor``.
    """
    found = backends.current("cstorch.current_executor").executor
    if found is None:
        raise error(
            "present-no-executor",
            "cstorch.current_executor is called, and no executor is iterated over",
            help="call it inside the loop: for batch in executor",
        )
    return found


def _num_steps(dataloader: DataLoader, asked: int | None) -> int:
    if asked is not None:
        return _checked("num_steps", asked, 1)
    try:
        return len(dataloader)
    except TypeError:
        raise error(
            "present-steps",
            f"num_steps is left out, and the {type(dataloader.dataloader).__name__} that input_fn "
            "returned has no length",
            help="write DataExecutor(loader, num_steps=...)",
        ) from None


def _checked(name: str, value: object, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise error(
        "present-steps",
        f"{name} is {value!r}",
        help=f"give a whole number of at least {least}",
    )


def _check_vendor(vendor: dict[str, Any]) -> None:
    unread = {"cs_config", "micro_batch_size", "profiler_activities"}
    for name, value in vendor.items():
        if name not in unread and value:
            raise error(
                "present-executor-option",
                f"cstorch.utils.data.DataExecutor is asked for {name}={value!r}",
                help="leave it out; hooks of torch see the tensors of a step",
            )
