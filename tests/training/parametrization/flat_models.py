"""A transformer of a user's own whose maps are all children of the model itself."""

import torch.nn.functional as F
from torch import Tensor, nn


class FlatTransformer(nn.Module):
    """One layer of attention and an MLP, whose sizes follow the width unless they are given."""

    def __init__(
        self,
        vocab_size: int = 50,
        size: int = 32,
        num_heads: int = 4,
        key_heads: int | None = None,
        mlp_size: int | None = None,
        *,
        is_tied: bool = False,
    ) -> None:
        super().__init__()
        self.head_size = size // num_heads
        key_size = self.head_size * (key_heads or num_heads)
        self.table, self.norm = nn.Embedding(vocab_size, size), nn.LayerNorm(size)
        self.query, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.key, self.value = nn.Linear(size, key_size), nn.Linear(size, key_size)
        self.up = nn.Linear(size, mlp_size or 4 * size)
        self.down = nn.Linear(mlp_size or 4 * size, size)
        self.head = nn.Linear(size, vocab_size, bias=False)
        if is_tied:
            self.head.weight = self.table.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        x = self.table(input_ids)
        y = self.norm(x)
        queries, keys, values = (
            by(y).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for by in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(x)))
        return {"loss": F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())}
