"""One stage of a model, its forward from one call of a layer to another, and its share of a pass.

The model's own code runs from its beginning. Calls of layers before the stage return tensors that
nobody reads; the first call of the stage takes what came from the stage before; at the first call
of the next stage the forward is left. So what a model computes from its inputs alone, such as
positions and masks, is there in every stage.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.collectives.exchange import Cut
from openwafer.training.collectives.group import Group
from openwafer.training.stream.device.weights import GradientGuard
from openwafer.training.stream.execute.attachment import Function, call_of, stand_in
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.execute.pass_watch import TensorForm
from openwafer.training.stream.stages.flow import Call, Flow, leaves_of
from openwafer.training.torch_private import pytree, set_grad_enabled

Seed = Callable[[int], None]


class _LeftError(BaseException):
    """The stage is done: carries what the next one takes through the model's own code."""

    def __init__(self, passed: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.passed = passed


class StageForward:
    """Runs a range of the calls of a model's layers.

    Args:
        model: whose parameters have values where the range uses them.
        layers: names of the layers.
        span: the range.
        autocast: makes the context that forwards run in.
        has_replicas: whether other systems have this range, too.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        span: range,
        autocast: Callable[[], AbstractContextManager[object]],
        *,
        has_replicas: bool = False,
    ) -> None:
        self._has_replicas = has_replicas
        self._guard = GradientGuard(dict(model.named_parameters()))
        self._span, self._autocast = span, autocast
        self._flow: Flow | None = None
        self._forwards: Sequence[Forward] = ()
        self._seed: Seed | None = None
        self._num_called = 0
        self._received: tuple[torch.Tensor, ...] = ()
        self._is_graded = False
        self._undo = ExitStack()
        for name in layers:
            module = model.get_submodule(name)
            attribute, function = call_of(module)
            run = partial(self._run_layer, name)
            self._undo.callback(stand_in(module, attribute, function, run))

    def begin(self, flow: Flow, forwards: Sequence[Forward], seed: Seed | None) -> None:
        """Say what the next micro-batches are; all of them flow alike."""
        self._flow, self._forwards, self._seed = flow, forwards, seed

    def run(self, index: int, received: tuple[torch.Tensor, ...]) -> Any:
        """What the next stage takes of a micro-batch, or the loss.

        Args:
            index: of the micro-batch.
            received: from the stage before.
        """
        self._num_called = 0
        self._received, self._is_graded = received, torch.is_grad_enabled()
        is_first = self._span.start == 0
        drawn = _foreign_generators()
        try:
            with (
                torch.set_grad_enabled(self._is_graded and is_first),
                self._autocast(),
                self._guarding(),
            ):
                if is_first and self._seed is not None:
                    self._seed(index)
                    drawn = _foreign_generators()
                out: Any = self._forwards[index]()
        except _LeftError as left:
            out = left.passed
        finally:
            self._received = ()
        if _foreign_generators() != drawn:
            raise error(
                "pipelined-random",
                "the model's forward draws from the generators of Python or NumPy, whose states "
                "do not go from stage to stage",
                help="draw from torch's, or leave streaming.mode out",
            )
        return out

    def _guarding(self) -> AbstractContextManager[None]:
        """Context of a forward, which finds gradients where no micro-batch came before it."""
        has_earlier = self._has_replicas or len(self._forwards) > 1
        return self._guard.guarding() if has_earlier and self._is_graded else nullcontext()

    def _run_layer(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        flow = self._flow
        if flow is None:
            return function(*args, **kwargs)
        number = self._num_called
        self._num_called += 1
        if number >= len(flow.calls) or flow.calls[number].layer != name:
            raise _otherwise(flow, number, name)
        call = flow.calls[number]
        if number < self._span.start:
            return pytree.tree_map(_empty, call.output, is_leaf=lambda one: type(one) is TensorForm)
        if number == self._span.stop:
            raise _LeftError(_leaving(flow, call, leaves_of(args, kwargs)))
        if number == self._span.start and number > 0:
            self._enter(flow, call, args, kwargs)
        return function(*args, **kwargs)

    def _enter(self, flow: Flow, call: Call, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Give the arguments the values that the stage before has computed."""
        leaves, received = leaves_of(args, kwargs), self._received
        set_grad_enabled(self._is_graded)
        for place, tensor in zip(call.passed, received, strict=False):
            # In place: the model's code may go on to use the tensor that it gave the layer.
            leaves[place].copy_(tensor)
        if flow.draws:
            torch.set_rng_state(received[-1])

    def close(self) -> None:
        """Give the layers their own forwards back."""
        self._undo.close()


def passed_forms(flow: Flow, cut: int) -> tuple[TensorForm, ...]:
    """What crosses a cut: arguments of the call behind it, and the state of torch's generator."""
    if not 0 < cut < len(flow.calls):
        return ()
    forms = flow.calls[cut].forms
    state = torch.get_rng_state()
    drawn = TensorForm(tuple(state.shape), state.stride(), state.dtype, requires_grad=False)
    return (*forms, drawn) if flow.draws else forms


def _empty(leaf: Any) -> Any:
    if type(leaf) is not TensorForm:
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype).zero_()


