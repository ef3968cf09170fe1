"""BTLM (arXiv 2309.11568) of the parts of the reference GPT, with ALiBi in its attention.

Shapes: B batch, T tokens, D hidden, H heads, K size of one head, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.training.models import GptConfig
from openwafer.training.models.reference_gpt import (
    GptOutput,
    Mlp,
    Projection,
    TokenEmbedding,
    residual_std,
)

STEEPEST = 8
"""The last head's slope is 2**-8, whatever the number of heads (arXiv 2108.12409, section 3)."""


class Btlm(nn.Module):
    """A decoder that knows positions by distance alone; a sequence may have any length."""

    def __init__(
        self, vocab_size: int, hidden_size: int, mlp_size: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        config = GptConfig(
            hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, mlp_size=mlp_size
        )
        self.embedding = TokenEmbedding(vocab_size, hidden_size, config.init_std)
        self.layers = nn.ModuleList(BtlmLayer(config) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = Projection(hidden_size, vocab_size, config.init_std)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> GptOutput:
        """Predict each next token of ``input_ids`` (B, T); ``labels`` are shifted here."""
        x_BTD = self.embedding(input_ids)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return GptOutput.of(self.head(self.norm(x_BTD)), labels)


class BtlmLayer(nn.Module):
    """Attention, then SwiGLU, each on a normalised input and added to the residual."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        size, std = config.hidden_size, config.init_std
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(size)
        self.query = Projection(size, size, std)
        self.key = Projection(size, size, std)
        self.value = Projection(size, size, std)
        self.output = Projection(size, size, residual_std(config))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp = Mlp(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the residual after this layer."""
        x_BTD = x_BTD + self._attended(self.attention_norm(x_BTD))
        mapped_BTD: Tensor = self.mlp(self.mlp_norm(x_BTD))
        return x_BTD + mapped_BTD

    def _attended(self, x_BTD: Tensor) -> Tensor:
        bias_HTT = distance_bias(self.num_heads, x_BTD.shape[1], x_BTD.device)
        mixed_BHTK = F.scaled_dot_product_attention(
            self._heads(self.query(x_BTD)),
            self._heads(self.key(x_BTD)),
            self._heads(self.value(x_BTD)),
            attn_mask=bias_HTT.type_as(x_BTD),
        )
        attended_BTD: Tensor = self.output(mixed_BHTK.transpose(1, 2).flatten(2))
        return attended_BTD

    def _heads(self, x_BTD: Tensor) -> Tensor:
        x_BTHK: Tensor = x_BTD.unflatten(2, (self.num_heads, -1))
        return x_BTHK.transpose(1, 2)


def distance_bias(num_heads: int, num_tokens: int, device: torch.device) -> Tensor:
    """What ALiBi adds to the scores of each head, (H, T, T): less, the further a key lies back.

    Minus infinity hides the tokens behind.
    """
    slopes_H = 2.0 ** (-STEEPEST / num_heads * torch.arange(1, num_heads + 1, device=device))
    position_T = torch.arange(num_tokens, device=device)
    back_TT = position_T[:, None] - position_T
    bias_HTT = -slopes_H[:, None, None] * back_TT
    return bias_HTT.masked_fill(back_TT < 0, float("-inf"))
