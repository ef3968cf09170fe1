"""Cycles of collectives against the published cost model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels import CollectivePlan, Shape, Tree
from openwafer.sdk.kernels.collectives import Collective
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    LOOK_CYCLES,
    REDUCE_CYCLES,
    compiled,
    cycles_of,
)
from openwafer.sdk.kernels.trees import best_tree
from tests.tables import Row, case, covering, some

TREES = (Tree(Shape.STAR), Tree(Shape.CHAIN), Tree(Shape.TREE), Tree(Shape.TWO_PHASE, 4))
PUBLISHED = ((2, 10055), (8, 9117), (32, 8973), (128, 9297), (256, 9800))


def assert_close(size: tuple[int, int], length: int, arch: str, tree: Tree | None) -> None:
    """The run is within a tenth of its plan."""
    plan = kernels.plan_collective("all-reduce", size, length, arch=arch, tree=tree)
    cycles = plan.run(np.ones((*size, length), np.float32)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


def measured(plan: CollectivePlan) -> int:
    """Cycles of a run."""
    shape = (plan.rows, plan.columns) if plan.collective.has_sum else ()
    return plan.run(np.ones((*shape, plan.length), np.float32)).cycles


@pytest.mark.parametrize(("what", "size"), [("reduce", (12, 1)), ("broadcast", (1, 12))])
def test_hops_count_where_a_word_takes_less(what: str, size: tuple[int, int]) -> None:
    plan = kernels.plan_collective(what, size, 1)
    assert measured(plan) == pytest.approx(plan.cycles, rel=0.1)


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("is_staggered", [False, True])
def test_a_star_of_two_pes_is_a_chain(is_staggered: bool, arch: Arch) -> None:
    star, chain = (
        Tree(shape).cycles(2, 7, arch, is_staggered=is_staggered)
        for shape in (Shape.STAR, Shape.CHAIN)
    )
    assert star == chain


# Each PE has a broadcast, and so begins, two cycles behind the one nearer to the first.
@pytest.mark.parametrize(("shape", "sooner"), [(Shape.STAR, 2 * (9 - 2)), (Shape.CHAIN, 0)])
def test_a_star_behind_a_broadcast_is_sooner_as_near_words_are(shape: Shape, sooner: int) -> None:
    alone, behind = (Tree(shape).cycles(9, 4, Arch.WSE3, follows=one) for one in (False, True))
    assert alone - behind == sooner


@pytest.mark.parametrize(
    ("tree", "arch"),
    [
        *(case(tree, "wse2", by_default=i % 2 == 0) for i, tree in enumerate(TREES)),
        (Tree(Shape.TWO_PHASE, 4), "wse3"),
    ],
)
def test_a_sum_takes_what_the_model_says(tree: Tree, arch: str) -> None:
    assert_close((16, 1), 48, arch, tree)


# Behind the sum come the last sender's command and task. Words wait for commands of PEs on the way,
# for one PE's two operations, and for room in front of the last sender.
@pytest.mark.parametrize(
    ("tree", "arch", "size", "length"),
    [
        (Tree(Shape.STAR), "wse2", (5, 1), 1),
        (Tree(Shape.STAR), "wse2", (4, 1), 16),
        (Tree(Shape.TREE), "wse3", (9, 1), 1),
        (Tree(Shape.TREE), "wse3", (3, 1), 16),
        (Tree(Shape.TREE), "wse2", (4, 1), 12),
        (Tree(Shape.TWO_PHASE, 4), "wse2", (1, 5), 1),
        (Tree(Shape.TWO_PHASE, 3), "wse3", (1, 8), 1),
    ],
)
def test_short_sums_take_exactly_what_their_instructions_and_words_say(
    tree: Tree, arch: str, size: tuple[int, int], length: int
) -> None:
    plan = kernels.plan_collective("reduce", size, length, arch=arch, tree=tree)
    assert measured(plan) == plan.cycles


def test_routers_of_a_tree_hold_its_last_message_until_the_pes_before_have_sent() -> None:
    plan = kernels.plan_collective("reduce", (5, 1), 18, arch="wse2", tree=Tree(Shape.TREE))
    assert measured(plan) == plan.cycles


def test_all_pes_have_a_short_sum_as_soon_as_its_last_sender_is_ready_for_it() -> None:
    plan = kernels.plan_collective("all-reduce", (3, 1), 1, tree=Tree(Shape.STAR))
    assert measured(plan) == plan.cycles


@pytest.mark.parametrize("arch", list(Arch))
def test_a_chain_takes_exactly_what_its_instructions_and_words_say(arch: Arch) -> None:
    plan = kernels.plan_collective("reduce", (3, 1), 16, arch=arch, tree=Tree(Shape.CHAIN))
    assert plan.run(np.ones((3, 1, 16), np.float32)).cycles == plan.cycles


@pytest.mark.parametrize("arch", list(Arch))
def test_a_sum_of_one_pe_takes_exactly_a_look_at_the_clock(arch: Arch) -> None:
    plan = kernels.plan_collective("reduce", (1, 1), 16, arch=arch)
    assert plan.run(np.ones((1, 1, 16), np.float32)).cycles == plan.cycles == LOOK_CYCLES


@pytest.mark.parametrize("arch", list(Arch))
def test_one_pe_that_has_its_sum_takes_exactly_a_change_of_tasks(arch: Arch) -> None:
    plan = kernels.plan_collective("all-reduce", (1, 1), 16, arch=arch)
    assert plan.run(np.ones((1, 1, 16), np.float32)).cycles == plan.cycles


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


@pytest.mark.parametrize("arch", some(Arch, Arch.WSE2))
def test_a_sum_of_a_rectangle_takes_what_the_model_says(arch: Arch) -> None:
    assert_close((6, 5), 100, arch, None)


LINES = ((1, 200), (200, 1), (50, 4), (16, 16), (64, 64))
LENGTHS = (1, 16, 256)


def pairs(*axes: Sequence[Any]) -> list[Row]:
    """Cases in which any two values of two axes meet."""
    return covering(axes, 2, lambda _: True)


def trees_of(num_pes: int) -> list[Tree]:
    """Each shape, two phases with two groups."""
    groups = (4, max(2, round(num_pes**0.5)))
    trees = [Tree(shape) for shape in Shape if shape is not Shape.TWO_PHASE]
    return trees + [Tree(Shape.TWO_PHASE, group) for group in groups]


def others(plan: CollectivePlan) -> Iterator[CollectivePlan]:
    """The plan with each other tree along its rows, and along its last column.

    Without those of half as many cycles more, as plans are nearer to their runs than that.
    """
    rows = [replace(plan, row_tree=tree) for tree in trees_of(plan.columns) if plan.row_tree]
    columns = [replace(plan, column_tree=tree) for tree in trees_of(plan.rows) if plan.column_tree]
    yield from (one for one in rows + columns if one.cycles <= 1.5 * plan.cycles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "arch", "size", "length"), pairs(list(Collective), list(Arch), LINES, LENGTHS)
)
def test_collectives_on_lines_take_what_the_model_says(
    what: Collective, arch: Arch, size: tuple[int, int], length: int
) -> None:
    plan = kernels.plan_collective(what, size, length, arch=arch)
    assert measured(plan) == pytest.approx(plan.cycles, rel=0.1)


SHORT = tuple(Tree(Shape.TWO_PHASE, group) for group in (2, 3, 4, 6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "tree", "arch", "num_pes", "length", "is_row"),
    pairs(
        (Collective.REDUCE, Collective.ALL_REDUCE),
        (*TREES[:3], *SHORT),
        list(Arch),
        range(2, 13),
        (1, 2, 3, 5, 8, 16, 24, 32),
        (False, True),
    ),
)
def test_sums_on_short_lines_take_what_the_model_says(
    what: Collective, tree: Tree, arch: Arch, num_pes: int, length: int, is_row: bool
) -> None:
    size = (1, num_pes) if is_row else (num_pes, 1)
    plan = kernels.plan_collective(what, size, length, arch=arch, tree=tree)
    assert measured(plan) == pytest.approx(plan.cycles, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "size", "length"), pairs(list(Arch), LINES[:4], LENGTHS))
def test_the_trees_that_the_model_chooses_are_near_the_best_ones(
    arch: Arch, size: tuple[int, int], length: int
) -> None:
    plan = kernels.plan_collective("reduce", size, length, arch=arch)
    assert measured(plan) <= 1.1 * min(map(measured, [plan, *others(plan)]))


@pytest.mark.slow
@pytest.mark.parametrize(("is_scatter", "arch", "size"), pairs((False, True), list(Arch), LINES))
def test_values_of_lines_go_to_one_pe_and_back_as_the_model_says(
    is_scatter: bool, arch: Arch, size: tuple[int, int]
) -> None:
    plan = kernels.plan_gather(size, 2, arch=arch, is_scatter=is_scatter)
    cycles = plan.run(np.ones((*size, 2), np.float32)).cycles
    assert cycles == pytest.approx(plan.cycles, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "arch", "num_pes", "length"),
    pairs(TREES, list(Arch), (4, 16, 64), (16, 64, 256, 1000)),
)
def test_sums_of_all_sizes_take_what_the_model_says(
    tree: Tree, arch: Arch, num_pes: int, length: int
) -> None:
    assert_close((num_pes, 1), length, arch, tree)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "length"),
    [
        *((Tree(shape), length) for shape in (Shape.CHAIN, Shape.TREE) for length in (64, 4096)),
        # One of 4,096 words would take an operation of more elements than there can be.
        *((Tree(Shape.TWO_PHASE, 22), length) for length in (64, 1024)),
    ],
)
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


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("what", ["reduce", "all-reduce"])
@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1, 4), (4, 1)])
def test_a_short_line_takes_the_tree_of_the_shortest_plan(
    size: tuple[int, int], what: str, arch: Arch
) -> None:
    for length in (1, 2, 4, 8):
        plan = kernels.plan_collective(what, size, length, arch=arch)
        assert [one for one in others(plan) if one.cycles < plan.cycles] == []


@pytest.mark.parametrize(("slack", "shape"), [(inf, Shape.STAR), (0, Shape.CHAIN)])
def test_a_tree_is_chosen_by_its_last_sender_where_something_waits_for_it(
    slack: float, shape: Shape
) -> None:
    assert best_tree(3, 1, 1, Arch.WSE3, slack=slack).shape is shape
