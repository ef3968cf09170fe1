"""What a demonstration shows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openwafer.sdk.arch.generation import GENERATIONS
from openwafer.sdk.kernels.running import known_arch


@dataclass(frozen=True)
class Line:
    """A figure.

    Attributes:
        what: it is a figure of.
        value: with its unit.
    """

    what: str
    value: str


@dataclass(frozen=True)
class Check:
    """A figure that has to be in a range.

    Attributes:
        what: it is a figure of.
        value: with its unit.
        wanted: the range.
        holds: whether it is in the range.
    """

    what: str
    value: str
    wanted: str
    holds: bool


@dataclass(frozen=True)
class Shown:
    """What a demonstration has found.

    Attributes:
        figures: to print.
        checks: of its physics.
        draw: writes a picture into a file.
    """

    figures: tuple[Line, ...]
    checks: tuple[Check, ...]
    draw: Callable[[Path], None]


def orders(spacings: list[float], errors: list[float]) -> list[float]:
    """Order of convergence between each two neighbours: the exponent of the spacing."""
    return list(np.diff(np.log(errors)) / np.diff(np.log(spacings)))


def order_check(spacings: list[float], errors: list[float], wanted: float, off: float) -> Check:
    """The last order of convergence against what is wanted of it."""
    found = orders(spacings, errors)
    text = ", ".join(f"{order:.2f}" for order in found)
    holds = abs(found[-1] - wanted) <= off
    return Check("order of convergence", text, f"the last within {wanted:g} +- {off:g}", holds)


def by_the_clock(cycles: float, arch: str) -> str:
    """The time of so many cycles on a wafer of the generation, in us, or ms from 1 ms on."""
    micros = cycles / GENERATIONS[known_arch(arch)].clock_hertz * 1e6
    return f"{micros:.3g} us" if micros < 1000 else f"{micros / 1000:.3g} ms"
