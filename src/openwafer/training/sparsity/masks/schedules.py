"""Sparsity and drop fraction as functions of the step, and the steps at which masks are updated.

`step` is the number of training steps that are done: a value at 0 is that of the initial mask, and
an update at 100 comes behind the hundredth training step. Nothing is carried from step to step.

Names, fields and formulas of the schedules are those of ``cerebras.pytorch.sparse``; `polynomial`
is the schedule of gradual magnitude pruning (Zhu and Gupta, arXiv 1710.01878).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from openwafer.config import InvalidFieldError


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float
    type: Literal["constant"] = field(default="constant", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "value")

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return self.value


@dataclass(frozen=True)
class Linear:
    """``init + slope * step``."""

    init: float
    slope: float
    type: Literal["linear"] = field(default="linear", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "init", "slope")

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return self.init + self.slope * step


@dataclass(frozen=True)
class Exponential:
    """``final + (init - final) * exp(gamma * step)``, which nears `final`."""

    init: float
    gamma: float
    final: float = 1.0
    type: Literal["exp"] = field(default="exp", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "init", "gamma", "final")
        if self.gamma > 0:
            raise InvalidFieldError(
                "gamma",
                f"expected at most 0, found {self.gamma:g}: the value would leave {self.final:g}",
                help=f"write gamma: {-self.gamma:g}",
            )

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return self.final + (self.init - self.final) * math.exp(self.gamma * step)


@dataclass(frozen=True)
class Power:
    """``init * beta ** step``."""

    init: float
    beta: float
    type: Literal["power"] = field(default="power", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "init")
        if not 0 <= self.beta <= 1:
            raise InvalidFieldError(
                "beta", f"expected from 0 to 1, found {self.beta:g}", help="write beta: 0.999"
            )

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return self.init * math.pow(self.beta, step)


@dataclass(frozen=True)
class Cosine:
    """A wave that begins at `init`, is `minimum` behind `half_period` steps, and comes back."""

    init: float
    half_period: float
    minimum: float = 0.0
    type: Literal["cosine"] = field(default="cosine", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "init", "minimum")
        if not 1 <= self.half_period < math.inf:
            raise InvalidFieldError(
                "half_period",
                f"expected at least 1, found {self.half_period:g}",
                help="write the number of steps from init to minimum",
            )

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        middle = (self.init + self.minimum) / 2
        return middle + (self.init - middle) * math.cos(math.pi * step / self.half_period)


@dataclass(frozen=True)
class Cycling:
    """The next of `values` at every update, and the first again behind the last."""

    values: tuple[float, ...]
    type: Literal["cycling"] = field(default="cycling", kw_only=True)

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(value) for value in self.values):
            raise InvalidFieldError(
                "values",
                f"expected one number or more, found {list(self.values)}",
                help="write them as in values: [0.9, 0.5]",
            )

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return self.values[num_updates % len(self.values)]


@dataclass(frozen=True)
class Polynomial:
    """``final + (init - final) * (1 - t) ** power``, t going from 0 at `start` to 1 at `end`."""

    final: float
    end: int
    init: float = 0.0
    start: int = 0
    power: float = 3.0
    type: Literal["polynomial"] = field(default="polynomial", kw_only=True)

    def __post_init__(self) -> None:
        _require_finite(self, "final", "init")
        if not 0 < self.power < math.inf:
            raise InvalidFieldError(
                "power", f"expected above 0, found {self.power:g}", help="write power: 3"
            )
        if not 0 <= self.start < self.end:
            raise InvalidFieldError(
                "end",
                f"expected above start {self.start}, found {self.end}",
                help="write the step from which on the value is final",
            )

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        done = min(max(step - self.start, 0) / (self.end - self.start), 1.0)
        return self.final + (self.init - self.final) * math.pow(1.0 - done, self.power)


@dataclass(frozen=True)
class Rounds:
    """``1 - (1 - fraction) ** updates``, at most `final`: each round prunes a share of the rest.

    Frankle and Carbin, arXiv 1803.03635, who prune a fifth in each round.
    """

    final: float
    fraction: float = 0.2

    def __call__(self, step: int, num_updates: int) -> float:
        """Value behind `step` training steps and `num_updates` updates."""
        return min(self.final, 1.0 - (1.0 - self.fraction) ** num_updates)


WrittenSchedule = Constant | Linear | Exponential | Power | Cosine | Cycling | Polynomial
Schedule = WrittenSchedule | Rounds


@dataclass(frozen=True)
class EverySteps:
    """An update behind `start`, and behind every `freq` steps from there to before `stop`.

    The mask of step 0 is the initial one, so the first update with `start` 0 is behind `freq`.
    """

    freq: int
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.freq < 1:
            raise InvalidFieldError(
                "freq", f"expected at least 1, found {self.freq}", help="write freq: 100"
            )
        if self.start < 0:
            raise InvalidFieldError(
                "start", f"expected at least 0, found {self.start}", help="leave it out"
            )
        if self.stop is not None and self.stop <= self._first:
            raise InvalidFieldError(
                "stop",
                f"expected above {self._first}, the first update, found {self.stop}",
                help="leave it out, or choose static, which keeps its mask",
            )

    def is_update(self, step: int) -> bool:
        """Whether masks are updated behind `step` training steps."""
        is_before_stop = self.stop is None or step < self.stop
        return step >= self._first and is_before_stop and (step - self.start) % self.freq == 0

    def num_until(self, step: int) -> int:
        """Updates from step 1 to `step`, both included."""
        last = step if self.stop is None else min(step, self.stop - 1)
        return 0 if last < self._first else (last - self._first) // self.freq + 1

    def until(self, last: int) -> Iterator[int]:
        """Steps of the updates from step 1 to `last`, in order."""
        stop = last + 1 if self.stop is None else min(last + 1, self.stop)
        return iter(range(self._first, stop, self.freq))

    @property
    def _first(self) -> int:
        return self.start or self.freq


@dataclass(frozen=True)
class AtSteps:
    """Updates behind the listed numbers of steps; 0, the initial mask, may stand among them."""

    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False))
        if not rising or any(step < 0 for step in self.steps):
            raise InvalidFieldError(
                "steps",
                f"expected rising numbers from 0, found {list(self.steps)}",
                help="write each step once, in order",
            )

    def is_update(self, step: int) -> bool:
        """Whether masks are updated behind `step` training steps."""
        return step > 0 and step in self.steps

    def num_until(self, step: int) -> int:
        """Updates from step 1 to `step`, both included."""
        return sum(0 < each <= step for each in self.steps)

    def until(self, last: int) -> Iterator[int]:
        """Steps of the updates from step 1 to `last`, in order."""
        return (step for step in self.steps if 0 < step <= last)


Updates = EverySteps | AtSteps


def _require_finite(schedule: object, *names: str) -> None:
    for name in names:
        found = getattr(schedule, name)
        if not math.isfinite(found):
            raise InvalidFieldError(
                name, f"expected a finite number, found {found}", help=f"write {name}: 0.5"
            )
