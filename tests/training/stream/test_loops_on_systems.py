"""A user's loop on several processes against the plain loop in one, bit for bit."""

from pathlib import Path

import pytest
import torch

from tests.tables import case
from tests.training.stream.loop_programs import Left, Loop, Together, plainly
from tests.training.stream.loop_ranks import LoopRanks

LOOPS = {
    "dropout, tied": Loop(),
    "clipped": Loop(clip="own"),
    "clipped by torch": Loop(clip="torch"),
    "two backwards": Loop(num_backwards=2, clip="torch"),
    "averaged": Loop(num_backwards=2, clip="own", averages=True),
    "zeros": Loop(zeroes="zeros", clip="own", num_backwards=2),
    "seldom zeroed": Loop(zeroes="seldom", clip="own"),
    "scaled": Loop(scales=True),
    "scaled and clipped": Loop(scales=True, clip="torch", num_backwards=2),
    "overflown": Loop(scales=True, clip="own", overflows=1),
    "two forwards": Loop(backward="paired", clip="own"),
    "graph kept": Loop(backward="twice", clip="own"),
    "larger on rank 0": Loop(larger=0),
    "larger on rank 1": Loop(larger=1),
}


def check_equal(found: list[Left], expected: Left) -> None:
    leader = found[0].weights
    assert [n for n, v in expected.weights.items() if not torch.equal(leader[n], v)] == []
    for one in found:
        assert (one.bits_of_norms, one.scale) == (expected.bits_of_norms, expected.scale)


HELD_BY_OTHERS = ("dropout, tied", "clipped", "clipped by torch", "two backwards", "scaled")


@pytest.mark.parametrize(
    "name", [case(name, by_default=name not in HELD_BY_OTHERS) for name in LOOPS]
)
def test_a_loop_on_two_systems_equals_the_plain_loop(loop_ranks: LoopRanks, name: str) -> None:
    check_equal(loop_ranks.run(Together(LOOPS[name])), plainly(LOOPS[name], 2))


def test_a_loop_on_three_systems_equals_the_plain_loop(loop_ranks: LoopRanks) -> None:
    loop = Loop(num_backwards=2, clip="own", larger=4)
    check_equal(loop_ranks.run(Together(loop), 3), plainly(loop, 3))


def test_a_store_on_disk_equals_the_plain_loop(loop_ranks: LoopRanks, tmp_path: Path) -> None:
    loop = Loop(num_backwards=2, clip="own")
    check_equal(loop_ranks.run(Together(loop, tmp_path / "store")), plainly(loop, 2))
