"""A language model of gated recurrent layers, for own-module.yaml."""

from torch import Tensor, nn


class Recurrent(nn.Module):
    """Predicts the next token from the state that the tokens before it have left."""

    def __init__(self, vocab_size: int, size: int, num_layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.layers = nn.ModuleList(nn.GRU(size, size, batch_first=True) for _ in range(num_layers))
        self.head = nn.Linear(size, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the mean loss of the next tokens where there are labels."""
        x_BTD = self.embedding(input_ids)
        for layer in self.layers:
            x_BTD = x_BTD + layer(x_BTD)[0]
        logits_BTV = self.head(x_BTD)
        if labels is None:
            return {"logits": logits_BTV}
        loss = nn.functional.cross_entropy(
            logits_BTV[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        )
        return {"loss": loss, "logits": logits_BTV}
