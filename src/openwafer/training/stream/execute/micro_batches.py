"""Runs the micro-batches of a step layer by layer, so that weights cross the link once a pass.

Each micro-batch's forward runs in a fiber of its own that stops where a streamed layer begins.
When all have stopped, the layer's weights are fetched once and every micro-batch goes on through
the layer to the next one. One backward call over all losses then visits the layers in reverse,
because autograd takes the node that was made last first. The micro-batches go forward in falling
order, so that autograd meets them in rising order, and each has accumulators of its own
(:mod:`~openwafer.training.stream.execute.accumulators`), so that their gradients are summed as a
plain loop sums them.

A model that a forward changes (running statistics, counters) must see its micro-batches in rising
order. A pass that finds a change is undone and run again in that order. What a first call alone
changes is found once; after a second change all passes run so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from greenlet import greenlet

from openwafer.diagnostics import error
from openwafer.training.stream.execute.executor import Executor, Order
from openwafer.training.stream.execute.random_state import RandomState
from openwafer.training.stream.layers import Layer

Forward = Callable[[], torch.Tensor]


class _Fiber:
    """The forward of one micro-batch, with its own random state."""

    def __init__(
        self,
        index: int,
        forward: Forward,
        seed: Callable[[int], None] | None,
        random_now: Callable[[], RandomState],
    ) -> None:
        self.index = index
        self._random_now = random_now
        self.waits_for: Layer | None = None
        self.result: Any = None
        self._forward = forward
        self._seed = seed
        self._random: RandomState | None = None
        self._fiber = greenlet(self._forward_from_seed)

    def _forward_from_seed(self) -> torch.Tensor:
        if self._seed is not None:
            self._seed(self.index)
        return self._forward()

    def run(self, *visit: int) -> None:
        """Run to the next layer or to the end: from the beginning, or on from a layer's visit."""
        if self._random is not None:
            self._random.restore()
        reached = self._fiber.switch(*visit)
        if self._fiber.dead:
            self.waits_for, self.result = None, reached
        else:
            self.waits_for = reached
            self._random = self._random_now()

    def stop(self) -> None:
        """Leave the forward where it stands, closing its contexts."""
        if not self._fiber.dead:
            self._fiber.throw()


def run_forward(
    executor: Executor,
    forwards: Sequence[Forward],
    seed: Callable[[int], None] | None = None,
) -> list[torch.Tensor]:
    """Run the forwards of all micro-batches of a step and begin a pass.

    Args:
        executor: of the model that the forwards call.
        forwards: one function a micro-batch, returning its loss (a scalar).
        seed: sets the random generators for the micro-batch of that index.

    Returns:
        The losses, in the order of ``forwards``.

    Raises:
        OpenwaferError: ``loss-not-scalar``.
    """
    results = run_in_rotation(executor, forwards, seed)
    return [_scalar(index, result) for index, result in enumerate(results)]


def run_in_rotation(
    executor: Executor,
    forwards: Sequence[Forward],
    seed: Callable[[int], None] | None = None,
) -> list[Any]:
    """As :func:`run_forward`, for forwards that may return anything."""
    has_turns = len(forwards) > 1 and torch.is_grad_enabled()
    falling = executor.order
    if not has_turns or falling not in (Order.FALLING, Order.FALLING_AGAIN):
        return _rotate(executor, forwards, seed)
    before, random = executor.state.now(), RandomState.now(executor.device.torch_device)
    results = _rotate(executor, forwards, seed)
    if not before.changed(waits=True):
        return results
    executor.end_pass()
    before.put_back()
    random.restore()
    executor.order = Order.RISING
    results = _rotate(executor, forwards, seed)
    if falling is Order.FALLING:
        executor.order = Order.FALLING_AGAIN
    return results


def _rotate(
    executor: Executor, forwards: Sequence[Forward], seed: Callable[[int], None] | None
) -> list[Any]:
    hub = greenlet.getcurrent()
    # A forward that has no other beside it goes on where it stopped.
    is_whole = len(forwards) > 1 and executor.draws_beside_torch
    random_now = partial(RandomState.now, executor.device.torch_device, is_whole=is_whole)
    fibers = [_Fiber(index, forward, seed, random_now) for index, forward in enumerate(forwards)]
    turns = fibers if executor.order is Order.RISING else fibers[::-1]
    # Only gradients are told apart by micro-batch.
    executor.begin_pass(len(fibers) if torch.is_grad_enabled() else 1)
    executor.pause = hub.switch
    try:
        for fiber in turns:
            executor.begin_micro_batch(fiber.index, None)
            fiber.run()
        while layer := _next_layer(executor, fibers):
            visit = executor.enter(layer)
            for fiber in turns:
                if fiber.waits_for is layer:
                    executor.begin_micro_batch(fiber.index, layer)
                    fiber.run(visit)
            executor.leave()
    finally:
        executor.pause = None
        for fiber in fibers:
            fiber.stop()
    return [fiber.result for fiber in fibers]


def _next_layer(executor: Executor, fibers: Sequence[_Fiber]) -> Layer | None:
    """The layer to run now: the one that is planned next, else one that a fiber waits for."""
    waiting = [fiber.waits_for for fiber in fibers if fiber.waits_for is not None]
    if not waiting:
        return None
    planned = executor.planned_layer()
    return next((layer for layer in waiting if layer.name == planned), waiting[0])


def _scalar(index: int, result: object) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise error(
            "loss-not-scalar",
            f"micro-batch {index} returned {type(result).__name__}, not a scalar loss",
            help="return the loss of the micro-batch as a tensor with one element",
        )
    return result
