"""The reference GPT at a size that trains in milliseconds, with dropout."""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from tests.training.stream.both_loops import Run

VOCABULARY = 512
CONFIG = GptConfig(
    vocab_size=VOCABULARY,
    context_length=16,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    mlp_size=32,
    has_tied_embeddings=False,
    dropout=0.1,
)
TIED = GptConfig(**{**vars(CONFIG), "has_tied_embeddings": True})


def build_gpt(config: GptConfig = CONFIG) -> ReferenceGpt:
    torch.manual_seed(0)
    return ReferenceGpt(config)


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)


def draw_tokens(generator: torch.Generator) -> Tensor:
    """A batch of 2 sequences of 16 tokens."""
    return torch.randint(0, VOCABULARY, (2, 16), generator=generator)


def gpt_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    loss: Tensor = model(tokens, labels=tokens).loss
    return loss


@cache
def gpt_run(
    *,
    num_steps: int = 20,
    num_micro_batches: int = 1,
    clips: bool = False,
    is_tied: bool = False,
    optimize: Callable[[nn.Module], Optimizer] = adamw,
) -> Run:
    """A run on random tokens; the norm it clips to is about half of what gradients have."""
    return Run(
        partial(build_gpt, TIED if is_tied else CONFIG),
        optimize,
        draw_tokens,
        gpt_loss,
        num_steps=num_steps,
        num_micro_batches=num_micro_batches,
        clip_norm=0.5 if clips else None,
    )
