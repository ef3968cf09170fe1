"""Sparsity and drop fraction as functions of the step, and how many weights are kept when.

`step` is the number of training steps that are done: a value at 0 is that of the initial mask, and
an update at 100 comes behind the hundredth training step. Nothing is carried from step to step.

Names, fields and formulas of the schedules are those of ``cerebras.pytorch.sparse``; `polynomial`
is the schedule of gradual magnitude pruning (Zhu and Gupta, arXiv 1710.01878).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import error
from openwafer.training.sparsity.masks.structures import (
    NOfM,
    Shape,
    Structure,
    Unstructured,
    num_kept,
)


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


NO_UPDATES = AtSteps(())
# A cosine that comes down to 0 ends a little above or below it.
NEARLY_ZERO = 1e-12


def value_at(schedule: Schedule, updates: Updates, step: int) -> float:
    """Value of `schedule` at the update behind `step` training steps."""
    found = schedule(step, updates.num_until(step))
    return 0.0 if abs(found) < NEARLY_ZERO else found


@dataclass(frozen=True)
class Target:
    """What sparsity a weight has, when that changes, and what is kept or dropped together."""

    sparsity: Schedule
    updates: Updates = NO_UPDATES
    structure: Structure = Unstructured()  # noqa: RUF009 - frozen, and without fields

    def sparsity_at(self, step: int) -> float:
        """Sparsity of the mask that an update behind `step` training steps leaves.

        Raises:
            OpenwaferError: ``sparsity-range`` where it is not in [0, 1).
        """
        found = value_at(self.sparsity, self.updates, step)
        if not 0 <= found < 1:
            raise error(
                "sparsity-range",
                f"expected a sparsity in [0, 1), found {found:g} at step {step} of {self.sparsity}",
                help="let updates stop before that step, or change the schedule",
            )
        return found

    def num_units(self, step: int, shape: Shape) -> int:
        """Units that each group keeps behind the update of `step`."""
        return num_kept(self.sparsity_at(step), self.structure.grid(shape)[1])

    def num_kept(self, step: int, shape: Shape) -> int:
        """Weights of a weight of `shape` that are kept behind the update of `step`."""
        return self.structure.num_weights(self.num_units(step, shape), shape)

    def changes(self, shape: Shape, num_steps: int) -> tuple[tuple[int, int], ...]:
        """Steps at which the number kept changes, and the new number; the first step is 0.

        Args:
            num_steps: training steps of the run; an update behind the last one counts.

        Raises:
            OpenwaferError: ``sparsity-range`` where a sparsity is not in [0, 1) at an update.
        """
        return _changes(self, shape, num_steps)

    def capacity(self, shape: Shape, num_steps: int) -> int:
        """Largest number of weights that is ever kept in a run of `num_steps` training steps."""
        return max(number for _, number in self.changes(shape, num_steps))

    def require_pattern(self, name: str, shape: Shape, num_steps: int) -> None:
        """Raise ``mask-pattern`` unless the sparsest mask keeps the n of every m, and no fewer."""
        if not isinstance(self.structure, NOfM):
            return
        highest = 1 - self.structure.n / self.structure.m
        fewest = min(number for _, number in self.changes(shape, num_steps))
        least = fewest * self.structure.m // math.prod(shape)
        if least != self.structure.n:
            raise error(
                "mask-pattern",
                f"{name} is to be {self.structure}, and its sparsity keeps {least} of "
                f"{self.structure.m} at its highest",
                help=f"let the sparsity reach {highest:g}, and no more",
            )


@lru_cache(maxsize=1000)
def _changes(target: Target, shape: Shape, num_steps: int) -> tuple[tuple[int, int], ...]:
    found = [(0, target.num_kept(0, shape))]
    # A schedule may be asked at millions of steps, for hundreds of weights of few shapes.
    for step in () if isinstance(target.sparsity, Constant) else target.updates.until(num_steps):
        number = target.num_kept(step, shape)
        if number != found[-1][1]:
            found.append((step, number))
    return tuple(found)


def require_capacity(
    target: Target, name: str, shape: Shape, num_steps: int, num_reserved: int
) -> None:
    """Raise ``sparsity-capacity`` where a schedule will keep more weights than have room.

    Args:
        name: of the parameter.
        num_reserved: weights that the store has room for.
    """
    for step, number in target.changes(shape, num_steps):
        if number > num_reserved:
            raise error(
                "sparsity-capacity",
                f"{name} keeps {number} weights from step {step} on, and {num_reserved} have room",
                help="begin a new run with this schedule, or let the sparsity stay at least "
                f"{1 - num_reserved / math.prod(shape):g}",
            )
