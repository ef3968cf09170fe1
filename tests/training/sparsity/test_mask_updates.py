"""What holds for one update of any weight, mask, gradient, sparsity and drop fraction."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.masks.algorithms import (
    GMP,
    IMP,
    SET,
    Algorithm,
    MaskUpdate,
    RigL,
    Static,
    carried,
    drop_fraction_at,
    is_update,
    updated,
    wants_gradient,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask
from openwafer.training.sparsity.masks.schedules import Constant, Cycling, EverySteps, Target
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, Structure, Unstructured
from tests.examples import examples
from tests.training.sparsity.plain_masks import (
    PlainUpdate,
    plain_units,
    plain_update,
    to_tensor,
)

STRUCTURES: dict[str, Structure] = {"1": Unstructured(), "2:4": NOfM(2, 4), "2x3": Blocks(2, 3)}
SHAPE = (8, 12)
STEP = 5


def numbers(seed: int, num_values: int) -> Tensor:
    """Random numbers of few values, so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-num_values, num_values + 1, SHAPE, generator=generator) / 8


def target(before: float, after: float, structure: str) -> Target:
    """Of sparsity `before` at the start and `after` at the update of step 5."""
    return Target(Cycling((before, after)), EverySteps(STEP), STRUCTURES[structure])


def start(of: Target) -> Tensor:
    return initial_mask(
        InitMethod.RANDOM, torch.empty(SHAPE), of.sparsity_at(0), "w", 3, of.structure
    )


def update(algorithm: Algorithm, weights: Tensor, mask: Tensor, gradient: Tensor) -> MaskUpdate:
    candidates = None
    if isinstance(algorithm, RigL):
        candidates = algorithm.candidates(STEP, gradient, mask)
    return updated(algorithm, STEP, "w", weights, mask, candidates)


percents = st.integers(0, 99).map(lambda percent: percent / 100)
structures = st.sampled_from(sorted(STRUCTURES))


@examples(200)
@given(percents, percents, percents, structures, st.integers(0, 999), st.integers(1, 99))
def test_growth_from_candidates_is_growth_from_the_whole_gradient(
    before: float, after: float, drop: float, structure: str, seed: int, num_values: int
) -> None:
    of = target(before, after, structure)
    mask, units = start(of), plain_units(structure, SHAPE)
    weights, gradient = numbers(seed, num_values) * mask, numbers(seed + 1, num_values)
    found = update(RigL(of, Constant(drop)), weights, mask, gradient)
    flat = mask.flatten()
    kept = {unit for unit, positions in units.items() if flat[positions].all()}
    plain = PlainUpdate(units, kept, weights, gradient, after, drop, {})
    assert torch.equal(found.mask, to_tensor(plain_update("rigl", plain), units, SHAPE))


@given(percents, percents, percents, st.integers(0, 99))
def test_a_gradient_shrinks_to_what_is_kept_and_what_may_grow(
    before: float, after: float, drop: float, seed: int
) -> None:
    of = target(before, after, "1")
    mask = start(of)
    candidates = RigL(of, Constant(drop)).candidates(STEP, numbers(seed, 50), mask)
    num_kept, num_dropped = int(mask.sum()), round(drop * 100) * int(mask.sum()) // 100
    grown = of.num_kept(STEP, SHAPE) - min(num_kept - num_dropped, of.num_kept(STEP, SHAPE))
    assert candidates.kept.numel() == num_kept
    assert candidates.others.numel() == min(grown, mask.numel() - num_kept)


@given(percents, percents, percents, structures, st.sampled_from("gsri"), st.integers(0, 99))
def test_the_number_kept_is_the_target_whatever_it_was(
    before: float, after: float, drop: float, structure: str, letter: str, seed: int
) -> None:
    of = target(before, max(before, after) if letter == "i" else after, structure)
    algorithm = algorithms(of, drop)[letter]
    mask = start(of)
    found = update(algorithm, numbers(seed, 50) * mask, mask, numbers(seed + 1, 50))
    assert int(found.mask.sum()) == of.num_kept(STEP, SHAPE)
    assert torch.equal(found.mask, mask & ~found.dropped | found.regrown)
    assert not (found.dropped & ~mask).any()
    assert not (found.regrown & mask).any()


def algorithms(of: Target, drop: float) -> dict[str, Algorithm]:
    fraction = Constant(drop)
    return {"g": GMP(of, 3), "s": SET(of, fraction, 3), "r": RigL(of, fraction), "i": IMP(of, None)}


