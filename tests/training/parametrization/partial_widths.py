"""Models of a user's own that muP has no rule for."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PartlyWide(nn.Module):
    """Its hidden size is a width and three features more."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, size)
        self.up = nn.Linear(size, size + 3)
        self.head = nn.Linear(size + 3, vocab_size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        logits = self.head(self.up(self.table(input_ids)).relu())
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class OrthogonalModel(nn.Module):
    """Draws a matrix in a way that has no standard deviation to scale."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, size)
        self.turn = nn.Linear(size, size)
        nn.init.orthogonal_(self.turn.weight)
        self.head = nn.Linear(size, vocab_size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        logits = self.head(self.turn(self.table(input_ids)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class IdleModel(OrthogonalModel):
    """Has a matrix that no forward needs."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__(vocab_size, size)
        self.turn = nn.Linear(size, size)
        self.idle = nn.Linear(size, size)


class OwnTable(nn.Module):
    """Multiplies by its table of embeddings without a module."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        logits = torch.matmul(self.table(input_ids), self.table.weight.T)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class SummingModel(OrthogonalModel):
    """Adds up the squares of its features, of which a wider model has more."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__(vocab_size, size)
        self.turn = nn.Linear(size, size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place, with a penalty."""
        features = self.turn(self.table(input_ids))
        logits = self.head(features)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss + 1e-3 * features.square().sum(-1).mean()}


class ComputedWeight(OrthogonalModel):
    """Multiplies by a weight that it computes of its parameter."""

    def __init__(self, vocab_size: int = 50, size: int = 16) -> None:
        super().__init__(vocab_size, size)
        self.turn = nn.Linear(size, size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        logits = self.head(F.linear(self.table(input_ids), self.turn.weight * 0.5))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class ScaledFeatures(ComputedWeight):
    """Divides its features by the root of their number."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        features = self.turn(self.table(input_ids)) / self.turn.out_features**0.5
        logits = self.head(features.relu())
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class HalfScaledTable(ComputedWeight):
    """Looks rows up twice, and multiplies only some of them."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        scaled = self.table(input_ids) * self.turn.out_features**0.5
        logits = self.head(self.turn(scaled + self.table(labels)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}
