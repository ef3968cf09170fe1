"""The training job that every system of the comparison runs: model, batches, loss, optimizer."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Workload:
    """A decoder-only transformer under AdamW.

    Attributes:
        layers, hidden, intermediate, heads, vocabulary: sizes of the Llama config.
        sequences, tokens_per_sequence: one batch, which is one step.
        clip_norm: clip by the global norm, or ``None``.
        num_threads: threads of the computation.
        seed: of weights and tokens.
        micro_batch: sequences that are computed at once, or ``None`` for all.
        device: where it is computed, as torch names it.
        weights: "fp32", or "bf16" with fp32 masters, which are updated.
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
    micro_batch: int | None = None
    device: str = "cpu"
    weights: str = "fp32"

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.sequences * self.tokens_per_sequence

    def __str__(self) -> str:
        clip = "no clipping" if self.clip_norm is None else f"clipped at {self.clip_norm}"
        return (
            f"Llama, {self.layers} layers of {self.hidden}, MLP {self.intermediate}, "
            f"vocabulary {self.vocabulary}, {self.sequences} x {self.tokens_per_sequence} "
            f"tokens a step, {self.weights}, AdamW, {clip}"
        )


# Of AdamW, by the names that torch and DeepSpeed share.
ADAMW: Mapping[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def build_model(workload: Workload) -> LlamaForCausalLM:
    """The model in host memory, initialised by its own code under the workload's seed.

    It is made on the workload's device, where random numbers take seconds less a billion.
    """
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
    where = nullcontext() if workload.device == "cpu" else torch.device(workload.device)
    with where:
        model = LlamaForCausalLM(config).train()
    return model.cpu()


def model_of(**workload: Any) -> torch.nn.Module:
    """The model of a workload, given by its fields: the factory that a run's config names."""
    return build_model(Workload(**workload))


def loss_of(model: torch.nn.Module, tokens: object) -> torch.Tensor:
    """Mean cross-entropy of the next token in a batch."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


class PlainLoop:
    """The plain PyTorch loop, with torch's fused AdamW.

    Args:
        model: where it is to be computed; its weights become bf16 here, if the workload has such.
        workload: the job.
    """

    def __init__(self, model: torch.nn.Module, workload: Workload) -> None:
        self._model, self._workload = model, workload
        self._masters: list[torch.Tensor] = []
        if workload.weights == "bf16":
            for weight in model.parameters():
                self._masters.append(weight.detach().clone())
                weight.data = weight.data.bfloat16()
        self._updated = self._masters or [*model.parameters()]
        self._optimizer = torch.optim.AdamW(self._updated, fused=True, **ADAMW)

    def step(self, tokens: torch.Tensor) -> float:
        """The loss of one step."""
        work = self._workload
        losses = []
        parts = tokens.to(work.device).split(work.micro_batch or len(tokens))
        for part in parts:
            loss = loss_of(self._model, part) / len(parts)
            loss.backward()
            losses.append(loss.detach())
        pairs = [*zip(self._masters, self._model.parameters(), strict=False)]
        for master, weight in pairs:
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        if work.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._updated, work.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for master, weight in pairs:
            weight.data.copy_(master)
        return torch.stack(losses).sum().item()
