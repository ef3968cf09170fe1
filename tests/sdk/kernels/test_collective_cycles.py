"""Cycles of collectives against the published cost model."""

import numpy as np
import pytest

from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels import Shape, Tree
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    LOOK_CYCLES,
    REDUCE_CYCLES,
    compiled,
    cycles_of,
)
from openwafer.sdk.kernels.trees import best_tree
from tests.tables import case

TREES = (Tree(Shape.STAR), Tree(Shape.CHAIN), Tree(Shape.TREE), Tree(Shape.TWO_PHASE, 4))
PUBLISHED = ((2, 10055), (8, 9117), (32, 8973), (128, 9297), (256, 9800))


def assert_close(size: tuple[int, int], length: int, arch: str, tree: Tree | None) -> None:
    """The run is within a tenth of its plan."""
    plan = kernels.plan_collective("all-reduce", size, length, arch=arch, tree=tree)
    cycles = plan.run(np.ones((*size, length), np.float32)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize(
    ("tree", "arch"),
    [
        *(case(tree, "wse2", by_default=i % 2 == 0) for i, tree in enumerate(TREES)),
        (Tree(Shape.TWO_PHASE, 4), "wse3"),
    ],
)
def test_a_sum_takes_what_the_model_says(tree: Tree, arch: str) -> None:
    assert_close((16, 1), 48, arch, tree)


@pytest.mark.parametrize("arch", list(Arch))
def test_a_chain_takes_exactly_what_its_instructions_and_words_say(arch: Arch) -> None:
    plan = kernels.plan_collective("reduce", (3, 1), 16, arch=arch, tree=Tree(Shape.CHAIN))
    assert plan.run(np.ones((3, 1, 16), np.float32)).cycles == plan.cycles


@pytest.mark.parametrize("arch", list(Arch))
def test_a_sum_of_one_pe_takes_exactly_a_look_at_the_clock(arch: Arch) -> None:
    plan = kernels.plan_collective("reduce", (1, 1), 16, arch=arch)
    assert plan.run(np.ones((1, 1, 16), np.float32)).cycles == plan.cycles == LOOK_CYCLES


@pytest.mark.parametrize(
    ("what", "sender", "cycles"), [("reduce", 1, REDUCE_CYCLES), ("broadcast", 0, BROADCAST_CYCLES)]
)
def test_the_instructions_that_plans_count_are_those_of_the_program(
    what: str, sender: int, cycles: int
) -> None:
    plan = kernels.plan_collective(what, (2, 1), 16, tree=Tree(Shape.CHAIN))
    with compiled("collectives", plan.arch, plan.params).run(line_cycles=True) as run:
        run["values"] = np.ones((2, 1, 16), np.float32)
        run.launch("main")
        assert cycles_of(run, plan.arch) == plan.cycles
        lines = [line for line in run.line_cycles(sender) if line.file == f"<kernels/{what}/pe>"]
    assert sum(line.taken for line in lines) == cycles


@pytest.mark.parametrize("arch", list(Arch))
def test_a_sum_of_a_rectangle_takes_what_the_model_says(arch: Arch) -> None:
    assert_close((6, 5), 100, arch, None)


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("num_pes", [4, 16, 64])
@pytest.mark.parametrize("length", [16, 64, 256, 1000])
def test_sums_of_all_sizes_take_what_the_model_says(
    tree: Tree, arch: Arch, num_pes: int, length: int
) -> None:
    assert_close((num_pes, 1), length, arch, tree)


@pytest.mark.slow
@pytest.mark.parametrize("tree", [Tree(Shape.CHAIN), Tree(Shape.TREE), Tree(Shape.TWO_PHASE, 22)])
@pytest.mark.parametrize("length", [64, 4096])
def test_sums_of_512_pes_take_what_the_model_says(tree: Tree, length: int) -> None:
    assert_close((512, 1), length, "wse2", tree)


@pytest.mark.parametrize(("group", "cycles"), PUBLISHED)
def test_the_model_is_near_what_was_published_for_two_phases(group: int, cycles: int) -> None:
    ours = Tree(Shape.TWO_PHASE, group).cycles(512, 4096, Arch.WSE2)
    assert ours == pytest.approx(cycles, rel=0.04)  # as they say of it


def test_the_model_is_near_what_was_published_for_a_chain() -> None:
    assert Tree(Shape.CHAIN).cycles(512, 4096, Arch.WSE2) == pytest.approx(7218, rel=0.01)


@pytest.mark.parametrize("group", [1, 6, 9])
def test_two_phases_with_one_group_or_groups_of_one_are_a_chain(group: int) -> None:
    cycles = [tree.cycles(6, 50, Arch.WSE3) for tree in (Tree(Shape.TWO_PHASE, group), TREES[1])]
    assert cycles[0] == cycles[1]


def test_more_words_go_by_star_by_tree_in_two_phases_and_by_chain() -> None:
    shapes = [best_tree(64, n, n, Arch.WSE2).shape for n in (1, 10, 100, 4000)]
    assert shapes == [Shape.STAR, Shape.TREE, Shape.TWO_PHASE, Shape.CHAIN]
