"""Values, ends and mistakes of a user's own loop whose systems own a share of the store each."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.stream import loop_scenes, share_scenes
from tests.training.stream.loop_programs import OPTIONS, SHARED, Loop, plainly
from tests.training.stream.loop_ranks import LoopRanks
from tests.training.stream.loop_scenes import Mistake
from tests.training.stream.share_scenes import HostBytes, Optimized


def check_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_all_systems_evaluate_and_rank_0_by_itself(loop_ranks: LoopRanks) -> None:
    for rank, found in enumerate(loop_ranks.run(partial(loop_scenes.evaluating, SHARED), 2)):
        assert found == loop_scenes.plain_losses(rank)


def test_what_rank_0_saves_all_systems_load(loop_ranks: LoopRanks, tmp_path: Path) -> None:
    found, nothing = loop_ranks.run(loop_scenes.Resumed(tmp_path / "saved.pt", SHARED))
    check_same(found, plainly(Loop(decay=1.0), 2).weights)
    assert nothing is None


def test_masters_equal_those_of_one_system(loop_ranks: LoopRanks) -> None:
    found, _ = loop_ranks.run(partial(loop_scenes.masters, SHARED))
    check_same(found, loop_scenes.masters_of_one_system())


def test_after_close_rank_0_has_weights_gradients_and_states(loop_ranks: LoopRanks) -> None:
    found, nothing = loop_ranks.run(share_scenes.closed)
    check_same(found, share_scenes.closed_plainly())
    assert nothing is None


@pytest.mark.slow
def test_a_system_may_have_no_record(loop_ranks: LoopRanks) -> None:
    found, *nothing = loop_ranks.run(share_scenes.on_three_systems, 3)
    check_same(found, share_scenes.on_one_system())
    assert nothing == [None, None]


def test_barriers_of_the_program_may_stand_between_its_lines(loop_ranks: LoopRanks) -> None:
    found, _ = loop_ranks.run(share_scenes.with_barriers)
    check_same(found, plainly(share_scenes.SCALED, 2).weights)


def test_the_host_of_rank_0_needs_a_share_of_the_store(loop_ranks: LoopRanks) -> None:
    store_bytes = 4 * 4 * share_scenes.NUM_LAYERS * share_scenes.WIDTH**2
    with_all, _ = loop_ranks.run(HostBytes(OPTIONS))
    with_half, other_half = loop_ranks.run(HostBytes(SHARED))
    assert with_half < with_all - store_bytes / 4
    assert other_half < with_all - store_bytes / 4


def test_a_value_of_another_system_is_refused_in_a_forward(loop_ranks: LoopRanks) -> None:
    ((told,), nothing) = loop_ranks.run(share_scenes.read_in_a_forward)
    assert nothing == []
    assert "[systems-in-pass]: a value is in the parameter store of rank 1 on host" in told
    assert "use it before the forward or behind the backward" in told


@pytest.mark.slow
def test_a_value_that_its_owner_does_not_send_in_time_is_an_error(loop_ranks: LoopRanks) -> None:
    told = loop_ranks.run(share_scenes.read_behind_a_barrier)[0]
    assert "for rank 1 on host" in told
    assert "to take what it is asked for" in told
    assert "a barrier of the program's own keeps it from that" in told


def test_a_gradient_that_one_system_reads_is_refused_on_all(loop_ranks: LoopRanks) -> None:
    for told in loop_ranks.run(Mistake(loop_scenes.gradient_on_one, SHARED)):
        assert "does a read of the gradient of 'embedding.weight', rank 1" in told


OPTIMIZERS = {
    "states": (share_scenes.other_states_on_rank_1, "[systems-states]: the optimizer keeps other"),
    "pickle": (share_scenes.locked, "[optimizer-unsendable]: systems that own records update them"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_cannot_update_elsewhere_are_refused(
    loop_ranks: LoopRanks, name: str
) -> None:
    optimize, expected = OPTIMIZERS[name]
    assert any(expected in told for told in loop_ranks.run(Optimized(optimize)))
