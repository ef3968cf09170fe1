"""Tiny configurations of the transformers library's architectures, and of our reference GPT.

Every row builds the same model for the same seed and makes the same batch for the same seed and
size; ``model(**batch)`` returns an output whose ``loss`` is a scalar with a graph.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import transformers
from torch import nn

from tests.training.models import architecture_batches as batches


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Attributes:
        name: short and unique; ends in "-dropout" where every dropout is above 0.
        model_class: class of the transformers library.
        make_batch: keyword arguments of forward for a seed and a batch size.
        config: overrides of the class's config.
        is_tied: a weight is reached by two names or used twice.
        is_moe: has a mixture of experts.
        is_encoder_decoder: has an encoder whose output every decoder layer reads.
        has_stateful_buffers: forward changes buffers, as batch norm does.
        draws_random_numbers: forward in training mode advances the random state.
        skips_layers: forward calls only a random subset of its layers.
        without_gradient: globs over trainable parameters that the loss does not reach.
    """

    name: str
    model_class: str
    make_batch: Callable[[int, int], batches.Batch]
    config: Mapping[str, object] = field(repr=False)
    is_tied: bool = False
    is_moe: bool = False
    is_encoder_decoder: bool = False
    has_stateful_buffers: bool = False
    draws_random_numbers: bool = False
    skips_layers: bool = False
    without_gradient: tuple[str, ...] = ()

    def build(self, seed: int = 0) -> nn.Module:
        """The model in training mode, initialised from ``seed``."""
        torch.manual_seed(seed)
        model_class = getattr(transformers, self.model_class)
        model: nn.Module = model_class(model_class.config_class(**self.config))
        return model.train()

    def batch(self, seed: int = 0, size: int = 2) -> batches.Batch:
        """Keyword arguments of forward; different seeds give different batches."""
        return self.make_batch(seed, size)


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {
    "vocab_size": batches.VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **SPECIAL,
}
DECODER = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
GPT = {
    "vocab_size": batches.VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "use_cache": False,
    **SPECIAL,
}


ARCHITECTURES = (
    Architecture("llama", "LlamaForCausalLM", batches.causal, DECODER),
    Architecture("mistral", "MistralForCausalLM", batches.causal, {**DECODER, "sliding_window": 8}),
    Architecture(
        "qwen2",
        "Qwen2ForCausalLM",
        batches.causal,
        {**DECODER, "tie_word_embeddings": True},
        is_tied=True,
    ),
    Architecture("qwen3", "Qwen3ForCausalLM", batches.causal, {**DECODER, "head_dim": 8}),
    Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        batches.causal,
        {**GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        is_tied=True,
    ),
    Architecture(
        "gpt2-dropout",
        "GPT2LMHeadModel",
        batches.causal,
        {**GPT, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        is_tied=True,
        draws_random_numbers=True,
    ),
    Architecture(
        "gpt-neox",
        "GPTNeoXForCausalLM",
        batches.causal,
        {**TEXT, "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_cache": False},
    ),
    Architecture("phi", "PhiForCausalLM", batches.causal, DECODER),
    Architecture(
        "gemma", "GemmaForCausalLM", batches.causal, {**DECODER, "head_dim": 8}, is_tied=True
    ),
    Architecture("olmo2", "Olmo2ForCausalLM", batches.causal, DECODER),
    Architecture(
        "mixtral",
        "MixtralForCausalLM",
        batches.causal,
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        is_moe=True,
    ),
    Architecture(
        "bert",
        "BertForMaskedLM",
        batches.masked,
        {**TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        is_tied=True,
    ),
)
