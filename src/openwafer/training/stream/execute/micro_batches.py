"""Runs the micro-batches of a step layer by layer, so that weights cross the link once a pass.

Each micro-batch's forward runs in a fiber of its own that stops where a streamed layer begins.
When all have stopped, the layer's weights are fetched once and every micro-batch goes on through
the layer to the next one. One backward call over all losses then visits the layers in reverse,
because autograd takes the node that was made last first. The micro-batches go forward in falling
order, so that autograd meets them in rising order, and each has accumulators of its own, so that
their gradients are summed as a plain loop sums them
(:mod:`~openwafer.training.stream.execute.arriving_gradients`).

A model that a forward changes (running statistics, counters, a loss that a layer leaves for the
model) must see its micro-batches as in a plain loop: in rising order, or one wholly behind the
other (:mod:`~openwafer.training.stream.execute.passes`). A pass that finds a change is
undone and run again in that order.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import psutil
import torch
from greenlet import greenlet

from openwafer.diagnostics import error
from openwafer.training.stream.execute.activations import keeping
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.passes import MicroBatchOrder, Order
from openwafer.training.stream.execute.snapshot import Snapshot
from openwafer.training.stream.execute.thread_state import (
    OpenContexts,
    RandomState,
    SharedCasts,
    refuse_inference,
)
from openwafer.training.stream.layers import Layer

Forward = Callable[[], torch.Tensor]
MAX_SHOWN: Final = 3


class _Fiber:
    """The forward of one micro-batch, with its own random state and its own contexts.

    Args:
        random_now: the present random state.
        outside: contexts that are open around all of them.
    """

    def __init__(
        self,
        index: int,
        forward: Forward,
        random_now: Callable[[], RandomState],
        outside: OpenContexts,
    ) -> None:
        self.index = index
        self.waits_for: Layer | None = None
        self.result: Any = None
        self._random_now = random_now
        self._random: RandomState | None = None
        self._outside = self._contexts = outside
        self._fiber = greenlet(forward)

    def run(self, *visit: int) -> None:
        """Run to the next layer or to the end: from the beginning, or on from a layer's visit."""
        if self._random is not None:
            self._random.restore()
        self._contexts.restore()
        reached = self._fiber.switch(*visit)
        if self._fiber.dead:
            self.waits_for, self.result = None, reached
        else:
            self.waits_for = reached
            self._random, self._contexts = self._random_now(), OpenContexts.now()
        self._outside.restore()

    def stop(self) -> None:
        """Leave the forward where it stands: what closes its contexts finds them open."""
        if self._fiber:
            self._contexts.restore_all_but_inference()
            self._fiber.throw()


def run_forward(
    executor: Executor,
    forwards: Sequence[Forward],
    seed: Callable[[int], None] | None = None,
    *,
    may_repeat: bool = True,
) -> list[torch.Tensor]:
    """Run the forwards of all micro-batches of a step and begin a pass.

    Args:
        executor: of the model that the forwards call.
        forwards: one function a micro-batch, returning its loss (a scalar).
        seed: sets the random generators for the micro-batch of that index.
        may_repeat: whether forwards may be run a second time.

    Returns:
        The losses, in the order of ``forwards``.

    Raises:
        OpenwaferError: ``loss-not-scalar``.
    """
    results = run_in_rotation(executor, forwards, seed, may_repeat=may_repeat)
    return [_scalar(index, result) for index, result in enumerate(results)]


def run_in_rotation(
    executor: Executor,
    forwards: Sequence[Forward],
    seed: Callable[[int], None] | None = None,
    *,
    may_repeat: bool = True,
) -> list[Any]:
    """As :func:`run_forward`, for forwards that may return anything.

    Args:
        may_repeat: whether forwards may be run a second time.

    Raises:
        OpenwaferError: ``micro-batches-share-state``.
    """
    order = executor.order
    order.begin()
    if len(forwards) == 1 or order.is_settled:
        return _rotate(executor, forwards, seed)
    before, random = order.state(), RandomState.now(executor.device.torch_device)
    results, is_known = _rotate(executor, forwards, seed), True
    while (needed := order.needed(before, len(forwards))) > order.now:
        _check_repeatable(executor, before, len(forwards), may_repeat=may_repeat)
        # Their graphs go before others are made.
        results.clear()
        executor.end_pass()
        before.put_back()
        random.restore()
        order.now, is_known = needed, False
        results = _rotate(executor, forwards, seed)
        if needed is Order.IN_TURN:
            break
    if not is_known:
        order.learn()
    return results


