"""Stages run one behind the other compute what the model computes, bit for bit."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import TransformersModel, build, loss_of
from openwafer.training.stream.layers import partition
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stages.flow import Flow, flow_of
from openwafer.training.stream.stages.stage_pass import StageForward
from tests.tables import some
from tests.training.session.tiny_model import TinyModel
from tests.training.stream.small_gpt import TIED, build_gpt

IDS = torch.arange(24).reshape(2, 12)
MASK = torch.ones_like(IDS).index_fill(1, torch.tensor([11]), 0)
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
LLAMA = SIZES | {"num_hidden_layers": 3, "num_key_value_heads": 1, "vocab_size": 60}
GPT2 = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32, "vocab_size": 60}


class FarModel(TinyModel):
    """Adds what its embedding returned once more behind all layers."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = embedded = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"loss": (self.head(x) * embedded.sum()).mean()}


class DrawingModel(TinyModel):
    """Draws from NumPy's generator."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        loss = super().forward(input_ids, labels)["loss"]
        return {"loss": loss * np.random.random()}


class GradientModel(TinyModel):
    """Looks at the gradient of its head."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        loss = super().forward(input_ids, labels)["loss"]
        gradient = self.get_parameter("head.weight").grad
        return {"loss": loss if gradient is None else loss * gradient.mean()}


class ReadingModel(TinyModel):
    """Goes on by what it has computed."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        loss = super().forward(input_ids, labels)["loss"]
        return {"loss": loss if loss > 0 else -loss}


def of_library(name: str, config: dict[str, Any]) -> nn.Module:
    return build(TransformersModel(name, config=config), seed=0)


def drawn(kind: type[TinyModel]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reference GPT": lambda: build_gpt(TIED),
    "GPT-2": lambda: of_library("gpt2", GPT2),
    "Llama": lambda: of_library("llama", LLAMA),
    "Mixtral": lambda: of_library("mixtral", LLAMA | {"num_local_experts": 4}),
    "residual sums outside of layers": lambda: drawn(TinyModel),
}


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    is_library = hasattr(model.config, "model_type") if hasattr(model, "config") else False
    masked = {"attention_mask": MASK} if is_library else {}
    return {"input_ids": IDS, "labels": IDS, **masked}


def loss_with(model: nn.Module, inputs: object) -> Tensor:
    assert isinstance(inputs, dict)
    return loss_of(model(**inputs))


def walked(model: nn.Module) -> tuple[Flow, list[str]]:
    layers = [layer.name for layer in partition(model, min_layer_bytes=0).layers]
    inputs = inputs_of(model)
    work = Workload(model, [inputs], loss_with)
    return flow_of(work, inputs, layers, torch.device("cpu")), layers


def seed(index: int) -> None:
    torch.manual_seed(5 + index)


def run_in_stages(model: nn.Module, flow: Flow, layers: list[str], cuts: list[int]) -> Tensor:
    """Forward and backward of a model, stage by stage; returns the loss."""
    outputs: list[tuple[Tensor, ...]] = [()]
    inputs: list[list[Tensor]] = []
    for start, stop in pairwise(cuts):
        stage = StageForward(model, layers, range(start, stop), nullcontext)
        stage.begin(flow, [lambda: loss_with(model, inputs_of(model))], seed)
        inputs.append([t.detach().clone().requires_grad_(t.requires_grad) for t in outputs[-1]])
        out = stage.run(0, tuple(inputs[-1]))
        outputs.append(out if isinstance(out, tuple) else (out,))
        stage.close()
    gradients = None
    for made, taken in zip(reversed(outputs), reversed(inputs), strict=False):
        torch.autograd.backward([one for one in made if one.requires_grad], gradients)
        gradients = [one.grad for one in taken if one.requires_grad]
    return outputs[-1][0]


@pytest.mark.parametrize("name", some(MODELS, "GPT-2", "residual sums outside of layers"))
def test_a_model_cut_in_all_places_computes_the_same(name: str) -> None:
    model, plain = MODELS[name](), MODELS[name]()
    flow, layers = walked(model)
    possible = [number for number, call in enumerate(flow.calls) if not call.refusal]
    loss = run_in_stages(model, flow, layers, [0, *possible, len(flow.calls)])
    seed(0)
    expected = loss_with(plain, inputs_of(plain))
    expected.backward()
    assert len(possible) >= 2
    assert torch.equal(loss, expected)
    pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    assert [name for (name, p), q in pairs if not equal(p.grad, q.grad)] == []


def equal(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second or (
        first is not None and second is not None and torch.equal(first, second)
    )


def test_a_tensor_that_goes_past_a_layer_keeps_the_model_whole_there() -> None:
    flow, _ = walked(drawn(FarModel))
    assert [call.refusal for call in flow.calls[2:]] == [
        "a tensor of shape (2, 12, 8) goes past its arguments"
    ] * 2


def test_only_what_is_computed_crosses_a_cut() -> None:
    flow, _ = walked(of_library("llama", LLAMA))
    assert [call.passed for call in flow.calls[1:4]] == [(0,)] * 3
    assert flow.calls[1].forms[0].shape == (2, 12, 16)


@pytest.mark.parametrize(("num_forwards", "has_replicas"), [(1, True), (2, False)])
def test_a_forward_that_uses_gradients_of_earlier_micro_batches_is_refused(
    num_forwards: int, has_replicas: bool
) -> None:
    model = drawn(GradientModel)
    flow, layers = walked(model)
    whole = range(len(flow.calls) + 1)
    stage = StageForward(model, layers, whole, nullcontext, has_replicas=has_replicas)
    stage.begin(flow, [lambda: loss_with(model, inputs_of(model))] * num_forwards, seed)
    with pytest.raises(OpenwaferError, match=r"forward uses the gradient of 'head\.weight', .*\n"):
        stage.run(0, ())
    assert type(model.get_parameter("head.weight")) is nn.Parameter


def test_a_forward_of_one_micro_batch_finds_no_gradient_in_a_stage() -> None:
    model, plain = drawn(GradientModel), drawn(GradientModel)
    flow, layers = walked(model)
    loss = run_in_stages(model, flow, layers, [0, len(flow.calls)])
    seed(0)
    assert torch.equal(loss, loss_with(plain, inputs_of(plain)))


def test_a_generator_that_stays_behind_is_refused() -> None:
    model = drawn(DrawingModel)
    flow, layers = walked(model)
    with pytest.raises(OpenwaferError, match="draws from the generators of Python or NumPy"):
        run_in_stages(model, flow, layers, [0, 2, len(flow.calls)])


def test_a_forward_that_reads_what_it_computed_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="reads a value that it has computed"):
        walked(drawn(ReadingModel))
