"""Models of a user's own whose layers muP has no rule of depth for, and one for which it has."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class Layered(nn.Module):
    """Layers between a table and a head."""

    def __init__(self, vocab_size: int = 50, size: int = 8, num_layers: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, size)
        self.layers = nn.Sequential(*[self.layer(size) for _ in range(num_layers)])
        self.head = nn.Linear(size, vocab_size)

    def layer(self, size: int) -> nn.Module:
        """One layer."""
        return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        x = self.table(input_ids)
        for layer in self.layers:
            x = self.join(x, layer)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """What goes on behind a layer."""
        return x + layer(x)


class Plain(Layered):
    """Has no residual."""

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the layer puts out."""
        return layer(x)


class Gated(Layered):
    """Ends its branches with a function that is not proportional to its weights."""

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum."""
        return x + layer(x).tanh()


class Averaging(Layered):
    """Multiplies the residual itself."""

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of both."""
        return (x + layer(x)) * 0.5


class Numbered(Layered):
    """Divides by the number of its layers itself."""

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum."""
        return x + layer(x) / len(self.layers)


class Shared(Layered):
    """Has one layer, many times over."""

    def __init__(self, vocab_size: int = 50, size: int = 8, num_layers: int = 2) -> None:
        super().__init__(vocab_size, size, 2)
        self.num_repeats = num_layers

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        x = self.table(input_ids)
        for _ in range(self.num_repeats):
            x = x + self.layers(x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Reused(Layered):
    """Adds up twice with the weights of each layer."""

    def join(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Both sums."""
        x = x + layer(x)
        return x + layer(x)


class Uneven(Layered):
    """Has a residual sum more than its layers."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of labels in place."""
        x = self.table(input_ids)
        for layer in [*self.layers, self.layers[0]]:
            x = self.join(x, layer)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}
