"""Squared norms of examples' gradients, measured in one backward, against a backward an example."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from openwafer.training.noise_scale import PerExampleNorms, Watched
from tests.training.noise_scale.per_example_models import (
    LENGTHS,
    MODELS,
    NORMS_ONLY,
    NUM_TOKENS,
    Inputs,
    batch_for,
    build,
    norms_by_example,
)

TOLERANCE = 1e-4
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
every_model = pytest.mark.parametrize(
    "make", [*MODELS.values(), *NORMS_ONLY.values()], ids=[*MODELS, *NORMS_ONLY]
)


def measured(model: nn.Module, batch: Inputs, watched: Watched) -> dict[str, torch.Tensor]:
    norms = PerExampleNorms(model, len(batch["labels"]), watched)
    with norms.measuring() as examples:
        loss = model(**batch).loss
    loss.backward()
    norms.close()
    assert examples.by_name.keys() == set(norms.names)
    return examples.by_name


@models
def test_norms_of_all_weights_equal_those_of_one_backward_an_example(
    make: Callable[[], nn.Module],
) -> None:
    model = build(make)
    batch = batch_for(model)
    expected = norms_by_example(model, batch)
    found = measured(model, batch, Watched.ALL)
    assert found.keys() == expected.keys()
    for name, squares in found.items():
        torch.testing.assert_close(squares.double(), expected[name], rtol=TOLERANCE, atol=1e-12)
    assert all(squares.min() > 0 for squares in expected.values())


@every_model
def test_norms_of_normalisation_layers_alone_equal_those_of_one_backward_an_example(
    make: Callable[[], nn.Module],
) -> None:
    model = build(make)
    batch = batch_for(model)
    expected = norms_by_example(model, batch)
    found = measured(model, batch, Watched.NORMS)
    vectors = {n for n, weight in model.named_parameters() if "norm" in n.lower() or "ln_" in n}
    assert found.keys() == vectors
    for name, squares in found.items():
        torch.testing.assert_close(squares.double(), expected[name], rtol=TOLERANCE, atol=1e-12)


@every_model
@pytest.mark.parametrize("watched", Watched)
def test_gradients_keep_their_bits_while_norms_are_measured(
    make: Callable[[], nn.Module], watched: Watched
) -> None:
    model = build(make)
    if watched is Watched.ALL and make in NORMS_ONLY.values():
        watched = Watched.NORMS
    batch = batch_for(model)
    model(**batch).loss.backward()
    plain = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    measured(model, batch, watched)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, plain[name], rtol=0, atol=0)
    assert None not in plain.values()


def test_norms_are_those_of_the_loss_that_backward_starts_from() -> None:
    """Backward from three times the loss has norms nine times as large."""
    model = build(MODELS["llama-untied"])
    batch = batch_for(model)
    once = measured(model, batch, Watched.NORMS)
    norms = PerExampleNorms(model, len(LENGTHS), Watched.NORMS)
    with norms.measuring() as examples:
        loss = 3 * model(**batch).loss
    loss.backward()
    for name, squares in examples.by_name.items():
        torch.testing.assert_close(squares, 9 * once[name])


def test_an_example_of_a_batch_of_equal_lengths_has_its_own_gradient_over_their_number() -> None:
    model = build(MODELS["gpt2-tied"])
    batch = batch_for(model, (NUM_TOKENS,) * 4)
    found = measured(model, batch, Watched.ALL)
    alone = {name: each[:1] for name, each in batch.items()}
    own = norms_by_example(model, alone)
    for name, squares in found.items():
        torch.testing.assert_close(16 * squares[:1].double(), own[name], rtol=TOLERANCE, atol=0)


def test_total_sums_over_the_parameters_that_have_a_gradient() -> None:
    model = build(MODELS["llama-tied"])
    batch = batch_for(model)
    expected = norms_by_example(model, batch)
    norms = PerExampleNorms(model, len(LENGTHS), Watched.ALL)
    with norms.measuring() as examples:
        loss = model(**batch).loss
    loss.backward()
    wanted = torch.stack([*expected.values()]).sum(0)
    torch.testing.assert_close(examples.total(norms.names), wanted, rtol=TOLERANCE, atol=0)


def test_weights_that_are_not_trained_are_not_measured() -> None:
    model = build(MODELS["llama-untied"])
    batch = batch_for(model)
    for name, weight in model.named_parameters():
        weight.requires_grad_("mlp" in name)
    found = measured(model, batch, Watched.ALL)
    assert found.keys() == {n for n, w in model.named_parameters() if w.requires_grad}


def test_hooks_are_gone_once_closed() -> None:
    model = build(MODELS["reference"])
    batch = batch_for(model)
    norms = PerExampleNorms(model, len(LENGTHS), Watched.ALL)
    norms.close()
    with norms.measuring() as examples:
        loss = model(**batch).loss
    loss.backward()
    assert examples.by_name == {}
