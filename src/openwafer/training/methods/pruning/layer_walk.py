"""Passes of a model that wait for each other at each layer, which can change before they go on.

A pass is a forward in a greenlet. It stops where a layer begins, with whatever arguments the
model's own code gives; so nothing needs to be known of how layers hand tensors to each other.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from greenlet import greenlet
from torch import nn

from openwafer.diagnostics import OpenwaferError, error


@dataclass(frozen=True)
class WaitingCall:
    """A call of a layer that a pass waits with.

    Attributes:
        layer: its path.
        run: makes the call beside the pass; the result is of no further use.
    """

    layer: str
    run: Callable[[], object]


def calls_by_layer(
    model: nn.Module, layers: Collection[str], passes: Sequence[Callable[[], object]]
) -> Iterator[Sequence[WaitingCall]]:
    """The calls of each layer, in the order in which the passes come to the layers.

    The passes make their calls, with the layer as it is by then, when the next are asked for.
    Behind the last they go on to their ends, to see that they come to no layer again.

    Args:
        model: whose ``forward`` the passes call, without gradients.
        layers: paths of modules, none inside another.
        passes: at least one.

    Raises:
        OpenwaferError: ``layers-differ`` where the passes do not go through the same layers, each
            once.
    """
    hub = greenlet.getcurrent()
    fibers = [greenlet(run) for run in passes]
    with ExitStack() as stack:
        for path in layers:
            stack.enter_context(_pausing(model.get_submodule(path), path, hub))
        stack.callback(_stop, fibers)
        seen: set[str] = set()
        while True:
            found = [fiber.switch() for fiber in fibers]
            calls = [call for call in found if isinstance(call, WaitingCall)]
            reached = {call.layer for call in calls}
            if not reached and seen == set(layers):
                return
            if len(calls) < len(fibers) or len(reached) > 1 or not reached.isdisjoint(seen):
                raise _differing(reached, len(fibers) - len(calls), seen, layers)
            seen |= reached
            yield calls


@contextmanager
def _pausing(module: nn.Module, path: str, hub: greenlet) -> Iterator[None]:
    forward = module.forward

    def paused(*args: Any, **kwargs: Any) -> object:
        if greenlet.getcurrent() is not hub:
            hub.switch(WaitingCall(path, partial(_unchanged, module, path, *args, **kwargs)))
        return forward(*args, **kwargs)

    vars(module)["forward"] = paused
    try:
        yield
    finally:
        del vars(module)["forward"]


def _unchanged(module: nn.Module, path: str, /, *args: Any, **kwargs: Any) -> object:
    """Call a module whose arguments are needed again."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    versions = [tensor._version for tensor in given]
    found: object = module(*args, **kwargs)
    if versions != [tensor._version for tensor in given]:
        raise error(
            "layer-changes-inputs",
            f"{path}, a {type(module).__name__}, changes its inputs in place, so that it cannot "
            "be called twice with them",
            help="choose the method magnitude, which needs no inputs",
        )
    return found


def _stop(fibers: Sequence[greenlet]) -> None:
    for fiber in fibers:
        fiber.throw()


def _differing(
    reached: Collection[str], num_ended: int, seen: Collection[str], layers: Collection[str]
) -> OpenwaferError:
    again = sorted(set(reached).intersection(seen))
    if again:
        what = f"a pass comes to the layer {again[0]} more than once"
    elif len(reached) > 1:
        what = f"some passes come to {min(reached)}, others to {max(reached)}"
    else:
        missed = sorted(set(layers) - set(seen))
        what = f"{num_ended} passes end and have not come to {', '.join(missed[:8])}"
    return error(
        "layers-differ",
        f"the model cannot be pruned layer after layer: {what}",
        help="leave such layers out by the filter, or choose the method magnitude",
    )
