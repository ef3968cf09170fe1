"""What a sparsity cannot be: where, what, both values, and the remedy."""

import pytest

from openwafer import config
from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.sparsity.options import (
    SparsityGroup,
    WrittenSparsity,
    resolve,
    sparsity_groups,
)
from tests.training.sparsity.test_sparsity_options import SHAPES, TABLES, Run


def read(text: str) -> WrittenSparsity:
    return config.parse(SourceText("run.yaml", f"sparsity: {text}"), Run).sparsity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{sparsity: 1.0}", r"sparsity: expected in \[0, 1\), found 1\n --> run.yaml:1:22"),
        ("{sparsity: -0.1}", r"sparsity: expected in \[0, 1\), found -0.1"),
        ("{sparsity: .nan}", r"sparsity: expected in \[0, 1\), found nan"),
        ("{sparsity: .inf}", r"sparsity: expected in \[0, 1\), found inf"),
        ("{init_method: topk}", "sparsity: expected a sparsity, found nothing"),
        ("{sparsity: [0.5, 0.2]}", r"static has one sparsity, found the schedule Cycling\(values"),
        ("{sparsity: 0.5, algorithm: gmp, update: {freq: 9}}", "gmp prunes by a schedule, found t"),
        ("{sparsity: 0.5, algorithm: set}", "set updates its masks, and no step for that is"),
        ("{sparsity: 0.5, algorithm: set, update: {steps: [0]}}", "set updates its masks, and no"),
        ("{sparsity: 0.5, update: {freq: 9}}", "update: static never updates its mask"),
        ("{sparsity: 0.5, drop_fraction: 0.3}", "static has no drop_fraction"),
        ("{sparsity: 0.5, prune_fraction: 0.3}", "static has no prune_fraction"),
        ("{sparsity: 0.5, rewind_step: 0}", "static has no rewind_step"),
        ("{sparsity: 0.5, structure: two}", "expected a form such as 2:4 or 4x4, found 'two'"),
        ("{structure: 4:2}", "structure: '4:2' keeps 4 of every 2 weights"),
        ("{structure: 0:4}", "structure: '0:4' keeps 0 of every 4 weights"),
        ("{sparsity: 0.5, structure: '0x4'}", "structure: '0x4' is a block without weights"),
        ("{sparsity: 0.5, param_filter: []}", "param_filter: expected a pattern, found an empty"),
        ("{sparsity: 0.5, param_name_patterns: '*.mlp'}", r"'\*.mlp' is no regular expression: no"),
        (
            "{param_name_patterns: {mlp: {sparsity: 0.9}}}",
            r"found a mapping from patterns to(.|\n)*\[\{param_name_patterns: 'mlp', sparsity: 0",
        ),
        (
            "{sparsity: 0.5, param_filter: a, param_name_patterns: b}",
            "param_filter and param_name_p",
        ),
    ],
)
def test_a_group_that_cannot_be_is_refused_where_it_is_written(text: str, message: str) -> None:
    with pytest.raises(OpenwaferError, match=message) as caught:
        read(text)
    assert "= help: " in str(caught.value)


@pytest.mark.parametrize("text", ["abc", "90%"])
def test_what_is_no_number_is_told_all_that_may_be_written(text: str) -> None:
    message = f"expected a number or a mapping or a list, found the text '{text}'"
    with pytest.raises(OpenwaferError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("drop_fraction: 0", r"drop_fraction: expected in \(0, 1\), found 0"),
        ("drop_fraction: 1", r"drop_fraction: expected in \(0, 1\), found 1"),
        ("drop_fraction: [0.3, 1.5]", r"drop_fraction: expected in \(0, 1\), found 1.5"),
    ],
)
def test_a_drop_fraction_lies_between_0_and_1(written: str, message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        read(f"{{sparsity: 0.5, algorithm: rigl, update: {{freq: 9}}, {written}}}")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("prune_fraction: 1.0", r"prune_fraction: expected in \(0, 1\), found 1"),
        ("rewind_step: -1", "from 0 to before the first update at 9, found -1"),
        ("rewind_step: 9", "from 0 to before the first update at 9, found 9"),
    ],
)
def test_a_round_of_pruning_prunes_some_and_goes_back_to_a_step(written: str, message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        read(f"{{sparsity: 0.5, algorithm: imp, update: {{freq: 9}}, {written}}}")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ((), "sparsity: expected a group, found an empty list"),
        ((SparsityGroup(0.5), SparsityGroup(0.9)), "group 1 of 2 has no filter, so later ones"),
        (1.5, r"sparsity: expected in \[0, 1\), found 1.5"),
    ],
)
def test_a_list_of_groups_that_cannot_be_is_refused(written: WrittenSparsity, message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message):
        sparsity_groups(written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{sparsity: 0.5, param_filter: '*.mpl.*'}",
            r"pattern '\*.mpl.\*' of group 1 of sparsity matches none of 7 parameters",
        ),
        (
            "{sparsity: 0.5, param_filter: ['*.mlp.*', '*.bias']}",
            r"pattern '\*.bias' of group 1 of sparsity matches only 1 vector of 7 parameters",
        ),
        (
            "[{sparsity: 0.5, param_filter: '*.mlp.*'}, {sparsity: 0.9, param_filter: '*.up.*'}]",
            "group 2 of sparsity has no parameter left: earlier groups take all that it matches",
        ),
        (
            "[{sparsity: 0.5, param_filter: 'blocks.*'}, {sparsity: 0.9}]",
            "group 2 of sparsity has no filter, and no weight of a linear module is left ",
        ),
        (
            "{structure: 3:5}",
            r"blocks.0.attention.weight of shape \[8, 8\] cannot be 3:5: its 8 columns are no",
        ),
        (
            "{sparsity: 0.25, structure: 2:4}",
            "blocks.0.attention.weight is to be 2:4, and its sparsity keeps 3 of 4 at its highest",
        ),
        (
            "{sparsity: 0.99}",
            r"attention.weight of shape \[8, 8\] would keep none of its 64 weights at sparsity 0.9",
        ),
        (
            "{algorithm: gmp, sparsity: {type: linear, init: 0, slope: 0.01}, update: {freq: 50}}",
            r"expected a sparsity in \[0, 1\), found 1 at step 100 of Linear",
        ),
        (
            "{algorithm: set, sparsity: 0, update: {freq: 9}, drop_fraction: {init: .2, slope: 1}}",
            r"expected a drop fraction in \[0, 1\), found 9.2 at step 9 of Linear",
        ),
    ],
)
def test_what_does_not_suit_the_model_or_the_run_is_refused(text: str, message: str) -> None:
    groups = sparsity_groups(read(text))
    with pytest.raises(OpenwaferError, match=message) as caught:
        resolve(groups, SHAPES, TABLES, 200, 0)
    assert "= help: " in str(caught.value)


def test_a_schedule_that_leaves_its_range_is_told_with_its_group() -> None:
    text = """
  - {param_filter: "head.*", sparsity: 0.5}
  - {algorithm: set, sparsity: {type: linear, init: 0, slope: 0.1}, update: {freq: 50}}
"""
    with pytest.raises(OpenwaferError, match="found 5 at step 50") as caught:
        resolve(sparsity_groups(read(text)), SHAPES, TABLES, 200, 0)
    assert "= note: group 2 of sparsity\n" in str(caught.value)
