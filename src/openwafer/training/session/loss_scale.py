"""Dynamic loss scaling for fp16, by the kernels that ``torch.amp.GradScaler`` calls."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from openwafer.config import InvalidFieldError
from openwafer.training.torch_private import unscale_and_check, update_scale


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
    """The scale of a run and the overflow check of the step under way.

    Attributes:
        scale: what the loss of the next backward is multiplied by.
    """

    def __init__(self, config: LossScaling) -> None:
        self._config = config
        self._scale = torch.tensor(config.initial_scale, dtype=torch.float32)
        self._num_good_steps = torch.tensor(0, dtype=torch.int32)
        self._overflows: dict[torch.device, torch.Tensor] = {}

    @property
    def scale(self) -> float:
        """See the class."""
        return self._scale.item()

    def unscale(self, gradients: Collection[torch.Tensor]) -> None:
        """Divide gradients by the scale in place and note whether one is not finite."""
        # As in GradScaler: 1 / scale may underflow in fp32 where it does not in fp64.
        inverse = self._scale.double().reciprocal().float()
        for gradient in gradients:
            device = gradient.device
            overflow = self._overflows.setdefault(device, torch.zeros(1, device=device))
            unscale_and_check([gradient], overflow, inverse.to(device))

    def note_overflow(self) -> None:
        """A gradient that another system has is not finite."""
        self._overflows[torch.device("cpu")] = torch.ones(1)

    @property
    def has_overflowed(self) -> bool:
        """Whether a gradient of the step under way is not finite."""
        return any(bool(found.item()) for found in self._overflows.values())

    def end_step(self) -> bool:
        """Move the scale; return whether the gradients of this step overflowed."""
        overflow = torch.zeros(1)
        for found in self._overflows.values():
            overflow += found.cpu()
        self._overflows.clear()
        config = self._config
        update_scale(
            self._scale,
            self._num_good_steps,
            overflow,
            config.growth_factor,
            config.backoff_factor,
            config.growth_interval,
        )
        return bool(overflow.item())

    def abandon_step(self) -> None:
        """Forget the overflow check of a step that is not finished."""
        self._overflows.clear()

    def state(self) -> dict[str, float]:
        """The scale and the good steps in a row, for a commit."""
        return {"scale": self.scale, "num_good_steps": self._num_good_steps.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state` gave."""
        self._scale.fill_(state["scale"])
        self._num_good_steps.fill_(int(state["num_good_steps"]))
