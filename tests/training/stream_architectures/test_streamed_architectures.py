"""Every architecture of the table trains streamed to the bits of the plain loop."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.training.architectures import ARCHITECTURES, BY_DEFAULT, Architecture
from tests.training.stream_architectures.page import (
    NUM_DEFAULT_STEPS,
    NUM_STEPS,
    PAGE,
    PRECISIONS,
    default_cells,
    num_default_micro_batches,
    page,
)
from tests.training.stream_architectures.parity import Training, compare

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = default_cells()
STREAMED = [row for row in ARCHITECTURES if not row.writes_weights]
WAYS = [
    pytest.param(row, precision, id=f"{row.name}-{precision}")
    for row in STREAMED
    for precision in PRECISIONS
    if not (row.needs_fp32_range and precision == "fp16")
]


def name_of(row: Architecture) -> str:
    return row.name


@pytest.mark.parametrize("row", [row for row in ARCHITECTURES if row.name in CELLS], ids=name_of)
def test_a_streamed_step_equals_a_plain_one(row: Architecture) -> None:
    precision, policy = CELLS[row.name]
    num_micro_batches = num_default_micro_batches(row)
    training = Training(row, NUM_DEFAULT_STEPS, PRECISIONS[precision], num_micro_batches)
    assert compare(training, [policy])[0].num_differing == 0


@pytest.mark.slow
@pytest.mark.parametrize(("row", "precision"), WAYS)
def test_twenty_streamed_steps_equal_plain_ones(row: Architecture, precision: str) -> None:
    results = compare(Training(row, NUM_STEPS, PRECISIONS[precision]), list(Activations))
    assert [result.num_differing for result in results] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ARCHITECTURES if row.writes_weights], ids=name_of)
def test_a_forward_that_writes_to_weights_is_refused(row: Architecture) -> None:
    with pytest.raises(OpenwaferError, match="the model's forward writes to the weight"):
        compare(Training(row, num_steps=1), [Activations.KEEP])


def test_what_runs_by_default_are_rows_of_the_table() -> None:
    assert {row.name for row in ARCHITECTURES} >= BY_DEFAULT


def test_the_page_of_the_guide_is_that_of_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "write it with scripts/architecture_table.py"


@pytest.mark.slow
def test_buffers_kept_in_the_first_pass_are_in_the_predicted_peak() -> None:
    [architecture] = [row for row in ARCHITECTURES if row.name == "gpt-neo"]
    [parity] = compare(Training(architecture, num_steps=3), [Activations.RECOMPUTE])
    assert parity.peak_ratio == pytest.approx(1.0, abs=0.005)
