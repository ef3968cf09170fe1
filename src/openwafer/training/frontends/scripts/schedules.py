"""Values of a learning rate or a weight decay by the step k, from 0: functions of k alone.

Unlike the factors of :mod:`openwafer.training.lr_schedules`, these are the values themselves.
Each class has the vendor's formula, without the rounding to fp32 of its steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openwafer.diagnostics import error
from openwafer.training.lr_schedules import Cosine, Linear

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float
    total_iters: int | None = None

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.value


@dataclass(frozen=True)
class Polynomial:
    """From `initial` to `end` in `total_iters` steps, by a power of the share that is left.

    With `cycle` the steps are stretched to the next multiple of `total_iters`, up to their end.
    """

    initial: float
    end: float
    total_iters: int
    power: float = 1.0
    cycle: bool = False

    def __call__(self, k: int) -> float:
        """Value at step k."""
        if k >= self.total_iters:
            return self.end
        cycles = math.ceil((k + 1) / self.total_iters) if self.cycle else 1
        left = Linear(self.total_iters * cycles)(k)
        return self.end + (self.initial - self.end) * math.pow(left, self.power)


def linear(initial: float, end: float, total_iters: int, cycle: bool = False) -> Polynomial:
    """A straight line from `initial` to `end`."""
    return Polynomial(initial, end, total_iters, 1.0, cycle)


@dataclass(frozen=True)
class Exponential:
    """``initial * decay_rate ** (k / total_iters)``; in steps with `staircase`."""

    initial: float
    total_iters: int
    decay_rate: float
    staircase: bool = False

    def __call__(self, k: int) -> float:
        """Value at step k."""
        power = k // self.total_iters if self.staircase else k / self.total_iters
        return self.initial * self.decay_rate**power


@dataclass(frozen=True)
class InverseExponentialTimeDecay:
    """``initial / (1 + decay_rate * k ** step_exponent / total_iters)``; see `Exponential`."""

    initial: float
    step_exponent: int
    total_iters: int
    decay_rate: float
    staircase: bool = False

    def __call__(self, k: int) -> float:
        """Value at step k."""
        time = float(k) ** self.step_exponent / self.total_iters
        return self.initial / (1 + self.decay_rate * (math.floor(time) if self.staircase else time))


@dataclass(frozen=True)
class InverseSquareRootDecay:
    """``initial * scale / sqrt(max(k, warmup_steps))``."""

    initial: float = 1.0
    scale: float = 1.0
    warmup_steps: float = 1.0

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.initial * self.scale / math.sqrt(max(k, self.warmup_steps))


@dataclass(frozen=True)
class CosineDecay:
    """Half a period of the cosine from `initial` to `end`, where it stays."""

    initial: float
    end: float
    total_iters: int

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.end + (self.initial - self.end) * Cosine(self.total_iters)(k)


@dataclass(frozen=True)
class MultiStep:
    """`initial`, multiplied by `gamma` at each milestone."""

    initial: float
    gamma: float
    milestones: Sequence[int]

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.initial * self.gamma ** sum(k >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Step:
    """`initial`, multiplied by `gamma` every `step_size` steps."""

    initial: float
    step_size: int
    gamma: float

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.initial * self.gamma ** (k // self.step_size)


@dataclass(frozen=True)
class CosineAnnealing:
    """A wave that begins at `initial` and is `eta_min` at `T_max` steps."""

    initial: float
    T_max: float
    eta_min: float = 0.0

    def __call__(self, k: int) -> float:
        """Value at step k."""
        height = (1 + math.cos(math.pi * k / self.T_max)) / 2
        return self.eta_min + (self.initial - self.eta_min) * height


@dataclass(frozen=True)
class CosineAnnealingWarmRestarts:
    """The first half of that wave, again every `T_0` steps."""

    initial: float
    T_0: int
    T_mult: int = 1
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        if self.T_mult != 1:
            raise error(
                "schedule-option",
                f"CosineAnnealingWarmRestarts has T_mult={self.T_mult}",
                help="its periods are alike: leave T_mult out, or put several into SequentialLR",
            )

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return CosineAnnealing(self.initial, self.T_0, self.eta_min)(k % self.T_0)


@dataclass(frozen=True)
class Multiplicative:
    """``initial * coefficient ** k``."""

    initial: float
    coefficient: float

    def __call__(self, k: int) -> float:
        """Value at step k."""
        return self.initial * self.coefficient**k


@dataclass(frozen=True)
class Cyclic:
    """A triangle between `base` and `max`, up and down again (Smith, arXiv 1506.01186).

    In the mode ``triangular2`` each cycle has half the height of the one before; in ``exp_range``
    the height is multiplied by ``gamma ** k``.
    """

    base: float
    max: float
    step_size_up: int = 2000
    step_size_down: int | None = None
    mode: str = "triangular"
    gamma: float = 1.0
    scale_mode: str = "cycle"

    def __post_init__(self) -> None:
        if self.mode not in ("triangular", "triangular2", "exp_range"):
            raise error(
                "schedule-option",
                f"a cyclic schedule has the mode {self.mode!r}",
                help="write triangular, triangular2 or exp_range",
            )

    def __call__(self, k: int) -> float:
        """Value at step k."""
        up = self.step_size_up
        down = up if self.step_size_down is None else self.step_size_down
        cycle, at = divmod(k, up + down)
        height = at / up if at <= up else (up + down - at) / down
        scale = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": self.gamma**k}
        return self.base + (self.max - self.base) * height * scale[self.mode]


@dataclass(frozen=True)
class OneCycle:
    """Up to `max` in a share of `total_steps`, then down (Smith and Topin, arXiv 1708.07120).

    It ends at ``initial / final_div_factor``. With `three_phase` it comes back to `initial` as fast
    as it has risen, before it goes on down.
    """

    initial: float
    max: float
    total_steps: int = 1000
    pct_start: float = 0.3
    final_div_factor: float = 1e4
    three_phase: bool = False
    anneal_strategy: str = "cos"

    def __call__(self, k: int) -> float:
        """Value at step k."""
        rise, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        steps, values = [0.0, rise, end], [self.initial, self.max]
        if self.three_phase:
            steps, values = [0.0, rise, 2 * rise, end], [*values, self.initial]
        values.append(self.initial / self.final_div_factor)
        phase = sum(k > step for step in steps[1:-1])
        share = (k - steps[phase]) / (steps[phase + 1] - steps[phase])
        if self.anneal_strategy == "cos":
            share = (1 - math.cos(math.pi * share)) / 2
        return values[phase] + (values[phase + 1] - values[phase]) * share


@dataclass(frozen=True)
class Sequential:
    """One schedule after the other, each with steps from 0 on at its milestone."""

    schedules: Sequence[Schedule]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.milestones) != len(self.schedules) - 1:
            raise error(
                "schedule-option",
                f"{len(self.schedules)} schedules follow each other, at {len(self.milestones)} "
                "milestones",
                help="give one milestone less than schedules: where each but the first begins",
            )

    def __call__(self, k: int) -> float:
        """Value at step k."""
        begun = [number for number, milestone in enumerate(self.milestones, 1) if k >= milestone]
        number = begun[-1] if begun else 0
        return self.schedules[number](k - self.milestones[number - 1] if number else k)


def piecewise_constant(values: Sequence[float], milestones: Sequence[int]) -> Sequential:
    """A value up to the first milestone, the next one from there on, and so on."""
    return Sequential([Constant(value) for value in values], milestones)


@dataclass(frozen=True)
class Chained:
    """The first schedule, multiplied by what each other one is of its own beginning."""

    schedules: Sequence[Schedule]

    def __call__(self, k: int) -> float:
        """Value at step k."""
        first, *others = self.schedules
        return first(k) * math.prod(other(k) / other(0) for other in others)
