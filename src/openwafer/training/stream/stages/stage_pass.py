"""One stage of a model, its forward from one call of a layer to another, and its share of a pass.

The model's own code runs from its beginning. Calls of layers before the stage return tensors that
nobody reads; the first call of the stage takes what came from the stage before; at the first call
of the next stage the forward is left. So what a model computes from its inputs alone, such as
positions and masks, is there in every stage.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from openwafer.diagnostics import error
from openwafer.training.collectives.group import GOES_ON, Group, connection_says
from openwafer.training.stream.device.weights import GradientGuard
from openwafer.training.stream.execute.attachment import Function, call_of, stand_in
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.execute.pass_watch import TensorForm
from openwafer.training.stream.stages.flow import Call, Flow, leaves_of
from openwafer.training.stream.stages.stage_gradients import StageGradients
from openwafer.training.torch_private import pytree, set_grad_enabled

Seed = Callable[[int], None]


class _LeftError(BaseException):
    """The stage is done: carries what the next one takes through the model's own code."""

    def __init__(self, passed: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.passed = passed


class StageModule(nn.Module):
    """Runs a range of the calls of a model's layers.

    Args:
        model: whose parameters have values where the range uses them.
        layers: names of the layers.
        span: the range.
        autocast: makes the context that forwards run in.
        has_replicas: whether other systems have this range, too.

    Attributes:
        failure: what a forward raised.
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
        super().__init__()
        self._has_replicas = has_replicas
        self._guard = GradientGuard(dict(model.named_parameters()))
        self.failure: BaseException | None = None
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

    def forward(self, *received: torch.Tensor, micro_batch: torch.Tensor) -> Any:
        """What the next stage takes, or the loss.

        Args:
            received: from the stage before.
            micro_batch: its index, one element.
        """
        index, self._num_called = int(micro_batch), 0
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
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._received = ()
        self._require(_foreign_generators() == drawn)
        return out

    def _guarding(self) -> AbstractContextManager[None]:
        """Context of a forward, which finds gradients where no micro-batch came before it."""
        has_earlier = self._has_replicas or len(self._forwards) > 1
        return self._guard.guarding() if has_earlier and self._is_graded else nullcontext()

    def _require(self, has_drawn_from_torch_alone: bool) -> None:
        if not has_drawn_from_torch_alone:
            self.failure = error(
                "pipelined-random",
                "the model's forward draws from the generators of Python or NumPy, whose states "
                "do not go from stage to stage",
                help="draw from torch's, or leave streaming.mode out",
            )
            raise self.failure

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
            leaves = leaves_of(args, kwargs)
            passed = tuple(leaves[n] for n in call.passed)
            raise _LeftError((*passed, torch.get_rng_state()) if flow.draws else passed)
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


LOSS: Final = TensorForm((), (), torch.float32, requires_grad=True)
LossOf = Callable[[torch.Tensor, int], torch.Tensor]
"""What backward starts from, given the loss of a micro-batch and its index."""


class StagePass:
    """Runs passes whose micro-batches all flow alike.

    Args:
        module: the stage.
        spans: calls by stage.
        flow: of each micro-batch.
        num_micro_batches: of a pass.
        gradients: of this stage; ``None`` for passes without any.
        group: the stages.

    Attributes:
        received_bytes: that come from the neighbours in a pass.
    """

    def __init__(
        self,
        module: StageModule,
        spans: Sequence[range],
        flow: Flow,
        num_micro_batches: int,
        gradients: StageGradients | None,
        group: Group,
    ) -> None:
        rank = group.rank
        self._module = module
        self._weigh: LossOf = lambda loss, index: loss
        self._losses: dict[int, torch.Tensor] = {}
        span, is_last = spans[rank], rank == len(spans) - 1
        coming = passed_forms(flow, span.start)
        going = (LOSS,) if is_last else passed_forms(flow, span.stop)
        self._stage = _Stage(module, len(spans), coming, going, gradients, group)
        kind = ScheduleGPipe if gradients is None else Schedule1F1B
        self._schedule: Any = kind(
            self._stage, num_micro_batches, loss_fn=self._loss, scale_grads=False
        )
        comes_back = gradients is not None and not is_last
        back = [form for form in going if form.requires_grad] if comes_back else []
        self.received_bytes = num_micro_batches * sum(map(_num_bytes, (*coming, *back)))
        self._indices = torch.arange(num_micro_batches)
        self._target = self._indices if is_last else None

    def run(self, weigh: LossOf) -> list[torch.Tensor]:
        """Forward and backward of all micro-batches; returns the losses in the last stage.

        Raises:
            OpenwaferError: ``rank-lost``; and whatever the model raises.
        """
        self._weigh = weigh
        return self._step(self._schedule.step)

    def evaluate(self) -> list[torch.Tensor]:
        """Forward alone; see :meth:`run`."""
        return self._step(self._schedule.eval)

    def _step(self, step: Callable[..., object]) -> list[torch.Tensor]:
        self._losses.clear()
        self._module.failure = None
        try:
            step(target=self._target, micro_batch=self._indices, return_outputs=False)
        except RuntimeError as failure:
            raise self._named(failure) from failure
        return [self._losses[index] for index in sorted(self._losses)]

    def _loss(self, loss: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        index = int(target)
        self._losses[index] = loss.detach()
        return self._weigh(loss, index)

    def _named(self, failure: RuntimeError) -> BaseException:
        """What a pass has met: the model's own, or the loss of a neighbour."""
        if self._module.failure is not None:
            return self._module.failure
        # What an operator raises is the cause of what the library raises; a connection's is bare.
        if failure.__cause__ is not None or not self._stage.waits_for:
            return failure
        return error(
            "rank-lost",
            f"{self._stage.here} waited for {self._stage.waits_for}",
            notes=(connection_says(failure),),
            help=f"see what it said last; {GOES_ON}",
        )


class _Stage(PipelineStage):
    """A stage that knows for whom it waits, and tells when a micro-batch has gradients."""

    def __init__(
        self,
        module: StageModule,
        num_stages: int,
        coming: Sequence[TensorForm],
        going: Sequence[TensorForm],
        gradients: StageGradients | None,
        group: Group,
    ) -> None:
        super().__init__(
            module,
            group.rank,
            num_stages,
            torch.device("cpu"),
            input_args=tuple(map(_stand_in, coming)),
            output_args=tuple(map(_stand_in, going)),
        )
        self.here, self.waits_for = group.ranks[group.rank], ""
        self._ranks, self._gradients = group.ranks, gradients

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """See ``PipelineStage``."""
        if not self.is_first:
            self._wait_for(-1, f"to send micro-batch {fwd_chunk_id} of its forward")
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """See ``PipelineStage``."""
        if not self.is_last:
            self._wait_for(1, f"to send micro-batch {bwd_chunk_id} of its backward")
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """See ``PipelineStage``."""
        if not self.is_last:
            self._wait_for(1, f"to take micro-batch {fwd_chunk_id} of the forward")
        return super().get_fwd_send_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """See ``PipelineStage``."""
        if not self.is_first:
            self._wait_for(-1, f"to take micro-batch {bwd_chunk_id} of the backward")
        return super().get_bwd_send_ops(bwd_chunk_id)

    def _wait_for(self, step: int, what: str) -> None:
        self.waits_for = f"{self._ranks[self.stage_index + step]} {what}"

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """See ``PipelineStage``."""
        if self._gradients is not None:
            self._gradients.begin_backward()
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if self._gradients is not None:
            self._gradients.end_backward(bwd_chunk_id)


def _stand_in(form: TensorForm) -> torch.Tensor:
    return torch.empty_strided(
        form.shape, form.stride, dtype=form.dtype, device="meta"
    ).requires_grad_(form.requires_grad)


def _num_bytes(form: TensorForm) -> int:
    return torch.Size(form.shape).numel() * form.dtype.itemsize
