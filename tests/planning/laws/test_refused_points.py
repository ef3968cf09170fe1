"""What no law is fitted to, in words."""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import TrainedPoint, fit_compute_law
from tests.planning.laws.pile_models import POINTS


def refusal(points: list[TrainedPoint]) -> str:
    with pytest.raises(OpenwaferError, match="help: ") as caught:
        fit_compute_law(points)
    return str(caught.value)


def test_three_points_are_too_few_for_three_constants() -> None:
    text = refusal(list(POINTS[:3]))
    assert text.startswith("error[points-few]: 3 points for a law of 3 constants")
    assert text.endswith("help: train at least 4 models, better 6")


def test_points_of_one_compute_are_refused() -> None:
    text = refusal([replace(POINTS[0], loss=2 + n / 10) for n in range(5)])
    assert "5 points of 1 different computes, from 2.6e+18 to 2.6e+18 FLOPs" in text


@pytest.mark.parametrize("loss", [0.0, -1.0, float("nan"), float("inf")])
def test_a_loss_that_no_law_can_take_is_told(loss: float) -> None:
    text = refusal([*POINTS, TrainedPoint(loss, 1e20, name="odd")])
    assert f"the loss of odd is {loss:g}, not a finite number above 0" in text


def test_a_compute_that_no_law_can_take_is_told() -> None:
    text = refusal([*POINTS, TrainedPoint(2.0, 0.0, name="odd")])
    assert "the flops of odd is 0, not a finite number above 0" in text


def test_runs_of_another_tokenizer_are_refused() -> None:
    text = refusal([*POINTS, replace(POINTS[0], tokenizer="llama", name="odd")])
    assert "the tokenizer gpt2, odd the tokenizer llama: their losses are of different" in text
    assert "fit the runs of one tokenizer and vocabulary at a time" in text


@pytest.mark.parametrize(
    ("key", "one", "other", "told"),
    [
        ("data", "a1", "b2", "has the data a1, odd the data b2: they learned"),
        ("precision", "fp32", "bf16", "the precision fp32, odd the precision bf16: numbers"),
        ("sequence_length", 64, 128, "the sequence length 64, odd the sequence length 128"),
        ("sparsity", 0.0, 0.9, "the sparsity 0.0, odd the sparsity 0.9: parameters and FLOPs"),
        ("schedule", "cosine", "constant", "the schedule cosine, odd the schedule constant"),
        ("held_out_tokens", 8, 9, "the held out tokens 8, odd the held out tokens 9: their"),
    ],
)
def test_runs_under_other_conditions_are_refused_with_both_values(
    key: str, one: object, other: object, told: str
) -> None:
    points = [TrainedPoint(**{**vars(point), key: one}) for point in POINTS]
    text = refusal([*points, TrainedPoint(**{**vars(POINTS[0]), key: other, "name": "odd"})])
    assert text.startswith("error[points-conditions]: 2.6e+18 has the ")
    assert told in text
