"""Executes the steps of one stage: its weights and their optimizer states stay with it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby

import torch
import xxhash
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.collectives.group import Group
from openwafer.training.models.hollow import without_values
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.record_access import LentParts
from openwafer.training.stream.execute.execution import (
    Root,
    Seed,
    StepContext,
)
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.execute.resident import ResidentExecution
from openwafer.training.stream.link.updates import StepRules
from openwafer.training.stream.replicas.ownership import StagePlan
from openwafer.training.stream.replicas.replica_link import Replicas, records_of
from openwafer.training.stream.stages.flow import Flow, FlowOf
from openwafer.training.stream.stages.stage_gradients import (
    StageGradients,
    StageReplicas,
    TiedWeights,
)
from openwafer.training.stream.stages.stage_pass import (
    StageForward,
    StagePass,
    one_forward_one_backward,
)


@dataclass(frozen=True)
class JoinedStages:
    """The stages of a run.

    Attributes:
        plan: who has what.
        group: those of this system's replica.
        alike: the systems that have this stage, by replica; ``None`` where there is one.
        flow_of: how forwards go through the layers.
    """

    plan: StagePlan
    group: Group
    alike: Replicas | None
    flow_of: FlowOf


class StageExecution(ResidentExecution):
    """The stage of one system; see :class:`Execution`.

    A pass is of all systems: each calls :meth:`run` or :meth:`evaluate` with the forwards of its
    replica. The last stage has their losses, the others none.

    Args:
        model: of all stages.
        store: has this stage's records.
        context: what steps run under.
        stages: of all systems.

    Attributes:
        plan: who has what.
    """

    def __init__(
        self,
        model: nn.Module,
        store: ParameterStore,
        context: StepContext,
        stages: JoinedStages,
    ) -> None:
        super().__init__(model, store, context)
        self.records = records_of(store, stages.plan.all_layouts, context.replicas)
        for name, parameter in self._parameters.items():
            if name not in self._record_of:
                # Where a run begins, the first stage has been given all initial weights.
                parameter.data = without_values(parameter, parameter.device)
        self._model = model
        self.plan, self._group, self._flow_of = stages.plan, stages.group, stages.flow_of
        self._is_last = self._group.rank == self._group.size - 1
        span = self.plan.spans[self._group.rank]
        has_replicas = stages.alike is not None
        self._forward = StageForward(
            model, self.plan.layers, span, context.autocast, has_replicas=has_replicas
        )
        replicas = None
        if stages.alike is not None:
            what = store.layouts, self._loans, self._parameters
            replicas = StageReplicas(stages.alike, *what)
        tied = TiedWeights(self.plan, self._parameters, self._group)
        self._stage_gradients = StageGradients(tied, replicas)

    def run(self, forwards: Sequence[Forward], root: Root, seed: Seed | None) -> list[float]:
        flow = self._flow_of(forwards[0])
        for index, forward in enumerate(forwards):
            if self._flow_of(forward) is not flow:
                raise _unlike(index)
        self._stage_gradients.renew()
        with self.device.active(is_watched=self.recorder.trace is not None):
            losses = self._run(flow, forwards, root, seed)
        for watcher in self._watchers:
            watcher(self._gradients())
        return losses

    def _run(
        self, flow: Flow, forwards: Sequence[Forward], root: Root, seed: Seed | None
    ) -> list[float]:
        stage, num_stages = self._group.rank, self._group.size
        found = self._begin(flow, forwards, seed)
        losses: list[float] = []
        starts: dict[int, torch.Tensor] = {}
        for is_backward, index in one_forward_one_backward(stage, num_stages, len(forwards)):
            if is_backward:
                self._stage_gradients.begin_backward()
                starts.pop(index).backward()
                self._stage_gradients.end_backward(index)
                continue
            starts[index] = found.forward(index)
            if self._is_last:
                losses.append(starts[index].item())
                [starts[index]] = root([starts[index]])
        found.end()
        self._stage_gradients.end_pass()
        return losses

    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        self._stage_gradients.renew()
        losses = []
        for flow, of_kind in groupby(forwards, self._flow_of):
            alike = list(of_kind)
            with self.device.active(), torch.no_grad():
                found = self._begin(flow, alike, None)
                ends = [found.forward(index) for index in range(len(alike))]
                found.end()
            losses += ends if self._is_last else []
        return losses

    def _begin(self, flow: Flow, forwards: Sequence[Forward], seed: Seed | None) -> StagePass:
        """Begin a pass, with gradients where they are switched on."""
        for span in self.plan.spans[1:]:
            _require_cut(flow, span.start)
        self._forward.begin(flow, forwards, seed)
        return StagePass(self._forward, self.plan.spans, flow, len(forwards), self._group)

    def complete_by(self, rules: StepRules) -> None:
        super().complete_by(rules)
        self._stage_gradients.are_weights_old = True

    def digests(self) -> dict[str, int]:
        """Of the weights that this stage computes with and other ranks have, too; 64 bits each."""
        stage = self._group.rank
        shared = {name for name, stages in self.plan.tied.items() if stage in stages}
        if self.plan.num_replicas > 1:
            shared |= self._record_of.keys()
        return {f"values of {name!r}": _digest(self._parameters[name]) for name in sorted(shared)}

    def lent(self, record: str, *parts: Part) -> AbstractContextManager[LentParts]:
        """Context in which parts of a record of this stage can be read."""
        return self.store.lent(record, parts, read_only=True)

    def settle(self) -> None:
        """The store is up to date between two steps."""

    def close(self) -> None:
        self._stage_gradients.close()
        self._forward.close()
        super().close()


def _digest(parameter: nn.Parameter) -> int:
    values = parameter.detach().contiguous().view(-1).view(torch.uint8)
    return xxhash.xxh3_64_intdigest(values.numpy().data)


def _require_cut(flow: Flow, start: int) -> None:
    refusal = flow.calls[start].refusal if start < len(flow.calls) else "the forward ends before it"
    if refusal:
        raise error(
            "pipelined-flow",
            f"with this batch the model's forward cannot be cut before its call {start}: {refusal}",
            help="leave streaming.mode out",
        )


def _unlike(index: int) -> Exception:
    return error(
        "pipelined-uneven",
        f"micro-batch {index} of a step has other sizes than micro-batch 0, and stages pass "
        "tensors of one size",
        help="choose batch.micro_batches so that all micro-batches are as large",
    )
