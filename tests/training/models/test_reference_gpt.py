"""The reference GPT computes what its sizes say; the transformers library's Llama is the oracle."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import GptConfig, ReferenceGpt, build
from openwafer.training.models.export import state_names, to_hugging_face
from openwafer.training.models.reference_gpt import rotary_tables, rotate

TINY = GptConfig(vocab_size=50, context_length=32, hidden_size=32, num_layers=2, num_heads=4)
VARIANTS = {
    "tied": TINY,
    "untied": replace(TINY, has_tied_embeddings=False),
    "grouped": replace(TINY, num_kv_heads=2, mlp_size=40),
    "far": replace(TINY, rope_theta=500_000.0, norm_eps=1e-3, num_kv_heads=1),
}


def ids(seed: int = 0) -> Tensor:
    return torch.randint(50, (3, 20), generator=torch.Generator().manual_seed(seed))


def twin(model: ReferenceGpt) -> torch.nn.Module:
    """The library's Llama with the same weights."""
    state = model.state_dict()
    files = to_hugging_face(model.config, state_names(model))
    config = transformers.LlamaConfig(**files.json_files["config.json"])
    llama: torch.nn.Module = transformers.LlamaForCausalLM(config)
    renamed = {name: state[own] for own, name in files.names.items()}
    missing, unexpected = llama.load_state_dict(renamed, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return llama


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_loss_are_those_of_llama(config: GptConfig) -> None:
    model = build(config, seed=1)
    assert isinstance(model, ReferenceGpt)
    labels = ids().masked_fill(ids(1) < 10, -100)
    ours, theirs = model(ids(), labels), twin(model)(ids(), labels=labels)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-6, atol=0)


def test_gradients_are_those_of_llama() -> None:
    model = build(VARIANTS["grouped"], seed=1)
    assert isinstance(model, ReferenceGpt)
    llama = twin(model)
    for trained in (model, llama):
        trained(ids(), labels=ids()).loss.backward()
    theirs = dict(llama.named_parameters())
    for own, name in to_hugging_face(model.config, state_names(model)).names.items():
        expected = theirs[name].grad
        torch.testing.assert_close(model.get_parameter(own).grad, expected, rtol=1e-4, atol=1e-6)


def test_a_token_is_not_seen_by_those_before_it() -> None:
    model = build(TINY, seed=0)
    changed = ids()
    changed[:, 12] = (changed[:, 12] + 1) % 50
    first, second = model(ids()).logits, model(changed).logits
    assert torch.equal(first[:, :12], second[:, :12])
    assert not torch.equal(first[:, 12], second[:, 12])


def test_the_loss_is_the_mean_over_the_labels_that_count() -> None:
    labels = ids().masked_fill(ids(1) < 25, -100)
    output = build(TINY, seed=0)(ids(), labels)
    log_p = F.log_softmax(output.logits.double(), dim=-1)
    places = [(b, t) for b in range(3) for t in range(19) if labels[b, t + 1] != -100]
    terms = [-log_p[b, t, labels[b, t + 1]] for b, t in places]
    assert output.loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-6)


def test_a_rotated_product_depends_on_the_distance_alone() -> None:
    cos_TK, sin_TK = rotary_tables(32, TINY, torch.device("cpu"))
    query_K, key_K = torch.randn(2, TINY.head_size, generator=torch.Generator().manual_seed(0))
    query_TK, key_TK = (rotate(x.expand(32, -1), cos_TK, sin_TK) for x in (query_K, key_K))
    product_TT = query_TK @ key_TK.T
    torch.testing.assert_close(product_TT[5:, 5:], product_TT[:-5, :-5], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(product_TT[5:, 0], product_TT[0, 0])


def test_dropout_works_in_training_alone() -> None:
    model = build(replace(TINY, dropout=0.3), seed=0)
    assert not torch.equal(model(ids()).logits, model(ids()).logits)
    model.eval()
    assert torch.equal(model(ids()).logits, build(TINY, seed=0).eval()(ids()).logits)


def test_projections_that_add_to_the_residual_start_smaller() -> None:
    config = replace(TINY, hidden_size=256, num_layers=8, init_std=0.04)
    model = build(config, seed=0)
    std = {name: p.std().item() for name, p in model.named_parameters() if p.ndim == 2}
    expected = {n: 0.01 if n.endswith(("output.weight", "down.weight")) else 0.04 for n in std}
    assert std == pytest.approx(expected, rel=0.02)


def test_tied_embeddings_are_one_parameter() -> None:
    tied, untied = build(TINY, seed=0), build(VARIANTS["untied"], seed=0)
    assert isinstance(tied, ReferenceGpt)
    assert tied.head.weight is tied.embedding.weight
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1


def test_autocast_keeps_the_loss_in_float32() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = build(VARIANTS["grouped"], seed=0)(ids(), ids())
    assert output.loss.dtype == torch.float32
    assert output.logits.dtype == torch.bfloat16


def test_a_model_of_bfloat16_weights_runs_in_bfloat16() -> None:
    model = build(VARIANTS["grouped"], seed=0)
    exact = model(ids(), ids()).loss
    rounded = model.bfloat16()(ids(), ids())
    assert rounded.logits.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.loss, exact, rtol=0.01, atol=0)


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    model = build(replace(TINY, context_length=8), seed=0)
    with pytest.raises(OpenwaferError, match="a sequence of 20 tokens in a context of 8"):
        model(ids())


def test_a_model_without_vocabulary_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"needs a vocabulary size\n.*model\.vocab_size"):
        build(GptConfig(), seed=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 0}, "num_layers: 0 is not a positive number"),
        ({"vocab_size": -1}, "vocab_size: -1 is not a positive number"),
        ({"init_std": float("nan")}, "init_std: nan is not a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta: inf is not a positive number"),
        ({"dropout": 1.0}, r"dropout: 1.0 is not in \[0, 1\)"),
        ({"hidden_size": 30}, "num_heads: 4 heads do not divide hidden_size 30"),
        ({"hidden_size": 36}, "num_heads: 4 heads do not divide hidden_size 36 into heads of an"),
        ({"num_kv_heads": 3}, "num_kv_heads: 3 does not divide num_heads 4"),
    ],
)
def test_impossible_sizes_are_named(sizes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message):
        replace(TINY, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("hidden_size", "units"), [(24, 64), (96, 256), (256, 704), (768, 2048)])
def test_the_mlp_has_eight_thirds_of_the_hidden_size_rounded_up(
    hidden_size: int, units: int
) -> None:
    assert GptConfig(hidden_size=hidden_size).mlp_units == units
