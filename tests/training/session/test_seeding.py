"""Seeds are pure functions of run seed, step and micro-batch."""

import torch
import xxhash

from openwafer.training.session.forward import generation_seed, micro_batch_seed, seed_micro_batch


def test_the_seed_of_a_micro_batch_never_changes_between_releases() -> None:
    # The formula of docs/guide/train.md: a run resumes bit for bit under a later release.
    assert micro_batch_seed(7, 1000, 3) == xxhash.xxh3_64_intdigest(b"7 1000 3") // 2


def test_every_place_of_a_run_has_a_seed_of_its_own() -> None:
    places = [(seed, step, index) for seed in range(3) for step in range(20) for index in range(4)]
    seeds = {micro_batch_seed(*place) for place in places}
    assert len(seeds | {generation_seed(0)}) == len(places) + 1


def test_seeding_a_micro_batch_repeats_what_is_drawn() -> None:
    seed_micro_batch(1, 2, 3)
    first = torch.rand(4)
    torch.rand(9)
    seed_micro_batch(1, 2, 3)
    assert torch.equal(torch.rand(4), first)
