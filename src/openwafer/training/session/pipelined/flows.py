"""How forwards of a run's model pass through its layers, by the sizes of their inputs."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from openwafer.training.session.forward import Inputs, ModelForward
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.plan.admission import bare_copy
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stages.flow import Flow, flow_of

Kind = tuple[object, ...]


class Flows:
    """Flows that are walked once for each kind of inputs.

    Args:
        workload: of the run; a copy of its model is walked, so that it may be in use.
        layers: names of the layers that are told apart.
    """

    def __init__(self, workload: Workload, layers: Sequence[str]) -> None:
        self._workload = replace(workload, model=bare_copy(workload.model))
        self._layers = layers
        self._known: dict[Kind, Flow] = {}

    def __call__(self, forward: Forward) -> Flow:
        """The flow of a forward of the run's model."""
        assert isinstance(forward, ModelForward)
        return self.of(forward.inputs, is_training=forward.model.training)

    def of(self, inputs: Inputs, *, is_training: bool = True) -> Flow:
        """The flow of a micro-batch."""
        kind: Kind = (
            is_training,
            *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()),
        )
        if kind not in self._known:
            self._workload.model.train(is_training)
            self._known[kind] = flow_of(self._workload, inputs, self._layers, torch.device("cpu"))
        return self._known[kind]


def outer_layers(split: Partition) -> tuple[str, ...]:
    """The layers that no other layer calls."""
    return tuple(layer.name for layer in split.modules if layer.parent is None)
