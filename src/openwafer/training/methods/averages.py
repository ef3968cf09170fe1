"""Moving averages of weights as a method: the key, whose states the plan and the updates know."""

from dataclasses import dataclass

from openwafer.config import InvalidFieldError
from openwafer.training.session.config import RunConfig


@dataclass(frozen=True)
class AverageKeys(RunConfig):
    """The key of averages.

    Attributes:
        ema: decay of a moving average of the weights; ``null`` keeps none.
    """

    ema: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema is not None and not 0 < self.ema < 1:
            raise InvalidFieldError("ema", f"expected between 0 and 1, found {self.ema}")

    @property
    def average_decay(self) -> float | None:
        """See the class that it extends."""
        return self.ema
