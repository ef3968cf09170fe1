"""Measures what streaming takes for a layer's call beside operators: loans, hooks, bookkeeping.

A plan counts the operators of a step and times each by itself. What runs around them is in no
count: a layer's weights are borrowed, bound and given back, its saved tensors pass through hooks,
and micro-batches hand over to each other where it begins. So a small model is streamed here, by the
executor itself and out of a store in memory. What its step takes beyond its operators, which are
counted and timed as those of any plan, is spread over the calls of its layers.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Final

import torch
from torch import nn

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import ParameterStore, Tier
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.device.device import ALWAYS_METERED, CpuDevice, Device
from openwafer.training.stream.execute.execution import StepContext, StreamedExecution
from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.dry_run import DryRunSettings, Workload, dry_run
from openwafer.training.stream.plan.machine import operators_seconds
from openwafer.training.stream.plan.search import StreamPlan, record_bytes
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.schedule import Schedule, UpdateTiming, Visit
from openwafer.training.stream.step_plan import StepPlan

NUM_LAYERS: Final = 4
WIDTH: Final = 16
NUM_STEPS: Final = 9
# With more of them, each takes what one of these takes.
MOST_MICRO_BATCHES: Final = 4
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class PassSeconds:
    """Seconds by pass.

    Either may be below zero: under the mode that counts operators autograd calls some that it
    otherwise does not.
    """

    forward: float = 0.0
    backward: float = 0.0


def streaming_seconds(plan: StreamPlan, device: Device) -> PassSeconds:
    """What streaming takes in a step beside its operators, on a device that is host memory.

    Zero for other devices, for which it is not measured, and for resident plans.
    """
    if plan.mode is not Mode.STREAMED or device.is_asynchronous:
        return PassSeconds()
    calls = Counter(plan.policies.get(visit.layer, Activations.KEEP) for visit in plan.dry.visits)
    # A loop may call parts of its model, and never the whole.
    num_micro_batches = max(len(plan.dry.kinds), 1)
    num_tried = min(num_micro_batches, MOST_MICRO_BATCHES)
    each = {policy: _call_seconds(policy, num_tried) for policy in calls}
    times = num_micro_batches / num_tried
    return PassSeconds(
        times * sum(number * each[policy].forward for policy, number in calls.items()),
        times * sum(number * each[policy].backward for policy, number in calls.items()),
    )


@cache
def _call_seconds(policy: Activations, num_micro_batches: int) -> PassSeconds:
    """What the micro-batches' call of a layer takes beside operators; measured once a process."""
    with torch.random.fork_rng(), torch.enable_grad():
        small = _SmallStep(policy, num_micro_batches)
        took = small.run()
    calls = small.dry.calls
    return PassSeconds(
        (took.forward - operators_seconds(calls.forward, CPU)) / NUM_LAYERS,
        (took.backward - operators_seconds(calls.backward, CPU)) / NUM_LAYERS,
    )


class _SmallStep:
    """A step of a small model whose layers have the weights and operators of usual ones.

    Attributes:
        dry: tells its operators.
    """

    def __init__(self, policy: Activations, num_micro_batches: int) -> None:
        self._model = nn.Sequential(*(_layer() for _ in range(NUM_LAYERS)))
        # One weight alone is updated: updates are timed by themselves.
        trained = [next(self._model.parameters())]
        self._updater = Updater(torch.optim.SGD(trained, lr=0.0, fused=True), self._model)
        self._split = partition(self._model, min_layer_bytes=0)
        self._layouts = lay_out_records(
            self._split,
            parameters=dict(self._model.named_parameters()),
            state_arrays=self._updater.state_arrays,
            keeps_gradients=False,
        )
        self._policies = {layer.name: policy for layer in self._split.layers}
        self._schedule = self._scheduled()
        batches = [torch.ones(1, WIDTH, WIDTH)] * num_micro_batches
        self._workload = Workload(self._model, batches, _loss_of)
        settings = DryRunSettings(self._policies, self._schedule)
        self.dry = dry_run(self._workload, self._split, self._layouts, CPU, settings)

    def _scheduled(self) -> Schedule:
        sizes = record_bytes(self._split, self._layouts, [*dict(self._model.named_parameters())])
        return schedules.build(
            [Visit(layer.name, layer.records) for layer in self._split.layers],
            sizes,
            timing=UpdateTiming.ON_PUSH,
            capacity_bytes=max(size.weights for size in sizes.values()),
        )

    def run(self) -> PassSeconds:
        """Median seconds of this thread by pass, of steps that are not metered."""
        plan = StepPlan(
            Mode.STREAMED,
            self._split,
            self._layouts,
            self._schedule,
            self._policies,
            0,
            self.dry.received,
            len(self._workload.batches),
        )
        context = StepContext(UpdateTiming.ON_PUSH, nullcontext)
        with _store_in_memory(self._layouts) as store:
            args = self._model, plan, store, self._updater, CpuDevice(), context
            with closing(StreamedExecution(*args)) as execution:
                steps = [self._timed(execution) for _ in range(ALWAYS_METERED + 1 + NUM_STEPS)]
        timed = steps[-NUM_STEPS:]
        return PassSeconds(
            median(step.forward for step in timed), median(step.backward for step in timed)
        )

    def _timed(self, execution: StreamedExecution) -> PassSeconds:
        turn = 0.0

        def root(losses: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            nonlocal turn
            turn = time.thread_time()
            return losses

        start = time.thread_time()
        forwards = [partial(_loss_of, self._model, batch) for batch in self._workload.batches]
        execution.run(forwards, root, None)
        execution.complete_step(1.0)
        return PassSeconds(turn - start, time.thread_time() - turn)


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, 2, dim_feedforward=2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )


def _loss_of(model: nn.Module, batch: object) -> torch.Tensor:
    loss: torch.Tensor = model(batch).sum()
    return loss


def _store_in_memory(layouts: Mapping[str, RecordLayout]) -> ParameterStore:
    tiers = {(name, part): Tier.DRAM for name in layouts for part in Part}
    return ParameterStore.create(layouts.values(), tiers, folder=None, ring_bytes=0)
