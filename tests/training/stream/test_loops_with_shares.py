"""A user's loop on several processes, each with a share of the store, against the plain loop."""

from itertools import product
from pathlib import Path

import pytest

from tests.tables import case
from tests.training.stream.loop_programs import SHARED, Loop, Together, plainly
from tests.training.stream.loop_ranks import LoopRanks
from tests.training.stream.share_scenes import Optimize, adagrad, sgd
from tests.training.stream.small_gpt import CONFIG, adamw
from tests.training.stream.test_loops_on_systems import LOOPS, check_equal

ALWAYS = ("seldom zeroed", "scaled and clipped")


@pytest.mark.parametrize("name", [case(one, by_default=one in ALWAYS) for one in LOOPS])
def test_a_loop_on_two_systems_equals_the_plain_loop(loop_ranks: LoopRanks, name: str) -> None:
    check_equal(loop_ranks.run(Together(LOOPS[name], options=SHARED)), plainly(LOOPS[name], 2))


def test_three_systems_add_to_what_earlier_backwards_left(
    loop_ranks: LoopRanks, tmp_path: Path
) -> None:
    loop = Loop(num_backwards=2, clip="own", larger=4)
    found = loop_ranks.run(Together(loop, tmp_path / "store", SHARED), 3)
    check_equal(found, plainly(loop, 3))
    assert {one.name for one in (tmp_path / "store").iterdir()} == {"store-0", "store-1", "store-2"}


def test_an_optimizer_of_others_equals_the_plain_loop(loop_ranks: LoopRanks) -> None:
    loop = Loop(clip="own", optimize=adagrad)
    check_equal(loop_ranks.run(Together(loop, options=SHARED)), plainly(loop, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "clip", "on_disk", "optimize"),
    list(product((2, 3), ("", "own"), (False, True), (adamw, sgd))),
)
def test_every_loop_equals_the_plain_loop(
    loop_ranks: LoopRanks, tmp_path: Path, size: int, clip: str, on_disk: bool, optimize: Optimize
) -> None:
    loop = Loop(CONFIG, num_backwards=2, clip=clip, optimize=optimize)
    folder = tmp_path / "store" if on_disk else None
    check_equal(loop_ranks.run(Together(loop, folder, SHARED), size), plainly(loop, size))
