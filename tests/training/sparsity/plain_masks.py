"""Masks by plain Python: positions in lists, orders by ``sorted``, counts by decimals.

Shares no code with the package. A unit is named by (group, number in the group) and is a list of
positions in row-major order; a mask is the set of the names of the units that are kept.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

Unit = tuple[int, int]


def plain_count(sparsity: float, number: int) -> int:
    """int((1 - sparsity) * number), of the decimal that a reader sees."""
    return int((1 - Decimal(f"{sparsity:.13g}")) * number + Decimal("1e-9"))


def plain_units(structure: str, shape: tuple[int, ...]) -> dict[Unit, list[int]]:
    """Positions of each unit: a weight ("1", and "2:4" in groups of four), or a block ("2x3")."""
    rows, columns = shape[0], math.prod(shape[1:])
    if ":" in structure:
        m = int(structure.split(":")[1])
        return {divmod(position, m): [position] for position in range(rows * columns)}
    if "x" not in structure:
        return {(0, position): [position] for position in range(rows * columns)}
    height, width = map(int, structure.split("x"))
    units: dict[Unit, list[int]] = {}
    for position in range(rows * columns):
        row, column = divmod(position, columns)
        number = (row // height) * (columns // width) + column // width
        units.setdefault((0, number), []).append(position)
    return units


def group_size(units: Mapping[Unit, list[int]]) -> int:
    return 1 + max(number for _, number in units)


def unit_sizes(units: Mapping[Unit, list[int]], values: Tensor) -> dict[Unit, float]:
    """Of each unit the largest magnitude."""
    flat = values.detach().flatten().tolist()
    return {unit: max(abs(flat[p]) for p in positions) for unit, positions in units.items()}


def plain_draws(
    units: Mapping[Unit, list[int]], seed: int, step: int, name: str
) -> dict[Unit, int]:
    """The random order as it is documented: PCG64 under a digest of seed, step and name."""
    digest = hashlib.blake2b(f"{seed} {step} {name}".encode(), digest_size=16).digest()
    stream = np.random.PCG64(int.from_bytes(digest, "little"))
    size = group_size(units)
    draws = [int(draw) // 2**33 for draw in stream.random_raw(len(units))]
    return {(group, number): draws[group * size + number] for group, number in units}


def first_of_each_group(units: list[Unit], number: int) -> set[Unit]:
    """Of units in an order, the first `number` of each group."""
    taken: dict[int, list[Unit]] = {}
    for unit in units:
        taken.setdefault(unit[0], []).append(unit)
    return {unit for group in taken.values() for unit in group[:number]}


def falling(scores: Mapping[Unit, float]) -> list[Unit]:
    """Units by falling score, equal ones by position."""
    return sorted(scores, key=lambda unit: (-scores[unit], unit))


def to_tensor(kept: set[Unit], units: Mapping[Unit, list[int]], shape: tuple[int, ...]) -> Tensor:
    """The mask as a bool tensor."""
    flat = [False] * math.prod(shape)
    for unit in kept:
        for position in units[unit]:
            flat[position] = True
    return torch.tensor(flat).reshape(shape)


@dataclass(frozen=True)
class PlainUpdate:
    """What an update is given: the old mask, sizes of weights and of gradients, what is asked."""

    units: Mapping[Unit, list[int]]
    kept: set[Unit]
    weights: Tensor
    gradient: Tensor
    sparsity: float
    drop_fraction: float
    draws: Mapping[Unit, int]

    @property
    def number(self) -> int:
        return plain_count(self.sparsity, group_size(self.units))

    def by_size(self) -> list[Unit]:
        sizes = unit_sizes(self.units, self.weights)
        return falling({unit: sizes[unit] for unit in self.kept})

    def grown(self, stay: set[Unit], scores: Mapping[Unit, float]) -> set[Unit]:
        new = set(stay)
        for unit in falling({unit: scores[unit] for unit in self.units if unit not in stay}):
            if sum(other[0] == unit[0] for other in new) < self.number:
                new.add(unit)
        return new

    def after_drop(self) -> set[Unit]:
        num_dropped = int(Decimal(f"{self.drop_fraction:.13g}") * len(self.kept) + Decimal("1e-9"))
        order = self.by_size()
        return first_of_each_group(order[: len(order) - num_dropped], self.number)


def plain_update(algorithm: str, given: PlainUpdate) -> set[Unit]:
    """The new mask, by the words of the algorithm."""
    match algorithm:
        case "gmp":
            return given.grown(first_of_each_group(given.by_size(), given.number), given.draws)
        case "imp":
            return first_of_each_group(given.by_size(), given.number)
        case "set":
            return given.grown(given.after_drop(), given.draws)
        case "rigl":
            return given.grown(given.after_drop(), unit_sizes(given.units, given.gradient))
        case _:
            return given.kept
