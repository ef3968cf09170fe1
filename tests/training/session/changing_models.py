"""Tiny models whose forward leaves something behind in an attribute."""

import torch
from torch import Tensor, nn

from tests.training.session.tiny_model import TinyModel


class ChangingModel(TinyModel):
    """Calls :meth:`scale` on what its loss is multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None
        self.count = 0
        self.losses: list[Tensor] = []

    def scale(self, loss: Tensor) -> Tensor | float:
        """A factor."""
        raise NotImplementedError

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent."""
        out = super().forward(input_ids, labels)
        return {**out, "loss": out["loss"] * self.scale(out["loss"])} if "loss" in out else out


class BuiltOnce(ChangingModel):
    """Builds a constant at its first forward."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """The same in every forward."""
        if self.kept is None:
            self.kept = torch.full((), 0.5)
        return self.kept


class LogsNorm(ChangingModel):
    """Leaves the last loss where a program can look at it."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """One."""
        self.last_loss = loss.detach()
        return 1.0


class TakenFromFirst(ChangingModel):
    """Divides by the loss of the first batch."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """Another one on each system."""
        if self.kept is None:
            self.kept = 1 / loss.detach()
        return self.kept


class DrawnOnce(ChangingModel):
    """Draws a factor at its first forward."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """Another one on each system."""
        if self.kept is None:
            self.kept = torch.rand(())
        return self.kept


class Counts(ChangingModel):
    """Counts its forwards."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """Falls with each forward."""
        self.count += 1
        return 1 / self.count


class Remembers(ChangingModel):
    """Compares with the forward before."""

    def scale(self, loss: Tensor) -> Tensor | float:
        """Half after the first forward."""
        self.losses.append(loss.detach())
        return 1 / min(len(self.losses), 2)


class PassesOn(ChangingModel):
    """A layer leaves something for the end of the same forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = Leaving(8)

    def scale(self, loss: Tensor) -> Tensor | float:
        """What the layer has left."""
        layer = self.layers[0]
        assert isinstance(layer, Leaving)
        return 1 + layer.mean**2


class Leaving(nn.Linear):
    """Keeps the mean of what it returns."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.mean = torch.zeros(())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """As its parent."""
        out = super().forward(input)
        self.mean = out.mean()
        return out
