"""A model of a user's own, small enough that planning it takes little time."""

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyModel(nn.Module):
    """Predicts the next token from the present one; ``dropout`` makes it random in training."""

    def __init__(
        self, vocab_size: int = 300, size: int = 8, num_layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(num_layers))
        self.dropout = dropout
        self.head = nn.Linear(size, vocab_size)

    def layers_for(self, input_ids: Tensor) -> Iterable[nn.Module]:
        """The layers that these tokens pass."""
        return self.layers

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the loss of the next tokens where labels are given."""
        x = self.embedding(input_ids)
        for layer in self.layers_for(input_ids):
            x = x + F.dropout(layer(x).tanh(), self.dropout, self.training)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class RememberedModel(TinyModel):
    """Can be looked at when its run has ended."""

    built: ClassVar["list[RememberedModel]"] = []

    def __init__(self) -> None:
        super().__init__()
        self.built.append(self)


class CountingModel(TinyModel):
    """Also counts its training passes in a buffer and adds the count to its logits."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.register_buffer("num_passes", torch.zeros(()))
        self.num_passes: Tensor

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent; what a pass learns depends on the passes before it."""
        if self.training:
            self.num_passes += 1
        out = super().forward(input_ids, labels)
        return {**out, "loss": out["loss"] * self.num_passes} if "loss" in out else out


class RoutedModel(TinyModel):
    """Sends a batch through one of eight layers, so that the others get no gradient."""

    def __init__(self) -> None:
        super().__init__(num_layers=8)

    def layers_for(self, input_ids: Tensor) -> Iterable[nn.Module]:
        """The layer that the sum of the tokens says."""
        return [self.layers[int(input_ids.sum()) % len(self.layers)]]


class LoudLinear(nn.Linear):
    """The gradient of its weight passes fp16 times 2000, where it overflows before any other."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """The same values as its parent's."""
        nothing = (self.weight - self.weight.detach()).half()
        return F.linear(input, self.weight + 2000 * nothing, self.bias)


class LoudModel(TinyModel):
    """One of its linear modules, by name, is a loud one."""

    def __init__(self, loudest: str) -> None:
        super().__init__()
        linear = self.get_submodule(loudest)
        assert isinstance(linear, nn.Linear)
        self.set_submodule(loudest, LoudLinear(linear.in_features, linear.out_features))
