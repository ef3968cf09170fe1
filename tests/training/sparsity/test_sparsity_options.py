"""How sparsity is written in a config, and which parameters become sparse."""

from dataclasses import dataclass

import pytest

from openwafer import config
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.sparsity.masks.algorithms import GMP, IMP, SET, RigL, Static
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.masks.schedules import (
    AtSteps,
    Constant,
    Cosine,
    Cycling,
    EverySteps,
    Exponential,
    Rounds,
    Target,
)
from openwafer.training.sparsity.masks.structures import Blocks, NOfM
from openwafer.training.sparsity.options import (
    SparsityGroup,
    WrittenSparsity,
    choose_groups,
    resolve,
    sparsity_groups,
)

SHAPES = {
    "embed.weight": (50, 8),
    "blocks.0.attention.weight": (8, 8),
    "blocks.0.mlp.up.weight": (24, 8),
    "blocks.0.mlp.up.bias": (24,),
    "blocks.0.mlp.down.weight": (8, 24),
    "blocks.0.norm.weight": (8,),
    "head.weight": (50, 8),
}
TABLES = {"embed.weight", "head.weight"}
MATRICES = [name for name in SHAPES if len(SHAPES[name]) == 2 and name not in TABLES]

EVERY_ALGORITHM = """
sparsity:
  - param_filter: "*.up.weight"
    algorithm: rigl
    sparsity: 0.9
    update: {freq: 100, stop: 750}
    drop_fraction: {type: cosine, init: 0.4, half_period: 750}
  - param_filter: "*.down.weight"
    algorithm: gmp
    sparsity: {type: exp, init: 0, gamma: -0.001}
    update: {freq: 100, start: 50}
    structure: 4x8
  - {param_filter: "*.attention.*", algorithm: set, sparsity: [0.5, 0.25], update: {steps: [9]}}
  - {param_filter: "head.*", algorithm: imp, sparsity: 0.9, update: {freq: 40}, rewind_step: 0}
"""


@dataclass(frozen=True)
class Run:
    sparsity: WrittenSparsity


def read(text: str) -> tuple[SparsityGroup, ...]:
    return sparsity_groups(config.parse(SourceText("run.yaml", text), Run).sparsity)


def test_a_number_makes_all_matrices_sparse_but_embeddings_and_heads() -> None:
    found = resolve(read("sparsity: 0.75"), SHAPES, TABLES, 100, 7)
    assert list(found) == MATRICES
    assert found["blocks.0.mlp.up.weight"].algorithm == Static(Target(Constant(0.75)))
    assert found["blocks.0.mlp.up.weight"].init_method is InitMethod.RANDOM
    assert found["blocks.0.mlp.up.weight"].capacity == 48


def test_the_three_keys_of_the_literature_work_as_printed() -> None:
    text = 'sparsity:\n  sparsity: 0.3\n  init_method: topk\n  param_name_patterns: "mlp.*weight"'
    found = resolve(read(text), SHAPES, TABLES, 100, 7)
    assert list(found) == ["blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"]
    assert {each.init_method for each in found.values()} == {InitMethod.TOPK}
    assert {each.algorithm for each in found.values()} == {Static(Target(Constant(0.3)))}


def test_the_first_group_that_matches_wins() -> None:
    text = """
sparsity:
  - {param_filter: "*.mlp.*", sparsity: 0.9}
  - {param_filter: ["head.*", "blocks.0.*"], sparsity: 0.5}
"""
    assert choose_groups(read(text), SHAPES, TABLES) == {
        "blocks.0.mlp.up.weight": 0,
        "blocks.0.mlp.down.weight": 0,
        "blocks.0.attention.weight": 1,
        "head.weight": 1,
    }


def test_a_last_group_without_filter_takes_the_other_matrices() -> None:
    text = "sparsity: [{param_filter: '*.mlp.*', sparsity: 0.9}, {sparsity: 0.5}]"
    chosen = choose_groups(read(text), SHAPES, TABLES)
    assert {name: index for name, index in chosen.items() if index} == {
        "blocks.0.attention.weight": 1
    }


def test_globs_match_whole_names_and_expressions_any_part() -> None:
    by_glob = SparsityGroup(0.5, param_filter="mlp*")
    by_expression = SparsityGroup(0.5, param_name_patterns="mlp")
    assert not by_glob.matches("mlp*", "blocks.0.mlp.up.weight")
    assert by_expression.matches("mlp", "blocks.0.mlp.up.weight")


def test_every_algorithm_is_read_with_its_keys() -> None:
    found = resolve(read(EVERY_ALGORITHM), SHAPES, TABLES, 800, 7)
    updates = EverySteps(100, stop=750)
    assert [parameter.algorithm for parameter in found.values()] == [
        SET(Target(Cycling((0.5, 0.25)), AtSteps((9,))), Constant(0.3), 7),
        RigL(Target(Constant(0.9), updates), Cosine(0.4, 750)),
        GMP(Target(Exponential(0, -0.001), EverySteps(100, 50), Blocks(4, 8)), 7),
        IMP(Target(Rounds(0.9, 0.2), EverySteps(40)), 0),
    ]


def test_two_in_four_needs_no_sparsity() -> None:
    found = resolve(read("sparsity: {structure: 2:4}"), SHAPES, TABLES, 100, 7)
    assert found["blocks.0.mlp.up.weight"].algorithm.target == Target(
        Constant(0.5), structure=NOfM(2, 4)
    )


def test_capacity_covers_sparsity_that_falls_later() -> None:
    text = "sparsity: {algorithm: set, sparsity: [0.75, 0.0], update: {steps: [50]}}"
    assert resolve(read(text), SHAPES, TABLES, 40, 7)["blocks.0.attention.weight"].capacity == 16
    assert resolve(read(text), SHAPES, TABLES, 60, 7)["blocks.0.attention.weight"].capacity == 64


def test_written_groups_read_back_as_they_are() -> None:
    text = "sparsity: {algorithm: set, sparsity: [0.75, 0.0], update: {steps: [50]}}"
    run = config.parse(SourceText("run.yaml", text), Run)
    assert config.parse(SourceText("again.yaml", config.to_yaml(run)), Run) == run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparsity: {spasity: 0.5}", "no key 'spasity' here\n --> run.yaml:1:12"),
        ("sparsity: 0.5%", "a number or a mapping or a list, found the text '0.5%'"),
        ("sparsity: {sparsity: 0.5, algorithm: rigel}", "no such choice: the text 'rigel'"),
        ("sparsity: {sparsity: 0.5, init_method: best}", "no such choice: the text 'best'"),
        ("sparsity: {sparsity: {type: log}}", "no such choice: the text 'log'"),
        (
            "sparsity: [{sparsity: 0.5}, {sparsity: {type: cosine, init: 0.3, beta: 1}}]",
            "no key 'beta' here\n --> run.yaml:1:66",
        ),
        ("sparsity: {update: {freq: 0}}", "freq: expected at least 1, found 0\n --> run.yaml:1:27"),
        ("sparsity: {sparsity: 0.5, update: {freq: 1, steps: [1]}}", "'steps' does not go togethe"),
    ],
)
def test_a_mistake_of_writing_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(OpenwaferError) as caught:
        read(text)
    assert message in str(caught.value)
