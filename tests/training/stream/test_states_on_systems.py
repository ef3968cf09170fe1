"""Evaluation, saving, loading and the end of a user's loop on several systems."""

from pathlib import Path

import torch

from tests.training.stream import loop_scenes
from tests.training.stream.loop_programs import Loop, plainly
from tests.training.stream.loop_ranks import LoopRanks


def test_all_systems_evaluate_their_own_batches_and_rank_0_by_itself(
    loop_ranks: LoopRanks,
) -> None:
    for rank, found in enumerate(loop_ranks.run(loop_scenes.evaluating)):
        assert found == loop_scenes.plain_losses(rank)


def test_what_rank_0_saves_all_systems_load(loop_ranks: LoopRanks, tmp_path: Path) -> None:
    found, nothing = loop_ranks.run(loop_scenes.Resumed(tmp_path / "saved.pt"))
    expected = plainly(Loop(decay=1.0), 2).weights
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert nothing is None


def test_masters_equal_those_of_one_system(loop_ranks: LoopRanks) -> None:
    found, nothing = loop_ranks.run(loop_scenes.masters)
    expected = loop_scenes.masters_of_one_system()
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert nothing is None


def test_after_close_rank_0_has_the_model(loop_ranks: LoopRanks) -> None:
    found, told = loop_ranks.run(loop_scenes.after_close)
    assert all(map(torch.is_tensor, found.values()))
    assert "[systems-elsewhere]" in told
    assert "if streamed.rank == 0" in told
