"""Every kind of description leads to a model, or to an error that says why not."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openwafer import config
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.models import (
    CheckpointFolder,
    GptConfig,
    ModelConfig,
    ReferenceGpt,
    Task,
    TransformersModel,
    UserModule,
    build,
)
from openwafer.training.models.build import with_vocab_size
from tests.tables import some
from tests.training.architectures import ARCHITECTURES

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@dataclass(frozen=True)
class Run:
    model: ModelConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {hidden_size: 64, num_heads: 2}", GptConfig(hidden_size=64, num_heads=2)),
        ("model: {kind: reference-gpt}", GptConfig()),
        (
            "model: {architecture: bert, task: masked-lm, config: {hidden_size: 64}}",
            TransformersModel("bert", task=Task.MASKED_LM, config={"hidden_size": 64}),
        ),
        ("model: {path: runs/a}", CheckpointFolder(Path("runs/a"))),
        ("model: {factory: 'a.b:c', kwargs: {n: 3}}", UserModule("a.b:c", kwargs={"n": 3})),
    ],
)
def test_yaml_describes_every_kind(text: str, expected: ModelConfig) -> None:
    assert config.parse(SourceText("run.yaml", text), Run).model == expected


def test_the_same_seed_gives_the_same_weights_in_training_mode() -> None:
    gpt = GptConfig(vocab_size=32, hidden_size=16, num_layers=2, num_heads=2, dropout=0.1)
    first, again, other = (build(gpt, seed).state_dict() for seed in (1, 1, 2))
    assert isinstance(build(gpt, 1), ReferenceGpt)
    assert build(gpt, 1).training
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize("architecture", ["llama", "LlamaForCausalLM"])
def test_weights_are_those_the_library_itself_draws(architecture: str) -> None:
    ours = build(TransformersModel(architecture, config=SIZES), seed=5).state_dict()
    torch.manual_seed(5)
    library_config = transformers.AutoConfig.for_model("llama", **SIZES)
    theirs = transformers.AutoModelForCausalLM.from_config(library_config).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("model_type", "task", "expected"),
    [
        ("gpt2", Task.CAUSAL_LM, "GPT2LMHeadModel"),
        ("gpt2", Task.SEQUENCE_CLASSIFICATION, "GPT2ForSequenceClassification"),
        ("bert", Task.MASKED_LM, "BertForMaskedLM"),
    ],
)
def test_the_task_chooses_the_head(model_type: str, task: Task, expected: str) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = build(TransformersModel(model_type, task=task, config=sizes), seed=0)
    assert type(model).__name__ == expected


def test_forward_attends_by_the_fast_kernel_and_keeps_no_cache() -> None:
    model = build(TransformersModel("llama", config=SIZES), seed=0)
    output = model(input_ids=torch.arange(8).unsqueeze(0))
    assert output.past_key_values is None
    assert attention_of(model) == "sdpa"


def test_the_parts_of_a_model_keep_no_cache_either() -> None:
    llava = next(row for row in ARCHITECTURES if row.name == "llava")
    assert llava.build()(**llava.batch()).past_key_values is None


def test_attention_can_be_chosen() -> None:
    eager = TransformersModel("llama", config={**SIZES, "attn_implementation": "eager"})
    assert attention_of(build(eager, seed=0)) == "eager"


def attention_of(model: Any) -> str:
    name: str = model.config._attn_implementation  # noqa: SLF001
    return name


def refusal(description: ModelConfig) -> str:
    with pytest.raises(OpenwaferError, match="error") as caught:
        build(description, seed=0)
    return str(caught.value)


def test_a_misspelt_architecture_is_told_the_closest() -> None:
    text = refusal(TransformersModel("LlamaForCasualLM"))
    assert "no architecture 'LlamaForCasualLM'" in text
    assert "did you mean 'LlamaForCausalLM'?" in text


@pytest.mark.parametrize(
    "name", some(["AutoTokenizer", "LlamaPreTrainedModel", "models"], "LlamaPreTrainedModel")
)
def test_a_name_of_the_library_that_is_no_model_is_refused(name: str) -> None:
    assert f"no architecture '{name}'" in refusal(TransformersModel(name))


def test_a_task_without_head_is_told_the_tasks_that_have_one() -> None:
    text = refusal(TransformersModel("vit"))
    assert "vit has no head for causal-lm" in text
    assert "it has heads for: image-classification" in text


def test_a_misspelt_key_is_told_the_closest() -> None:
    text = refusal(TransformersModel("llama", config={"hiden_size": 64}))
    assert "LlamaConfig has no key 'hiden_size'" in text
    assert "did you mean 'hidden_size'?" in text


def test_a_misspelt_key_of_a_part_is_found() -> None:
    parts = {"text_config": {"model_type": "llama", "hiden_size": 64}}
    text = refusal(TransformersModel("LlavaForConditionalGeneration", config=parts))
    assert "LlamaConfig has no key 'hiden_size'" in text


def test_an_unknown_part_is_refused() -> None:
    parts = {"text_config": {"model_type": "lama"}}
    text = refusal(TransformersModel("LlavaForConditionalGeneration", config=parts))
    assert "Unrecognized model type for subconfig: lama" in text


def test_a_description_stays_what_it_was() -> None:
    rope = {"rope_theta": 5e5}
    build(TransformersModel("llama", config={**SIZES, "rope_parameters": rope}), seed=0)
    assert rope == {"rope_theta": 5e5}


def test_a_value_of_the_wrong_type_is_shown() -> None:
    text = refusal(TransformersModel("llama", config={"hidden_size": "wide"}))
    assert "LlamaForCausalLM refuses this config" in text
    assert "hidden_size: 'wide'" in text


@pytest.mark.parametrize(
    ("architecture", "config"),
    [("llama", {"num_hidden_layers": -2}), ("llava", {"text_config": {"n_layer": -1}})],
)
def test_a_negative_size_makes_no_empty_model(architecture: str, config: dict[str, Any]) -> None:
    task = Task.IMAGE_TEXT_TO_TEXT if architecture == "llava" else Task.CAUSAL_LM
    text = refusal(TransformersModel(architecture, task, config=config))
    assert re.search(r"model-config.*layer.*: expected at least 0, found -", text)


def test_sizes_that_do_not_divide_are_refused_with_the_values() -> None:
    text = refusal(TransformersModel("bert", Task.MASKED_LM, config={"num_attention_heads": 7}))
    assert "BertForMaskedLM refuses this config" in text
    assert "num_attention_heads: 7" in text


def test_the_vocabulary_follows_the_tokenizer_where_it_is_open() -> None:
    assert with_vocab_size(GptConfig(), 77) == GptConfig(vocab_size=77)
    filled = with_vocab_size(TransformersModel("bert", task=Task.MASKED_LM), 77)
    assert filled == TransformersModel("bert", task=Task.MASKED_LM, config={"vocab_size": 77})


@pytest.mark.parametrize(
    "settled",
    [
        GptConfig(vocab_size=80),
        TransformersModel("bert", task=Task.MASKED_LM, config={"vocab_size": 80}),
        TransformersModel("vit", task=Task.IMAGE_CLASSIFICATION),
        CheckpointFolder(Path("x")),
        UserModule("a:b"),
    ],
)
def test_a_settled_vocabulary_stays(settled: ModelConfig) -> None:
    assert with_vocab_size(settled, 77) == settled


def test_a_language_model_has_the_special_tokens_described_and_no_others() -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    phi = TransformersModel("phi3", config={**sizes, "eos_token_id": 2})
    model: Any = build(with_vocab_size(phi, 77), seed=0)
    assert model.config.vocab_size == 77
    assert (model.config.pad_token_id, model.config.eos_token_id) == (None, 2)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="the model knows 50 token ids, the tokenizer 77"):
        with_vocab_size(GptConfig(vocab_size=50), 77)
