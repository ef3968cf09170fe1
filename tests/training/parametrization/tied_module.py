"""A model of a user's own whose head is its table of embeddings, with no norm between."""

import torch.nn.functional as F
from torch import Tensor, nn


class TiedModule(nn.Module):
    """Predicts the next token from the present one."""

    def __init__(self, vocab_size: int = 300, size: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, size)
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.head = nn.Linear(size, vocab_size, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the loss of the next tokens where labels are given."""
        x = self.table(input_ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}
