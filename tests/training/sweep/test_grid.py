"""Keys and values of a sweep, as they are written."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sweep import Axis, Grid
from openwafer.training.sweep.ablation import parse_axis
from openwafer.training.sweep.transfer import parse_widths


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch.size=4,8", ("4", "8")),
        ("model.name = a , b", ("a", "b")),
        (
            "batch={size: 4, micro_batches: 2},{size: 8}",
            ("{size: 4, micro_batches: 2}", "{size: 8}"),
        ),
        ("optimizer.options={betas: [0.9, 0.95]}", ("{betas: [0.9, 0.95]}",)),
    ],
)
def test_values_stand_between_commas_outside_brackets(text: str, values: tuple[str, ...]) -> None:
    assert parse_axis(text) == Axis(text.partition("=")[0].strip(), values)


def test_all_combinations_are_tried_the_last_key_first() -> None:
    grid = Grid((Axis("a", ("1", "2")), Axis("b", ("x", "y"))), (0,))
    assert [tuple(setting.values()) for setting in grid.settings] == [
        *(("1", "x"), ("1", "y")),
        *(("2", "x"), ("2", "y")),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("batch.size", r"sweep-grid.*'batch\.size' is no key with values"),
        ("=1,2", r"sweep-grid.*'=1,2' is no key with values"),
        ("batch.size=4,,8", r"'batch\.size=4,,8' is no key with values"),
        ("batch.size=4,8,4", r"has 4 twice(.|\n)*give each value once"),
        ("seed=1,2", r"seed is what the sweep itself gives(.|\n)*take --seeds N"),
    ],
)
def test_what_is_no_axis_is_refused(text: str, told: str) -> None:
    with pytest.raises(OpenwaferError, match=told):
        parse_axis(text)


def test_widths_are_fields_with_numbers() -> None:
    assert parse_widths("hidden_size=64, num_heads=4") == {"hidden_size": 64, "num_heads": 4}
    for text in ("hidden_size", "hidden_size=wide", "a=1=2", ""):
        with pytest.raises(OpenwaferError, match=r"option-value.*is no list of widths"):
            parse_widths(text)