@given(percents, percents, st.sampled_from("sr"), st.integers(0, 99))
def test_what_is_dropped_is_the_smallest_share_and_as_many_grow(
    before: float, drop: float, letter: str, seed: int
) -> None:
    of = target(before, before, "1")
    mask = start(of)
    weights = numbers(seed, 50) * mask
    found = update(algorithms(of, drop)[letter], weights, mask, numbers(seed + 1, 50))
    smallest = sorted(weights[mask].abs().tolist())[: round(drop * 100) * int(mask.sum()) // 100]
    assert found.num_dropped == found.num_regrown <= len(smallest)
    assert all(size <= smallest[-1] for size in weights[found.dropped].abs().tolist())


@given(percents, percents, st.integers(0, 99))
def test_rising_sparsity_prunes_what_is_smallest_and_grows_nothing(
    before: float, after: float, seed: int
) -> None:
    of = target(min(before, after), max(before, after), "1")
    mask = start(of)
    weights = numbers(seed, 50) * mask
    found = update(GMP(of, 3), weights, mask, weights)
    assert not found.regrown.any()
    if found.mask.any() and found.dropped.any():
        assert weights[found.dropped].abs().max() <= weights[found.mask].abs().min()


def test_a_weight_that_is_dropped_and_grows_again_stays_as_it_is() -> None:
    weights = torch.tensor([[4.0, 3.0, 0.1, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    algorithm = RigL(Target(Constant(0.25), EverySteps(STEP)), Constant(0.4))
    grows = update(algorithm, weights, mask, torch.tensor([[0.0, 0.0, 9.0, 1.0]]))
    moves = update(algorithm, weights, mask, torch.tensor([[0.0, 0.0, 1.0, 9.0]]))
    assert (grows.num_dropped, grows.mask.tolist()) == (0, mask.tolist())
    assert moves.dropped.tolist() == [[False, False, True, False]]
    assert moves.regrown.tolist() == [[False, False, False, True]]


def test_values_and_states_of_what_is_regrown_begin_at_zero() -> None:
    before = torch.tensor([[True, True, False], [False, True, True]])
    after = torch.tensor([[True, False, True], [False, True, False]])
    assert carried(torch.tensor([1.0, 2.0, 3.0, 4.0]), before, after).tolist() == [1.0, 0.0, 3.0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_gradient_that_is_not_finite_changes_nothing(wrong: float, is_kept: bool) -> None:
    of = target(0.5, 0.75, "1")
    mask = start(of)
    gradient = numbers(1, 50)
    gradient.view(-1)[int((mask == is_kept).flatten().nonzero()[3])] = wrong
    found = update(RigL(of, Constant(0.3)), numbers(2, 50) * mask, mask, gradient)
    assert found.is_skipped
    assert torch.equal(found.mask, mask)
    assert found.num_dropped == found.num_regrown == 0


@pytest.mark.parametrize("letter", "gsri")
def test_weights_that_are_not_finite_change_nothing(letter: str) -> None:
    of = target(0.5, 0.75, "2x3")
    mask = start(of)
    weights = torch.where(mask, math.nan, 1.0)
    found = update(algorithms(of, 0.3)[letter], weights, mask, numbers(1, 50))
    assert found.is_skipped
    assert torch.equal(found.mask, mask)


def test_values_beside_the_mask_are_not_read() -> None:
    of = target(0.5, 0.75, "1")
    mask = start(of)
    weights = numbers(1, 50)
    clean = update(GMP(of, 3), weights * mask, mask, weights)
    dirty = update(GMP(of, 3), torch.where(mask, weights, math.nan), mask, weights)
    assert torch.equal(clean.mask, dirty.mask)


def test_steps_between_updates_change_nothing_and_want_no_gradient() -> None:
    of = target(0.5, 0.75, "1")
    mask = start(of)
    rigl = RigL(of, Constant(0.3))
    assert torch.equal(updated(rigl, STEP + 1, "w", numbers(1, 9), mask).mask, mask)
    assert [wants_gradient(rigl, step) for step in (0, 4, 5, 6, 10)] == [0, 0, 1, 0, 1]
    assert not any(wants_gradient(SET(of, Constant(0.3), 1), step) for step in range(20))
    assert not any(is_update(Static(Target(Constant(0.5))), step) for step in range(20))


def test_growing_by_gradient_without_one_is_refused() -> None:
    of = target(0.5, 0.5, "1")
    with pytest.raises(OpenwaferError, match="RigL grows w at step 5 by its gradient, and was"):
        updated(RigL(of, Constant(0.3)), STEP, "w", numbers(1, 9), start(of))


def test_a_drop_fraction_that_leaves_the_range_is_refused() -> None:
    algorithm = SET(target(0.5, 0.5, "1"), Cycling((0.3, 1.0)), 3)
    with pytest.raises(OpenwaferError, match=r"drop fraction in \[0, 1\), found 1 at step 5"):
        drop_fraction_at(algorithm, STEP)


def test_a_mask_of_another_structure_is_refused() -> None:
    of = target(0.5, 0.5, "2x3")
    mask = torch.zeros(SHAPE, dtype=torch.bool)
    mask[0, 0] = True
    with pytest.raises(OpenwaferError, match="1 blocks of 2x3 of 16 are kept in part"):
        updated(GMP(of, 3), STEP, "w", numbers(1, 9), mask)


def test_random_growth_differs_by_step_and_by_name() -> None:
    of = Target(Constant(0.5), EverySteps(1))
    mask = start(of)
    weights = numbers(1, 50) * mask
    found = [
        updated(SET(of, Constant(0.5), 3), step, name, weights, mask).mask
        for step, name in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])
