"""Learning-rate schedules: pure functions of the step k, counted from 0.

f(k) is the factor that multiplies a parameter group's own learning rate at step k, so that groups
keep their ratios; it is what `torch.optim.lr_scheduler.LambdaLR` takes. Nothing is carried from
step to step, and a resumed run needs k alone.

Every schedule starts with the same warm-up, a straight line from 0 at k = 0 to 1 at
k = `num_warm_up_steps`. Those with `num_steps` reach `final_factor` at that step and stay there.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from openwafer.diagnostics import did_you_mean, error


@dataclass(frozen=True)
class Constant:
    """1 after the warm-up."""

    num_warm_up_steps: int = 0

    def __post_init__(self) -> None:
        _require(self.num_warm_up_steps >= 0, self, "num_warm_up_steps is at least 0")

    def __call__(self, k: int) -> float:
        """Factor at step k."""
        return _warm_up(k, self.num_warm_up_steps)


@dataclass(frozen=True)
class _Descent:
    num_steps: int
    num_warm_up_steps: int = 0
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        fits = 0 <= self.num_warm_up_steps <= self.num_steps
        _require(fits, self, "the warm-up fits into num_steps")
        _require(0 <= self.final_factor <= 1, self, "final_factor lies from 0 to 1")

    def __call__(self, k: int) -> float:
        """Factor at step k."""
        if k < self.num_warm_up_steps:
            return _warm_up(k, self.num_warm_up_steps)
        left = _left(k, self.num_warm_up_steps, self.num_steps)
        return _descend(self.final_factor, self._height(left))

    def _height(self, left: float) -> float:
        """What is left to descend, from 1 to 0, where so much is left of the steps."""
        raise NotImplementedError


@dataclass(frozen=True)
class Linear(_Descent):
    """A straight line from the end of the warm-up."""

    def _height(self, left: float) -> float:
        return left


@dataclass(frozen=True)
class Cosine(_Descent):
    """Half a period of the cosine from the end of the warm-up."""

    def _height(self, left: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * (1.0 - left)))


@dataclass(frozen=True)
class InverseSqrt:
    """sqrt(t / (k - warm-up + t)) with t = `time_scale` steps."""

    time_scale: int
    num_warm_up_steps: int = 0

    def __post_init__(self) -> None:
        holds = self.num_warm_up_steps >= 0 and self.time_scale >= 1
        _require(holds, self, "num_warm_up_steps is at least 0, time_scale at least 1")

    def __call__(self, k: int) -> float:
        """Factor at step k."""
        if k < self.num_warm_up_steps:
            return _warm_up(k, self.num_warm_up_steps)
        return 1.0 / math.sqrt((k - self.num_warm_up_steps + self.time_scale) / self.time_scale)


@dataclass(frozen=True)
class WarmUpStableDecay:
    """1 until the last `num_decay_steps`, then a straight line (MiniCPM, arXiv 2404.06395)."""

    num_steps: int
    num_decay_steps: int
    num_warm_up_steps: int = 0
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        fits = self.num_warm_up_steps + self.num_decay_steps <= self.num_steps
        holds = fits and self.num_warm_up_steps >= 0 and self.num_decay_steps >= 0
        _require(holds, self, "warm-up and decay fit into num_steps")
        _require(0 <= self.final_factor <= 1, self, "final_factor lies from 0 to 1")

    def __call__(self, k: int) -> float:
        """Factor at step k."""
        start = self.num_steps - self.num_decay_steps
        if k < start:
            return _warm_up(k, self.num_warm_up_steps)
        return _descend(self.final_factor, _left(k, start, self.num_steps))


Schedule = Constant | Linear | Cosine | InverseSqrt | WarmUpStableDecay

SCHEDULES: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {
        "constant": Constant,
        "linear": Linear,
        "cosine": Cosine,
        "inverse-sqrt": InverseSqrt,
        "warm-up-stable-decay": WarmUpStableDecay,
    }
)


def build_schedule(name: str, options: Mapping[str, int | float] | None = None) -> Schedule:
    """Build a schedule by name; `options` are the fields of its class.

    Raises `schedule-unknown` and `schedule-option`.
    """
    options = options or {}
    if name not in SCHEDULES:
        raise error(
            "schedule-unknown",
            f"no learning-rate schedule is called '{name}'",
            help=did_you_mean(name, SCHEDULES),
        )
    fields = inspect.signature(SCHEDULES[name]).parameters
    for option in options:
        if option not in fields:
            raise error(
                "schedule-option",
                f"schedule {name} has no option '{option}'",
                help=did_you_mean(option, fields),
            )
    missing = [key for key, field in fields.items() if field.default is inspect.Parameter.empty]
    missing = [key for key in missing if key not in options]
    if missing:
        raise error(
            "schedule-option",
            f"schedule {name} needs {', '.join(missing)}",
            help=f"its options are {', '.join(fields)}",
        )
    return SCHEDULES[name](**options)


def _warm_up(k: int, num_steps: int) -> float:
    return k / num_steps if k < num_steps else 1.0


def _left(k: int, start: int, end: int) -> float:
    """Share of the decay that is still to come, 1 at its start and 0 from its end on."""
    return (end - k) / (end - start) if k < end else 0.0


def _descend(final_factor: float, height: float) -> float:
    return final_factor + (1.0 - final_factor) * height


def _require(holds: bool, schedule: object, condition: str) -> None:
    if not holds:
        raise error("schedule-option", f"{schedule} is impossible", help=condition)
