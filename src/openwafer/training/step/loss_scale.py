"""Dynamic loss scaling for fp16, by the kernels that ``torch.amp.GradScaler`` calls."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from openwafer.config import InvalidFieldError
from openwafer.training.torch_private import update_scale


@dataclass(frozen=True)
class LossScaling:
    """How the loss scale moves; the defaults are those of ``torch.amp.GradScaler``.

    Attributes:
        initial_scale: what the loss is multiplied by at first.
        growth_factor: multiplies the scale after `growth_interval` good steps in a row.
        backoff_factor: multiplies the scale after a step whose gradients overflow.
        growth_interval: in steps.
    """

    initial_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name, is_right, wanted in (
            ("initial_scale", self.initial_scale > 0, "above 0"),
            ("growth_factor", self.growth_factor > 1, "above 1"),
            ("backoff_factor", 0 < self.backoff_factor < 1, "between 0 and 1"),
            ("growth_interval", self.growth_interval >= 1, "at least 1"),
        ):
            if not is_right:
                raise InvalidFieldError(name, f"expected {wanted}, found {getattr(self, name)}")


class LossScaler:
    """The scale of a run.

    Attributes:
        scale: what the loss of the next backward is multiplied by.
    """

    def __init__(self, config: LossScaling) -> None:
        self._config = config
        self._scale = torch.tensor(config.initial_scale, dtype=torch.float32)
        self._num_good_steps = torch.tensor(0, dtype=torch.int32)

    @property
    def scale(self) -> float:
        """See the class."""
        return self._scale.item()

    def end_step(self, *, has_overflowed: bool) -> None:
        """Move the scale, by whether the gradients of a step overflowed."""
        config = self._config
        update_scale(
            self._scale,
            self._num_good_steps,
            torch.tensor([float(has_overflowed)]),
            config.growth_factor,
            config.backoff_factor,
            config.growth_interval,
        )

    def state(self) -> dict[str, float]:
        """The scale and the good steps in a row, for a commit."""
        return {"scale": self.scale, "num_good_steps": self._num_good_steps.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state` gave."""
        self._scale.fill_(state["scale"])
        self._num_good_steps.fill_(int(state["num_good_steps"]))
