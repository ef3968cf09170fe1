"""Every algorithm under every schedule, beside plain Python, over 30 steps of a real model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from openwafer.training.sparsity.masks.algorithms import GMP, IMP, SET, Algorithm, RigL, Static
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.masks.schedules import (
    Constant,
    Cosine,
    Cycling,
    EverySteps,
    Exponential,
    Linear,
    Polynomial,
    Power,
    Rounds,
    Schedule,
    Target,
)
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, Structure, Unstructured
from tests.tables import checkerboard
from tests.training.sparsity.masked_training import NUM_STEPS, SEED, Packed, Plain

UPDATES = EverySteps(4, stop=29)
STEPS = {4, 8, 12, 16, 20, 24, 28}


@dataclass(frozen=True)
class Case:
    """A schedule, and its formula in plain Python."""

    schedule: Schedule
    plain: Callable[[int], float]


SPARSITIES = {
    "constant": Case(Constant(0.75), lambda step: 0.75),
    "linear": Case(Linear(0.1, 0.025), lambda step: 0.1 + 0.025 * step),
    "falling": Case(Linear(0.9, -0.03), lambda step: 0.9 - 0.03 * step),
    "exp": Case(Exponential(0.0, -0.1, 0.9), lambda step: 0.9 * (1 - math.exp(-step / 10))),
    "power": Case(Power(0.9, 0.95), lambda step: 0.9 * 0.95**step),
    "cosine": Case(Cosine(0.8, 12, 0.2), lambda s: 0.5 + 0.3 * math.cos(math.pi * s / 12)),
    "cycling": Case(Cycling((0.9, 0.5, 0.0)), lambda step: (0.9, 0.5, 0.0)[step // 4 % 3]),
    "polynomial": Case(Polynomial(0.9, 20), lambda s: 0.9 - 0.9 * (1 - min(s / 20, 1)) ** 3),
}
STRUCTURES: dict[str, Structure] = {"1": Unstructured(), "2:4": NOfM(2, 4), "2x3": Blocks(2, 3)}
DROPS = Case(Cosine(0.5, 28), lambda step: 0.25 + 0.25 * math.cos(math.pi * step / 28))


def build(name: str, target: Target) -> Algorithm:
    match name:
        case "gmp":
            return GMP(target, SEED)
        case "set":
            return SET(target, DROPS.schedule, SEED)
        case "rigl":
            return RigL(target, DROPS.schedule)
        case _:
            return IMP(target, 0)


def compare(packed: Packed, plain: Plain) -> None:
    """Train both and hold masks, weights and states against each other after every step."""
    for step in range(1, NUM_STEPS + 1):
        packed.train(step)
        plain.train(step)
        weights = packed.dense()
        for name, mask in plain.masks.items():
            assert torch.equal(packed.masks[name], mask), (step, name)
            assert torch.equal(weights[name], plain.weights[name]), (step, name)
            for ours, theirs in zip(packed.states[name], plain.states[name], strict=True):
                assert torch.equal(ours, theirs[mask]), (step, name)


@pytest.mark.parametrize(
    ("algorithm", "sparsity", "structure"),
    checkerboard(("gmp", "set", "rigl"), SPARSITIES, sorted(STRUCTURES), one_in=6),
)
def test_masks_weights_and_states_are_those_of_plain_python(
    algorithm: str, sparsity: Case, structure: str
) -> None:
    target = Target(sparsity.schedule, UPDATES, STRUCTURES[structure])
    packed = Packed(build(algorithm, target), InitMethod.RANDOM)
    plain = Plain(algorithm, structure, sparsity.plain, DROPS.plain, STEPS, "random")
    compare(packed, plain)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_rounds_of_magnitude_pruning_begin_again_at_the_initial_weights(structure: str) -> None:
    target = Target(Rounds(0.7, 0.3), UPDATES, STRUCTURES[structure])
    packed = Packed(build("imp", target), InitMethod.TOPK)
    plain = Plain(
        "imp", structure, lambda s: min(0.7, 1 - 0.7 ** (s // 4)), DROPS.plain, STEPS, "topk"
    )
    compare(packed, plain)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_a_static_mask_stays(structure: str) -> None:
    target = Target(Constant(0.5), structure=STRUCTURES[structure])
    packed = Packed(Static(target), InitMethod.TOPK)
    plain = Plain("static", structure, lambda step: 0.5, DROPS.plain, STEPS, "topk")
    compare(packed, plain)
