"""What a step of a run, and each of its layers, is made of, counted apart from any machine."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import counted, error
from openwafer.training.methods.fused_kernels import fused_kernels, num_attentions
from openwafer.training.methods.noise_scale import NoiseScaleKeys
from openwafer.training.session.building import (
    build_hollow_model,
    expected_vocab_size,
    make_workload,
)
from openwafer.training.session.config_sections import BatchConfig, Precision, Weights
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.layers import Layer, partition
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.operators import CountingMeter, StepCalls
from openwafer.training.stream.plan.workload import Workload, hollow_copy, placed
from openwafer.training.torch_private import pytree

CPU: Final = torch.device("cpu")
NUM_STEPS_ASKED: Final = 64
"""Steps at which a sparsity that changes is asked for its mean."""
BEFORE, AFTER = "input", "output"
"""Names of what a model does before and behind the layers that it repeats."""


@dataclass(frozen=True)
class StepCount:
    """A step of a run in 16-bit, its products dense, on a system with fused kernels.

    Attributes:
        parameters: of the model, tied ones once, sparse ones as if dense.
        sparse_parameters: of them, those of weights that the run keeps sparse.
        sparsity: share of zeros in these, the mean over the run's steps.
        layers: that the model repeats; of several kinds those with most parameters.
        width: features of what such a layer returns, for each position.
        forward_flops, backward_flops: of one token, in matrix products, convolutions, attentions.
        layer_activation_bytes: that the forward of such a layer leaves for a token.
        other_activation_bytes: that all the rest of the forward leaves for a token.
        fused_attentions: of a forward, which leave no tensors of tokens x tokens.
    """

    parameters: int
    sparse_parameters: int
    sparsity: float
    layers: int
    width: int
    forward_flops: float
    backward_flops: float
    layer_activation_bytes: float
    other_activation_bytes: float
    fused_attentions: int


@dataclass
class _Walk:
    """What one sample's forward and backward show."""

    forward_flops: int
    backward_flops: int
    layer_bytes: float
    left_bytes: int
    width: int
    attentions: int


def count_step(config: NoiseScaleKeys) -> StepCount:
    """Count one sample of a run's batches.

    Nothing is computed, no weight drawn and no data read, unless the model's control flow depends
    on values.

    Raises:
        OpenwaferError: the model cannot be built, or takes no such tokens.
    """
    workload = sample_of(config)
    model = workload.model
    names = repeated_layers(model)
    with fused_kernels():
        walk = faked(partial(_walk, workload, names))
    num_tokens = config.batch.sequence_length
    sparse = _sparse_shares(model, config)
    num_sparse = sum(num for num, _ in sparse)
    return StepCount(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        sparse_parameters=num_sparse,
        sparsity=sum(num * share for num, share in sparse) / num_sparse if sparse else 0.0,
        layers=len(names),
        width=walk.width,
        forward_flops=walk.forward_flops / num_tokens,
        backward_flops=walk.backward_flops / num_tokens,
        layer_activation_bytes=walk.layer_bytes / num_tokens,
        other_activation_bytes=(walk.left_bytes - len(names) * walk.layer_bytes) / num_tokens,
        fused_attentions=walk.attentions,
    )


def sample_of(config: NoiseScaleKeys) -> Workload:
    """One sample of a run on one system, in 16-bit and without zeros; its model has no values."""
    dense = replace(
        config,
        batch=BatchConfig(size=1, sequence_length=config.batch.sequence_length),
        precision=Precision.BF16,
        weights=Weights.BF16,
        sparsity=None,
        activation_sparsity=None,
        noise_scale=None,
        systems=1,
    )
    vocab_size = expected_vocab_size(dense)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(dense, vocab_size, Path(scratch))
    return make_workload(model, dense, vocab_size)


def repeated_layers(model: nn.Module) -> list[str]:
    """The layers of the kind that holds most parameters, of module lists where there are any."""
    outer = [layer for layer in partition(model).modules if layer.parent is None]
    listed = [layer for layer in outer if _is_listed(model, layer.name)]
    by_kind: dict[type[nn.Module], list[Layer]] = defaultdict(list)
    for layer in listed or outer:
        by_kind[type(model.get_submodule(layer.name))].append(layer)

    def size(layers: list[Layer]) -> int:
        modules = [model.get_submodule(layer.name) for layer in layers]
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    return [layer.name for layer in max(by_kind.values(), key=size)] if by_kind else [""]


def _is_listed(model: nn.Module, name: str) -> bool:
    holder, _, own = name.rpartition(".")
    is_list = isinstance(model.get_submodule(holder), nn.ModuleList | nn.Sequential)
    return bool(own) and is_list


def _walk(workload: Workload, names: list[str], mode: RememberingFakeMode | None) -> _Walk:
    model = hollow_copy(workload.model, CPU)
    marks: list[int] = []
    widths = [0]

    with CountingMeter() as meter:
        meter.walks(mode)
        for parameter in model.parameters():
            meter.count(parameter)

        def begin(*_: object) -> None:
            marks.append(meter.used_bytes)

        def end(_module: nn.Module, _inputs: object, output: object) -> None:
            widths.extend(
                found.shape[-1]
                for found in pytree.tree_leaves(output)[:1]
                if isinstance(found, Tensor) and found.dim()
            )

        for name in names:
            model.get_submodule(name).register_forward_pre_hook(begin)
            model.get_submodule(name).register_forward_hook(end)
        given = placed(workload.batches[0], mode, CPU)
        start = meter.used_bytes
        with autocast(CPU, workload.autocast_dtype):
            loss = workload.loss_of(model, given)
        left, calls = meter.used_bytes - start, meter.take_calls()
        loss.backward()
        backward = StepCalls(meter.take_calls()).flops
    # A layer still holds what it lets go on its return: the next one's beginning tells.
    layer_bytes = [after - before for before, after in pairwise(marks)]
    layer = median(layer_bytes or [left])
    forward = StepCalls(calls).flops
    return _Walk(forward, backward, layer, left, widths[-1], num_attentions(calls))


def _sparse_shares(model: nn.Module, config: NoiseScaleKeys) -> list[tuple[int, float]]:
    """Of each sparse weight its elements, and its mean sparsity."""
    steps = {config.steps * index // NUM_STEPS_ASKED for index in range(NUM_STEPS_ASKED)}
    return [
        (
            model.get_parameter(name).numel(),
            fmean(found.algorithm.target.sparsity_at(step) for step in sorted(steps)),
        )
        for name, found in config.sparse_parameters(model).items()
    ]


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


class _LayerWalk:
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


def _walked(workload: Workload, names: list[str], mode: RememberingFakeMode | None) -> _LayerWalk:
    model = hollow_copy(workload.model, CPU)
    with CountingMeter() as meter:
        meter.walks(mode)
        for parameter in model.parameters():
            meter.count(parameter)
        walk = _LayerWalk(meter, model, names)
        given = placed(workload.batches[0], mode, CPU)
        walk.held_bytes.append(meter.used_bytes)
        with autocast(CPU, workload.autocast_dtype):
            loss = workload.loss_of(model, given)
        walk.cut()
        loss.backward()
        walk.turn(0)
    return walk


def _require_chain(walk: _LayerWalk, num_layers: int) -> None:
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


def _counted(walk: _LayerWalk, names: list[str], num_tokens: int) -> tuple[LayerCount, ...]:
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
