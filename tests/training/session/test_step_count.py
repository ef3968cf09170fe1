"""What a step is made of, counted, beside sums over the modules of the model."""

from dataclasses import replace

import pytest
from torch import nn

from openwafer.training.data import DataSource, SourceKind
from openwafer.training.methods.step_count import count_step
from openwafer.training.models import GptConfig, TransformersModel
from openwafer.training.models.build import build_without_weights, with_vocab_size
from openwafer.training.noise_scale import Watched
from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.building import expected_vocab_size
from openwafer.training.session.config_sections import BatchConfig, TokensConfig
from tests.cli.command import EXAMPLES

LENGTH = 64
GPT = GptConfig(
    hidden_size=32, num_layers=3, num_heads=4, mlp_size=96, context_length=LENGTH, dropout=0.0
)
LLAMA = TransformersModel(
    "llama",
    config={
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
)
RUN = RunConfig(
    steps=10,
    data=TokensConfig(DataSource(SourceKind.STANDARD_LIBRARY)),
    model=replace(GPT, has_tied_embeddings=False),
    batch=BatchConfig(size=6, sequence_length=LENGTH),
)


def linear_weights(config: RunConfig) -> int:
    model = build_without_weights(with_vocab_size(config.model, expected_vocab_size(config)), 0)
    assert model is not None
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


@pytest.mark.parametrize("model", [RUN.model, LLAMA], ids=["gpt", "llama"])
def test_a_forward_is_its_linear_modules_and_its_attention(model: GptConfig) -> None:
    config = replace(RUN, model=model)
    count = count_step(config)
    attention = 4 * LENGTH * 32 * 3
    assert count.forward_flops == 2 * linear_weights(config) + attention


def test_a_backward_is_two_products_a_weight_and_attention_made_again() -> None:
    """Attention's backward makes five products of the forward's two."""
    count = count_step(RUN)
    attention = 4 * LENGTH * 32 * 3
    assert count.backward_flops == 4 * linear_weights(RUN) + 2.5 * attention


@pytest.mark.parametrize("model", [RUN.model, LLAMA], ids=["gpt", "llama"])
def test_the_layers_that_a_model_repeats_are_counted(model: GptConfig) -> None:
    count = count_step(replace(RUN, model=model))
    assert (count.layers, count.width) == (3, 32)


def test_what_a_token_leaves_does_not_depend_on_the_batch() -> None:
    one, many = (count_step(replace(RUN, batch=BatchConfig(n, LENGTH))) for n in (1, 64))
    assert one == many


def test_a_deeper_model_leaves_the_same_in_each_layer() -> None:
    deep = replace(RUN, model=replace(GPT, has_tied_embeddings=False, num_layers=6))
    counts = count_step(RUN), count_step(deep)
    assert counts[1].layers == 6
    assert counts[0].layer_activation_bytes == counts[1].layer_activation_bytes
    assert counts[0].other_activation_bytes == pytest.approx(counts[1].other_activation_bytes)


def test_a_layer_leaves_at_least_what_its_products_need() -> None:
    """In 16-bit: inputs of q, k, v together, of the output, of up, and of down."""
    least = 2 * (32 + 3 * 32 + 32 + 32 + 96)
    assert least < count_step(RUN).layer_activation_bytes < 6 * least


def test_sparse_weights_are_counted_as_if_dense_with_their_mean_sparsity() -> None:
    static, growing = (
        count_step(load_config(EXAMPLES / f"sparse-{name}.yaml")) for name in ("rigl", "gmp")
    )
    assert static.sparsity == pytest.approx(0.9)
    assert 0.3 < growing.sparsity < 0.9
    assert static.sparse_parameters == growing.sparse_parameters < static.parameters
    assert static.forward_flops == growing.forward_flops


def test_a_run_that_measures_its_noise_is_counted() -> None:
    assert count_step(replace(RUN, noise_scale=Watched.NORMS)) == count_step(RUN)
