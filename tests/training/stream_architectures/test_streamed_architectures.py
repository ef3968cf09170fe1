"""Every architecture of the table trains streamed to the bits of the plain loop."""

from itertools import product
from pathlib import Path

import pytest

from openwafer.training.stream.activations import Activations
from tests.tables import case
from tests.training.architectures import ARCHITECTURES, FAMILIES, Architecture
from tests.training.stream_architectures.parity import compare, micro_batches

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "architectures.md"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("row", "policy"),
    [
        case(
            row,
            policy,
            by_default=row.name in FAMILIES and policy is Activations.RECOMPUTE,
            id=f"{row.name}-{policy}",
        )
        for row, policy in product(ARCHITECTURES, Activations)
    ],
)
def test_streamed_training_equals_plain_training(row: Architecture, policy: Activations) -> None:
    assert compare(row, policy, micro_batches(row)).num_differing == 0


def test_all_families_are_rows_of_the_table() -> None:
    assert {row.name for row in ARCHITECTURES} >= FAMILIES


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)
def test_the_table_in_the_docs_has_a_row(row: Architecture) -> None:
    assert f"| {row.name} |" in PAGE.read_text(encoding="utf-8")


def test_buffers_kept_in_the_first_pass_are_in_the_predicted_peak() -> None:
    [architecture] = [row for row in ARCHITECTURES if row.name == "gpt-neo"]
    parity = compare(architecture, Activations.RECOMPUTE, 1)
    assert parity.peak_ratio == pytest.approx(1.0, abs=0.005)