def _foreign_generators() -> tuple[object, ...]:
    numpy = np.random.get_state(legacy=False)
    return (
        random.getstate(),
        repr(numpy | {"state": None}),
        numpy["state"]["key"].tobytes(),
        numpy["state"]["pos"],
    )


def _otherwise(flow: Flow, number: int, name: str) -> Exception:
    planned = repr(flow.calls[number].layer) if number < len(flow.calls) else "the end"
    return error(
        "pipelined-flow",
        f"call {number} of the model's forward is of {name!r}, and of {planned} when it was cut "
        "into stages",
        help="leave streaming.mode out, or let the forward call the same layers every time",
    )


class StagePass:
    """One stage's share of a pass over micro-batches that all flow alike.

    Args:
        forward: the stage's.
        spans: calls by stage.
        flow: of each micro-batch.
        num_micro_batches: of the pass.
        group: the stages.
    """

    def __init__(
        self,
        forward: StageForward,
        spans: Sequence[range],
        flow: Flow,
        num_micro_batches: int,
        group: Group,
    ) -> None:
        rank = group.rank

        def cut(call: int, other: int) -> Cut | None:
            passed = [_like(form) for form in passed_forms(flow, call)]
            return Cut(group, other, passed, num_micro_batches) if passed else None

        self._forward = forward
        self._before = cut(spans[rank].start, rank - 1)
        self._next = cut(spans[rank].stop, rank + 1)

    def forward(self, index: int) -> torch.Tensor:
        """Run a micro-batch forward; returns its loss, or from where its backward starts."""
        received = () if self._before is None else self._before.receive(index)
        out = self._forward.run(index, received)
        if self._next is None:
            loss: torch.Tensor = out
            return loss
        return self._next.send(index, out)

    def end(self) -> None:
        """Return when all that this stage has sent has left."""
        for cut in (self._before, self._next):
            if cut is not None:
                cut.flush()


def one_forward_one_backward(
    stage: int, num_stages: int, num_micro_batches: int
) -> Iterator[tuple[bool, int]]:
    """The order of a stage's turns: whether it is a backward, and of which micro-batch.

    Each has as many micro-batches under way as stages are behind it, and itself: none waits longer
    for its gradients than they take to come back, and none keeps more activations.
    """
    ahead = min(num_stages - stage, num_micro_batches)
    for turn in range(num_micro_batches + ahead):
        if turn >= ahead:
            yield True, turn - ahead
        if turn < num_micro_batches:
            yield False, turn


def _leaving(flow: Flow, call: Call, leaves: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What crosses the cut before a call, given its arguments."""
    passed = tuple(leaves[n] for n in call.passed)
    for tensor, form in zip(passed, call.forms, strict=True):
        if (tuple(tensor.shape), tensor.dtype) != (form.shape, form.dtype):
            raise error(
                "pipelined-flow",
                f"a tensor of shape {tuple(tensor.shape)} and {tensor.dtype} comes to "
                f"{call.layer!r}, and one of {form.shape} and {form.dtype} did when the model was "
                "cut into stages",
                help="leave streaming.mode out, or let shapes depend on those of the inputs alone",
            )
    return (*passed, torch.get_rng_state()) if flow.draws else passed


def _like(form: TensorForm) -> torch.Tensor:
    """A tensor of that form, as wanted by a pass with gradients or without."""
    like = torch.empty(form.shape, dtype=form.dtype, device="meta")
    return like.requires_grad_(form.requires_grad and torch.is_grad_enabled())
