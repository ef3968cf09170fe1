"""A law read from the record of a fit, and what it expects of a run on its way."""

import json
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.loss_laws import Constant, CoursePoint, LawKind, SavedLaw, loss_of, read_law

NAMES = ("scale_flops", "exponent", "floor_loss")
VALUES = (1e6, 0.5, 1.0)
COURSE = (CoursePoint(0.2, 1.1, 1.3), CoursePoint(0.4, 1.0, 1.2), CoursePoint(1.0, 0.9, 1.1))
LAW = SavedLaw(
    LawKind.COMPUTE,
    tuple(Constant(*pair) for pair in zip(NAMES, VALUES, strict=True)),
    tuple(dict(zip(NAMES, (1e6, 0.5, floor / 40), strict=True)) for floor in range(41)),
    {"data": "abc"},
    (1e6, 1e8),
    COURSE,
)


@pytest.mark.parametrize(
    ("kind", "constants", "expected"),
    [
        (LawKind.COMPUTE, {"scale_flops": 4.0, "exponent": 0.5, "floor_loss": 1.0}, 1.2),
        (LawKind.PARAMETRIC, {"E": 1.0, "A": 6.0, "a": 0.5, "B": 5.0, "b": 1.0}, 4.2),
        (LawKind.KAPLAN, {"N_c": 8.0, "a_N": 1.0, "D_c": 50.0, "a_D": 0.5}, 3.0),
    ],
)
def test_each_form_by_hand(kind: LawKind, constants: dict[str, float], expected: float) -> None:
    """4 parameters, 25 tokens, 100 FLOPs; of Kaplan's form ((8/4)^2 + 50/25)^0.5."""
    by_hand = 6**0.5 if kind is LawKind.KAPLAN else expected
    assert loss_of(kind, constants, 4, 25, 100) == pytest.approx(by_hand)


def test_the_end_of_a_run_is_expected_between_the_percentiles_of_the_replicas() -> None:
    """At 1e8 FLOPs the power is 0.1, and floors go from 0 to 1: 0.025 and 0.975 cut off 2.5%."""
    expected = LAW.expected(1, 1, 1e8, share=1.0)
    assert expected is not None
    assert expected.low == pytest.approx(0.9 * (0.1 + 0.025))
    assert expected.high == pytest.approx(1.1 * (0.1 + 0.975))


def test_between_two_shares_the_ratios_are_interpolated() -> None:
    expected = LAW.expected(1, 1, 1e8, share=0.3)
    assert expected is not None
    assert expected.low == pytest.approx(1.05 * 0.125)
    assert expected.high == pytest.approx(1.25 * 1.075)


def test_before_the_first_share_nothing_is_expected() -> None:
    assert LAW.expected(1, 1, 1e8, share=0.19) is None


def refusal(path: Path) -> str:
    with pytest.raises(OpenwaferError, match="law-file") as caught:
        read_law(path)
    return str(caught.value)


def test_what_is_no_record_of_a_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    assert f"{path} cannot be read: No such file" in refusal(path)
    path.write_text("{}")
    assert "is no record of a fit: missing key 'format'" in refusal(path)
    path.write_text(json.dumps({"format": "openwafer-fit", "version": 1}))
    assert "is openwafer-fit version 1; this program reads openwafer-fit 2" in refusal(path)
