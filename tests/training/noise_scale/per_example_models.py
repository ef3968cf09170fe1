"""Small models, batches, and each example's gradients by one backward an example."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.models import GptConfig, ReferenceGpt

VOCABULARY = 61
SIZE, NUM_HEADS, NUM_LAYERS = 32, 2, 2
NUM_EXAMPLES, NUM_TOKENS = 4, 12
LENGTHS = (12, 7, 3, 9)

Inputs = Mapping[str, Tensor]


def library_sizes(**more: object) -> dict[str, object]:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": SIZE,
        "intermediate_size": 48,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
    }
    return {**sizes, **more}


def gpt2(*, is_tied: bool) -> nn.Module:
    sizes = {"n_embd": SIZE, "n_layer": NUM_LAYERS, "n_head": NUM_HEADS, "n_positions": 16}
    config = GPT2Config(vocab_size=VOCABULARY, tie_word_embeddings=is_tied, **sizes)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(config, name, 0.0)
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def reference() -> nn.Module:
    config = GptConfig(
        vocab_size=VOCABULARY,
        context_length=16,
        hidden_size=SIZE,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS,
    )
    return ReferenceGpt(config)


def library(
    model: type[nn.Module], config: type[PretrainedConfig], **more: object
) -> Callable[[], nn.Module]:
    return lambda: model(config(**library_sizes(**more)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2-tied": lambda: gpt2(is_tied=True),
    "gpt2-untied": lambda: gpt2(is_tied=False),
    "llama-untied": library(LlamaForCausalLM, LlamaConfig, tie_word_embeddings=False),
    "llama-tied": library(LlamaForCausalLM, LlamaConfig, tie_word_embeddings=True),
    "llama-biased": library(LlamaForCausalLM, LlamaConfig, attention_bias=True, mlp_bias=True),
    "qwen3-heads-normalised": library(Qwen3ForCausalLM, Qwen3Config, head_dim=16),
    "reference": reference,
}
NORMS_ONLY: dict[str, Callable[[], nn.Module]] = {
    "gemma-adds-1": library(GemmaForCausalLM, GemmaConfig, head_dim=16),
    "bert": library(
        BertForMaskedLM, BertConfig, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ),
}


def build(make: Callable[[], nn.Module]) -> nn.Module:
    """A model whose weights are of one order, so that no part of a gradient is lost in rounding."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model.train()


def batch_for(model: nn.Module, lengths: tuple[int, ...] = LENGTHS) -> Inputs:
    """Examples of these lengths, padded with token 0 where they are shorter than the longest."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(lengths), NUM_TOKENS)
    ids_BT = torch.randint(1, VOCABULARY, shape, generator=generator)
    mask_BT = torch.arange(NUM_TOKENS)[None] < torch.tensor(lengths)[:, None]
    ids_BT = ids_BT.masked_fill(~mask_BT, 0)
    batch = {"input_ids": ids_BT, "labels": ids_BT.masked_fill(~mask_BT, IGNORED_LABEL)}
    if not isinstance(model, ReferenceGpt):
        batch["attention_mask"] = mask_BT.long()
    return batch


def num_targets(model: nn.Module, labels_BT: Tensor) -> int:
    """A causal model has no prediction of the first token."""
    counted = labels_BT if isinstance(model, BertForMaskedLM) else labels_BT[:, 1:]
    return int((counted != IGNORED_LABEL).sum())


def norms_by_example(model: nn.Module, batch: Inputs) -> dict[str, Tensor]:
    """Squared norms of each example's part of the batch's gradient, by a backward an example.

    An example alone has the mean over its own targets; its part has their share of all targets.
    """
    total = num_targets(model, batch["labels"])
    rows: dict[str, list[Tensor]] = {}
    for index in range(batch["labels"].shape[0]):
        one = {name: each[index : index + 1] for name, each in batch.items()}
        model.zero_grad(set_to_none=True)
        (model(**one).loss * num_targets(model, one["labels"]) / total).backward()
        for name, weight in model.named_parameters():
            gradient = torch.zeros(1) if weight.grad is None else weight.grad
            rows.setdefault(name, []).append(gradient.double().square().sum())
    model.zero_grad(set_to_none=True)
    return {name: torch.stack(squares) for name, squares in rows.items()}
