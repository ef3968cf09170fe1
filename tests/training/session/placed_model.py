"""A model with a weight that belongs to no module that the noise scale knows."""

import torch
from torch import Tensor, nn

from tests.training.session.tiny_model import TinyModel


class PlacedModel(TinyModel):
    """Scales its logits by a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.scale = nn.Parameter(torch.full((300,), 1.5))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent, with other logits."""
        logits = super().forward(input_ids)["logits"] * self.scale
        if labels is None:
            return {"logits": logits}
        targets = labels[:, 1:].flatten()
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets)
        return {"loss": loss, "logits": logits}
