"""One stage's share of a pass: micro-batches go through by torch.distributed.pipelining."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from openwafer.diagnostics import error
from openwafer.training.collectives.group import GOES_ON, Group, connection_says
from openwafer.training.stream.execute.pass_watch import TensorForm
from openwafer.training.stream.stages.flow import Flow
from openwafer.training.stream.stages.stage_gradients import StageGradients
from openwafer.training.stream.stages.stage_module import StageModule, passed_forms

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
