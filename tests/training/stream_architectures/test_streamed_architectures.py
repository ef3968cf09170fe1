"""Every architecture of the table trains streamed to the bits of the plain loop."""

from pathlib import Path

import pytest

from openwafer.training.plan_record import Activations
from tests.training.architectures import ARCHITECTURES, FAMILIES, Architecture
from tests.training.stream_architectures.parity import compare, micro_batches

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "architectures.md"
pytestmark = pytest.mark.usefixtures("one_thread")


def name_of(row: Architecture) -> str:
    return row.name


@pytest.mark.parametrize("row", [row for row in ARCHITECTURES if row.name in FAMILIES], ids=name_of)
def test_three_streamed_steps_equal_plain_ones(row: Architecture) -> None:
    parity = compare(row, Activations.RECOMPUTE, micro_batches(row), num_steps=3)
    assert parity.num_differing == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", Activations)
@pytest.mark.parametrize("row", ARCHITECTURES, ids=name_of)
def test_twenty_streamed_steps_equal_plain_ones(row: Architecture, policy: Activations) -> None:
    assert compare(row, policy, micro_batches(row)).num_differing == 0


def test_all_families_are_rows_of_the_table() -> None:
    assert {row.name for row in ARCHITECTURES} >= FAMILIES


@pytest.mark.parametrize("row", ARCHITECTURES, ids=name_of)
def test_the_table_in_the_docs_has_a_row(row: Architecture) -> None:
    assert f"| {row.name} |" in PAGE.read_text(encoding="utf-8")


def test_buffers_kept_in_the_first_pass_are_in_the_predicted_peak() -> None:
    [architecture] = [row for row in ARCHITECTURES if row.name == "gpt-neo"]
    parity = compare(architecture, Activations.RECOMPUTE, 1, num_steps=3)
    assert parity.peak_ratio == pytest.approx(1.0, abs=0.005)
