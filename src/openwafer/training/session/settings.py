"""The settings that parameters are updated with."""

from collections.abc import Mapping
from dataclasses import dataclass

from openwafer.training.session.optimizer_config import GroupConfig


@dataclass(frozen=True)
class Settings:
    """What the parameters of a group have in common; equal settings make one group."""

    optimizer: str
    learning_rate: float
    weight_decay: float | None
    options: Mapping[str, object]

    def overridden(self, group: GroupConfig) -> "Settings":
        """These settings with those that a group states for itself."""
        optimizer = group.name or self.optimizer
        inherited = self.options if optimizer == self.optimizer else {}
        return Settings(
            optimizer,
            self.learning_rate if group.learning_rate is None else group.learning_rate,
            self.weight_decay if group.weight_decay is None else group.weight_decay,
            {**inherited, **group.options},
        )

    def torch_options(self) -> dict[str, object]:
        """As torch's optimizers name them."""
        decay = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
        return {"lr": self.learning_rate, **decay, **self.options}
