"""What each layer of a pipeline does, counted, beside sums over the modules of the model."""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.step_count import count_layers, count_step
from openwafer.training.models import GptConfig, Task, TransformersModel
from tests.training.session.test_step_count import GPT, LENGTH, LLAMA, RUN

ALBERT = TransformersModel(
    "albert",
    task=Task.MASKED_LM,
    config={
        "hidden_size": 32,
        "embedding_size": 16,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
    },
)


@pytest.mark.parametrize("model", [RUN.model, LLAMA], ids=["gpt", "llama"])
def test_layers_add_up_to_the_step(model: GptConfig) -> None:
    config = replace(RUN, model=model)
    layers, step = count_layers(config), count_step(config)
    assert sum(layer.parameters for layer in layers) == step.parameters
    assert sum(layer.forward_flops for layer in layers) == pytest.approx(step.forward_flops)
    assert sum(layer.backward_flops for layer in layers) == pytest.approx(step.backward_flops)
    left = step.layers * step.layer_activation_bytes + step.other_activation_bytes
    assert sum(layer.activation_bytes for layer in layers) == pytest.approx(left)


def test_a_layer_does_its_own_products_and_hands_on_a_vector() -> None:
    """In 16-bit: 32 features; products of q, k, v, output, gate, up and down, and attention."""
    first, layer, *_, last = count_layers(RUN)
    weights = 32 * (3 * 32 + 32 + 3 * 96)
    assert (layer.name, layer.features, layer.output_bytes) == ("layers.0", 32, 64)
    assert layer.forward_flops == 2 * weights + 4 * LENGTH * 32
    assert (first.name, first.forward_flops, first.output_bytes) == ("input", 0, 64)
    assert (last.name, last.output_bytes) == ("output", 0)


def test_a_head_that_is_the_table_is_held_at_both_ends() -> None:
    tied = count_layers(replace(RUN, model=GPT))
    apart = count_layers(RUN)
    held = [layer.parameters for layer in tied]
    assert held == [layer.parameters for layer in apart]
    assert sum(held) > count_step(replace(RUN, model=GPT)).parameters


def test_layers_of_one_kind_count_alike() -> None:
    """But for the last one, whose frame still holds what it returns."""
    _, *layers, _ = count_layers(RUN)
    kinds = {replace(layer, name="", activation_bytes=0) for layer in layers}
    assert len(kinds) == 1


def test_a_model_that_calls_a_layer_more_than_once_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"the 1 layer that the model repeats 3 times"):
        count_layers(replace(RUN, model=ALBERT))
