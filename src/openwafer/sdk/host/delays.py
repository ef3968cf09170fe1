"""Launches that reach PEs in turns and late, so that a run may show what depends on their time."""

import os
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error

DELAYS_VARIABLE: Final = "OPENWAFER_HOST_DELAYS"
"""Environment variable with a seed and the most cycles between two parts of a launch."""
_MOST_PARTS: Final = 4


@dataclass(frozen=True)
class HostDelays:
    """In which turns a launch reaches PEs; without one it goes from column to column.

    Copies need none: they wait until all PEs are at rest.

    Attributes:
        seed: 0 or more; with the launched function it decides the turns.
        most_cycles: between two of them, 1 or more; fewer go by where nothing moves.
    """

    seed: int
    most_cycles: int

    def __post_init__(self) -> None:
        if self.seed < 0 or self.most_cycles < 1:
            raise error(
                "host-delays",
                f"delays have the seed {self.seed} and at most {self.most_cycles} cycles",
                help="give a seed of 0 or more, and 1 cycle or more",
            )

    def turns(self, num_pes: int, function: int) -> list[tuple[int, NDArray[np.int64]]]:
        """PEs by the turn in which a launch reaches them, and cycles that go by before each.

        Args:
            num_pes: of the rectangle.
            function: number of what is launched.
        """
        rng = np.random.default_rng([self.seed, function])
        turn_of = rng.integers(0, rng.integers(1, _MOST_PARTS + 1), num_pes)
        numbers = rng.permutation(np.unique(turn_of))
        cycles = rng.integers(1, self.most_cycles + 1, numbers.size)
        turns = [np.flatnonzero(turn_of == number) for number in numbers]
        return [*zip(cycles.tolist(), turns, strict=True)]


def delays_of_environment() -> HostDelays | None:
    """What the environment asks for. Raises OpenwaferError for what is no seed and cycles."""
    text = os.environ.get(DELAYS_VARIABLE)
    if text is None:
        return None
    words = text.split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() for word in words):
        raise error(
            "host-delays",
            f"{DELAYS_VARIABLE} is {text!r}",
            help="give a seed and the most cycles, as in 7,200",
        )
    return HostDelays(*map(int, words))
