"""What a step of a run is made of, counted exactly and apart from any machine."""

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

from openwafer.training.methods.counts.fused_kernels import fused_kernels, num_attentions
from openwafer.training.methods.noise_scale import NoiseScaleKeys
from openwafer.training.session.building import (
    build_hollow_model,
    expected_vocab_size,
    make_workload,
)
from openwafer.training.session.config_sections import BatchConfig, Precision, Weights
from openwafer.training.stream.layers import Layer, partition
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.operators import CountingMeter, StepCalls
from openwafer.training.stream.plan.workload import Workload, autocast, hollow_copy, placed
from openwafer.training.torch_private import pytree

CPU: Final = torch.device("cpu")
NUM_STEPS_ASKED: Final = 64
"""Steps at which a sparsity that changes is asked for its mean."""


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
        if mode is not None:
            meter.call = mode.call
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
