"""Executes the steps of a rank without a store: weights come, gradients go, nothing is updated."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.recorder import Recorder
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.execution import Root, Seed
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.micro_batches import Forward, run_forward
from openwafer.training.stream.forms.by_expert import forms_of
from openwafer.training.stream.replicas.replica_link import Replicas, replica_link
from openwafer.training.stream.step_plan import StepPlan


class ReplicaExecution:
    """Runs a share of the micro-batches of each step.

    Args:
        model: its parameters need no values.
        plan: that of the rank with the store.
        device: where the model runs.
        autocast: makes the context that forwards, and nothing else, run in.
        replicas: the ranks.

    Attributes:
        executor: see :class:`Executor`.
        recorder: times and device memory.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: StepPlan,
        device: Device,
        autocast: Callable[[], AbstractContextManager[object]],
        replicas: Replicas,
    ) -> None:
        forms = forms_of(model, plan.split.sliced)
        weights = DeviceWeights(forms, plan.layouts, device, are_watched=True)
        for record in plan.split.records:
            weights.unbind(record)
        self.recorder = Recorder(device)
        self._device, self._autocast = device, autocast
        link = replica_link(replicas, weights, plan.split, None)
        self._link = link
        self.executor = Executor(model, plan.split, weights, link, self.recorder)
        self.executor.follow(plan)

    def run(self, forwards: Sequence[Forward], root: Root, seed: Seed) -> None:
        """Run forward and backward of this rank's micro-batches; see :class:`Execution`."""
        try:
            with self._device.active():
                with self._autocast():
                    losses = run_forward(self.executor, forwards, seed, may_repeat=False)
                torch.autograd.backward(root(losses))
                if self.executor.is_in_pass:
                    self.executor.end_pass()
        except BaseException:
            self.executor.abandon_pass()
            raise

    def close(self) -> None:
        """Give the model its own forwards back and end threads."""
        self.executor.detach()
        self._link.close()
