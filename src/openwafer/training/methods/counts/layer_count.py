"""What each layer of a pipeline does and holds, counted exactly and apart from any machine."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import counted, error
from openwafer.training.methods.counts.fused_kernels import fused_kernels
from openwafer.training.methods.counts.step_count import repeated_layers, sample_of
from openwafer.training.methods.noise_scale import NoiseScaleKeys
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.operators import CountingMeter, StepCalls
from openwafer.training.stream.plan.workload import Workload, autocast, hollow_copy, placed
from openwafer.training.torch_private import pytree

CPU: Final = torch.device("cpu")
BEFORE, AFTER = "input", "output"
"""Names of what a model does before and behind the layers that it repeats."""


@dataclass(frozen=True)
class LayerCount:
    """A layer of a pipeline in 16-bit.

    Attributes:
        name: of the module; `BEFORE` and `AFTER` for what is done before and behind the layers.
        parameters: that it uses; one that several layers use counts in each.
        forward_flops, backward_flops: of one token, in matrix products, convolutions, attentions.
        activation_bytes: that its forward leaves for a token.
        features: of what it takes, for each position.
        output_bytes: of what it hands to the next layer for a token; 0 of the last.
    """

    name: str
    parameters: int
    forward_flops: float
    backward_flops: float
    activation_bytes: float
    features: int
    output_bytes: float


class _Walk:
    """Notes what a forward and a backward do from layer to layer."""

    def __init__(self, meter: CountingMeter, model: nn.Module, names: list[str]) -> None:
        self.forward_flops: list[int] = []
        self.held_bytes: list[int] = []
        self.backward_flops: dict[int, int] = {}
        self.num_calls = 0
        self.passed: list[torch.Size] = []
        self.passed_bytes: list[int] = []
        self.parameters: list[set[nn.Parameter]] = [set()]
        self._meter = meter
        for module in model.modules():
            module.register_forward_pre_hook(self._use)
        layers = [model.get_submodule(name) for name in names]
        for layer in layers:
            # Before its own hook of use: what a layer holds is its own.
            layer.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
        layers[-1].register_forward_hook(self._end)

    def cut(self) -> None:
        """End one layer's part of the forward."""
        self.forward_flops.append(StepCalls(self._meter.take_calls()).flops)
        self.held_bytes.append(self._meter.used_bytes)

    def turn(self, index: int) -> None:
        """End one layer's part of the backward."""
        self.backward_flops[index] = StepCalls(self._meter.take_calls()).flops

    def _use(self, module: nn.Module, _inputs: object) -> None:
        self.parameters[-1].update(module.parameters(recurse=False))

    def _begin(self, module: nn.Module, args: object, kwargs: object) -> None:
        self.num_calls += 1
        self._pass((args, kwargs))
        self.parameters.append({*module.parameters()})

    def _end(self, _module: nn.Module, _inputs: object, output: object) -> None:
        self._pass(output)
        self.parameters.append(set())

    def _pass(self, tree: object) -> None:
        self.cut()
        index = len(self.forward_flops)
        leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
        passed = next(leaf for leaf in leaves if leaf.is_floating_point())
        self.passed.append(passed.shape)
        self.passed_bytes.append(passed.numel() * passed.element_size())
        if passed.requires_grad:
            passed.register_hook(lambda _: self.turn(index))


def count_layers(config: NoiseScaleKeys) -> tuple[LayerCount, ...]:
    """Count one sample of a run's batches, layer by layer, zeros of sparse weights as if dense.

    The layers are those that a model repeats, with what is done before them and behind them.

    Raises:
        OpenwaferError: the model cannot be built, or takes no such tokens; ``layer-order`` where
            it does not call its layers once each, one behind the other.
    """
    workload = sample_of(config)
    names = repeated_layers(workload.model)
    with fused_kernels():
        walk = faked(partial(_walked, workload, names))
    _require_chain(walk, len(names))
    return _counted(walk, [BEFORE, *names, AFTER], config.batch.sequence_length)


def _walked(workload: Workload, names: list[str], mode: RememberingFakeMode | None) -> _Walk:
    model = hollow_copy(workload.model, CPU)
    with CountingMeter() as meter:
        if mode is not None:
            meter.call = mode.call
        for parameter in model.parameters():
            meter.count(parameter)
        walk = _Walk(meter, model, names)
        given = placed(workload.batches[0], mode, CPU)
        walk.held_bytes.append(meter.used_bytes)
        with autocast(CPU, workload.autocast_dtype):
            loss = workload.loss_of(model, given)
        walk.cut()
        loss.backward()
        walk.turn(0)
    return walk


def _require_chain(walk: _Walk, num_layers: int) -> None:
    """Refuse a model whose layers are not called once each, or hand on what has no gradient."""
    reached = len(walk.backward_flops) - 1
    if (walk.num_calls, reached) != (num_layers, num_layers + 1):
        raise error(
            "layer-order",
            f"a forward calls the {counted(num_layers, 'layer')} that the model repeats "
            f"{counted(walk.num_calls, 'time')}, and a backward has gradients for {reached} of the "
            f"{len(walk.passed)} tensors between them",
            help="a pipeline needs a model that calls each of its layers once, behind each other",
        )


def _counted(walk: _Walk, names: list[str], num_tokens: int) -> tuple[LayerCount, ...]:
    held = [after - before for before, after in pairwise(walk.held_bytes)]
    features = [walk.passed[0][-1], *(shape[-1] for shape in walk.passed)]
    sent = [*walk.passed_bytes, 0]
    return tuple(
        LayerCount(
            name,
            sum(parameter.numel() for parameter in walk.parameters[index]),
            walk.forward_flops[index] / num_tokens,
            # The gradient of what the next layer took is there when that one's backward is done.
            walk.backward_flops[index] / num_tokens,
            held[index] / num_tokens,
            features[index],
            sent[index] / num_tokens,
        )
        for index, name in enumerate(names)
    )
