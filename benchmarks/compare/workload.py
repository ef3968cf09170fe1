"""The training job that every system of the comparison runs: model, batches, loss, optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Workload:
    """A decoder-only transformer in fp32 under AdamW.

    Attributes:
        layers, hidden, intermediate, heads, vocabulary: sizes of the Llama config.
        sequences, tokens_per_sequence: one batch, which is one step.
        clip_norm: clip by the global norm, or ``None``.
        num_threads: threads of the computation.
        seed: of weights and tokens.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    sequences: int
    tokens_per_sequence: int
    clip_norm: float | None = None
    num_threads: int = 2
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.sequences * self.tokens_per_sequence

    def __str__(self) -> str:
        clip = "no clipping" if self.clip_norm is None else f"clipped at {self.clip_norm}"
        return (
            f"Llama, {self.layers} layers of {self.hidden}, MLP {self.intermediate}, "
            f"vocabulary {self.vocabulary}, {self.sequences} x {self.tokens_per_sequence} "
            f"tokens a step, fp32, AdamW, {clip}"
        )


# Of AdamW, by the names that torch and DeepSpeed share.
ADAMW: Mapping[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def build_model(workload: Workload) -> LlamaForCausalLM:
    """The model, initialised by its own code under the workload's seed."""
    torch.manual_seed(workload.seed)
    config = LlamaConfig(
        num_hidden_layers=workload.layers,
        hidden_size=workload.hidden,
        intermediate_size=workload.intermediate,
        num_attention_heads=workload.heads,
        num_key_value_heads=workload.heads,
        vocab_size=workload.vocabulary,
        max_position_embeddings=workload.tokens_per_sequence,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).train()


def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW over all parameters, in torch's fused form."""
    return torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)


def model_of(**workload: Any) -> torch.nn.Module:
    """The model of a workload, given by its fields: the factory that a run's config names."""
    return build_model(Workload(**workload))


def loss_of(model: torch.nn.Module, tokens: object) -> torch.Tensor:
    """Mean cross-entropy of the next token in a batch."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def plain_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    clip_norm: float | None,
) -> float:
    """The loss of one step of the plain PyTorch loop."""
    loss = loss_of(model, tokens)
    loss.backward()
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
