"""Masks are decided on a GPU as on the host."""

import pytest
import torch

from openwafer.training.sparsity.masks.algorithms import GMP, SET, Algorithm, RigL, updated
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask
from openwafer.training.sparsity.masks.schedules import Constant, Cycling, EverySteps, Target
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, Structure, Unstructured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STRUCTURES = [Unstructured(), NOfM(2, 4), Blocks(4, 8)]
FRACTION = Constant(0.3)


def decided(method: InitMethod, of: Target, device: str) -> list[torch.Tensor]:
    """The first mask and those that each algorithm makes of it, on the host."""
    generator = torch.Generator().manual_seed(2)
    weights, gradient = (torch.randn(64, 128, generator=generator).half() for _ in range(2))
    weights, gradient = weights.to(device), gradient.to(device)
    mask = initial_mask(method, weights, of.sparsity_at(0), "w", 3, of.structure)
    rigl = RigL(of, FRACTION)
    algorithms: list[Algorithm] = [GMP(of, 3), SET(of, FRACTION, 3), rigl]
    candidates = rigl.candidates(5, gradient, mask)
    found = [updated(each, 5, "w", weights, mask, candidates).mask for each in algorithms]
    return [each.cpu() for each in (mask, *found)]


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("method", list(InitMethod))
def test_masks_are_those_of_the_host(method: InitMethod, structure: Structure) -> None:
    of = Target(Cycling((0.5, 0.75)), EverySteps(5), structure)
    for ours, theirs in zip(decided(method, of, "cuda"), decided(method, of, "cpu"), strict=True):
        assert torch.equal(ours, theirs)
