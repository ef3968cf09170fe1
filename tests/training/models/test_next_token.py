"""Which models a run on texts takes, beside what each does with a text."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import CheckpointFolder, Task, TransformersModel
from openwafer.training.models.loss import require_text_loss, why_not_next_token
from tests.tables import case

NONE_OF_TEXTS = [
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "ViTForImageClassification",
    "Wav2Vec2ForCTC",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
]
SIZES = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "emb_dim", "dim_model", "num_buckets"), 32
    ),
    **dict.fromkeys(("intermediate_size", "decoder_ffn_dim", "encoder_ffn_dim", "d_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    "encoder_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "embedding_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0,
}
# Of each: the class that the library takes for a causal language model.
BY_DEFAULT = "bert bart xlnet gpt2 llama gpt_neox".split()  # noqa: SIM905
SLOW = """bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert cpmant
    data2vec-text electra ernie gpt_neox_japanese marian mbart megatron-bert mvp pegasus plbart
    rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm xlm-roberta
    xlm-roberta-xl opt bloom mistral qwen3 gemma olmo2 mamba""".split()  # noqa: SIM905 - a list


def saved(folder: Path, architecture: str, **config: Any) -> CheckpointFolder:
    """A folder as such a model's is, without weights."""
    model_class = getattr(transformers, architecture)
    model_class.config_class(architectures=[architecture], **config).save_pretrained(folder)
    return CheckpointFolder(folder)


def refusal(description: CheckpointFolder | TransformersModel) -> str:
    with pytest.raises(OpenwaferError) as found:
        require_text_loss(description)
    return str(found.value)


@pytest.mark.parametrize("architecture", NONE_OF_TEXTS)
def test_a_folder_of_another_kind_is_told_what_it_holds(architecture: str, tmp_path: Path) -> None:
    text = refusal(saved(tmp_path, architecture))
    assert f"error[model-task]: {tmp_path} holds {architecture} (model type " in text
    assert "a run on texts trains causal language models, and this is none" in text
    assert "in a loop of your own, by openwafer.stream_weights" in text


def test_another_head_of_a_language_model_is_told_the_task(tmp_path: Path) -> None:
    folder = saved(tmp_path, "LlamaForSequenceClassification")
    assert "set model.task: causal-lm, which takes LlamaForCausalLM" in refusal(folder)
    require_text_loss(CheckpointFolder(tmp_path, task=Task.CAUSAL_LM))


def test_an_encoder_is_taken_where_it_decodes(tmp_path: Path) -> None:
    assert "with is_decoder: false each token sees the next one" in refusal(
        saved(tmp_path, "BertLMHeadModel")
    )
    require_text_loss(saved(tmp_path, "BertLMHeadModel", is_decoder=True))
    require_text_loss(TransformersModel("bert", config={"is_decoder": True}))


def test_an_architecture_is_told_as_a_folder_is() -> None:
    assert "model describes ElectraForMaskedLM (model type electra): a run on texts" in refusal(
        TransformersModel("electra", Task.MASKED_LM)
    )


def test_with_masking_a_masked_language_model_is_taken_and_no_other(tmp_path: Path) -> None:
    electra = TransformersModel("electra", Task.MASKED_LM)
    require_text_loss(electra, Task.MASKED_LM)
    assert "set data.masking for a masked one" in refusal(electra)
    with pytest.raises(OpenwaferError, match=r"data\.masking trains masked language models, and"):
        require_text_loss(saved(tmp_path, "LlamaForCausalLM"), Task.MASKED_LM)


def test_with_spans_left_out_a_model_of_two_texts_is_taken_and_no_other() -> None:
    t5 = TransformersModel("t5", Task.SEQ2SEQ_LM)
    require_text_loss(t5, Task.SEQ2SEQ_LM)
    assert "set data.span_corruption for such a model" in refusal(t5)
    with pytest.raises(OpenwaferError, match=r"data\.span_corruption trains models of an encoder"):
        require_text_loss(TransformersModel("llama"), Task.SEQ2SEQ_LM)


def tiny(model_type: str, **more: object) -> Any:
    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[model_type]]
    config_class = model_class.config_class
    known = set(inspect.signature(config_class.__init__).parameters) | {*config_class.attribute_map}
    config = config_class(**{name: size for name, size in SIZES.items() if name in known}, **more)
    torch.manual_seed(0)
    return model_class(config).eval()


def predicts_next(model: Any) -> bool:
    """Whether no token sees the next one, and the loss compares it with that."""
    ids = torch.arange(5, 17).reshape(1, 12)
    other = ids.clone()
    other[0, -1] = 90
    with torch.no_grad():
        output, changed = model(input_ids=ids, labels=ids), model(input_ids=other)
    is_causal = torch.allclose(output.logits[:, :-1], changed.logits[:, :-1], atol=1e-6)
    expected = F.cross_entropy(output.logits[0, :-1], ids[0, 1:])
    return is_causal and torch.allclose(output.loss, expected, atol=1e-3)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        *(case(name, {}, by_default=name in BY_DEFAULT) for name in (*BY_DEFAULT, *SLOW)),
        *(
            case(name, {"is_decoder": True}, by_default=name == "bert")
            for name in ("bert", "roberta")
        ),
    ],
)
def test_a_model_is_refused_where_it_predicts_no_next_token(
    model_type: str, more: dict[str, object]
) -> None:
    model = tiny(model_type, **more)
    reason = why_not_next_token(type(model), is_decoder=bool(more))
    assert (reason is None) == predicts_next(model)