def _check_repeatable(
    executor: Executor, before: Snapshot, num_forwards: int, *, may_repeat: bool
) -> None:
    """Refuse forwards that are not to run again, and those whose gradients could not wait."""
    changed = ", ".join(before.changed(waits=True)[:MAX_SHOWN])
    if not may_repeat:
        raise error(
            "micro-batches-share-state",
            f"the model's forward changes {changed}, which forwards that pass a layer together "
            "would find changed by each other",
            help="run them one at a time, or let the model be resident",
        )
    weights = executor.weights.parameters.values() if torch.is_grad_enabled() else ()
    num_bytes = num_forwards * sum(weight.nbytes for weight in weights if weight.requires_grad)
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise error(
            "micro-batches-share-state",
            f"the model's forward changes {changed}, so that {num_forwards} micro-batches run one "
            f"behind the other and leave {num_bytes:,} bytes of gradients until all have run, and "
            f"{available:,} bytes of host memory are free",
            help="train on fewer micro-batches, or keep such values out of the model",
        )


def _rotate(
    executor: Executor, forwards: Sequence[Forward], seed: Callable[[int], None] | None
) -> list[Any]:
    def run(index: int) -> torch.Tensor:
        executor.casts.go_on()
        if seed is not None:
            seed(index)
        copied = executor.order.copied
        with keeping(copied) if copied else nullcontext():
            return forwards[index]()

    executor.order.begin_rotation(len(forwards))
    if len(forwards) == 1:
        return [_run_alone(executor, partial(run, 0))]
    hub = greenlet.getcurrent()
    is_whole = executor.order.draws_beside_torch
    random_now = partial(RandomState.now, executor.device.torch_device, is_whole=is_whole)
    outside = OpenContexts.now()
    numbers = range(len(forwards))
    fibers = [_Fiber(index, partial(run, index), random_now, outside) for index in numbers]
    # Only gradients are told apart by micro-batch.
    executor.begin_pass(len(fibers) if torch.is_grad_enabled() else 1)
    try:
        with executor.pausing(partial(_stop, executor.casts, hub)):
            for turns in _in_turns(fibers, executor.order):
                _run_together(executor, turns)
    finally:
        for fiber in fibers:
            fiber.stop()
        outside.restore()
    return [fiber.result for fiber in fibers]


def _run_alone(executor: Executor, forward: Forward) -> Any:
    """Run a forward that has no other beside it; it leaves a layer where the next one begins."""
    is_inference = torch.is_inference_mode_enabled()
    executor.begin_pass()
    executor.begin_micro_batch(0, None)

    def enter(layer: Layer) -> int:
        refuse_inference(outside=is_inference)
        if executor.log.visits:
            executor.leave()
        visit = executor.enter(layer)
        executor.begin_micro_batch(0, layer)
        return visit

    with executor.pausing(enter):
        result = forward()
    if executor.log.visits:
        executor.leave()
    return result


def _stop(casts: SharedCasts, hub: greenlet, layer: Layer) -> int:
    """Wait where a layer begins, and return its visit; each micro-batch has casts of its own."""
    used = casts.stop()
    visit: int = hub.switch(layer)
    casts.go_on(used)
    return visit


def _in_turns(fibers: list[_Fiber], order: MicroBatchOrder) -> list[list[_Fiber]]:
    """Those that pass a layer together, in their order."""
    if order.now is Order.IN_TURN:
        return [[fiber] for fiber in fibers]
    return [fibers if order.is_rising else fibers[::-1]]


def _run_together(executor: Executor, fibers: Sequence[_Fiber]) -> None:
    for fiber in fibers:
        executor.begin_micro_batch(fiber.index, None)
        fiber.run()
    while layer := _next_layer(executor, fibers):
        visit = executor.enter(layer)
        for fiber in fibers:
            if fiber.waits_for is layer:
                executor.begin_micro_batch(fiber.index, layer)
                fiber.run(visit)
        executor.leave()


def _next_layer(executor: Executor, fibers: Sequence[_Fiber]) -> Layer | None:
    """The layer to run now, one that a fiber waits for."""
    waiting = [fiber.waits_for for fiber in fibers if fiber.waits_for is not None]
    return executor.next_of(waiting) if waiting else None


def _scalar(index: int, result: object) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise error(
            "loss-not-scalar",
            f"micro-batch {index} returned {type(result).__name__}, not a scalar loss",
            help="return the loss of the micro-batch as a tensor with one element",
        )
    return result
