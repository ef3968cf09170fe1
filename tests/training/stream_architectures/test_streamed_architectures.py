"""Every architecture of the table trains streamed to the bits of the plain loop."""

from pathlib import Path

import pytest

from openwafer.training.stream.activations import Activations
from tests.training.architectures import ARCHITECTURES, Architecture
from tests.training.stream_architectures.parity import compare, micro_batches

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "architectures.md"
# One of each family; the slow tests run all rows under all policies.
FAMILIES = frozenset(
    """llama-dropout mistral qwen3 gpt2-dropout gpt-neox gpt-j opt bloom-dropout falcon phi gemma3
    olmo2 cohere starcoder2 mixtral deepseek-v3 mamba bert-dropout roberta albert deberta-v2
    modernbert t5-dropout bart pegasus vit resnet swin clip llava whisper""".split()  # noqa: SIM905 - reads as the list it is
)
pytestmark = pytest.mark.usefixtures("one_thread")
EVERY_ROW = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda row: row.name)


@pytest.mark.parametrize(
    "architecture", [row for row in ARCHITECTURES if row.name in FAMILIES], ids=lambda row: row.name
)
def test_recomputed_streamed_training_equals_plain_training(architecture: Architecture) -> None:
    parity = compare(architecture, Activations.RECOMPUTE, micro_batches(architecture))
    assert parity.num_differing == 0


def test_all_families_are_rows_of_the_table() -> None:
    assert {row.name for row in ARCHITECTURES} >= FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(Activations))
@EVERY_ROW
def test_streamed_training_equals_plain_training(
    architecture: Architecture, policy: Activations
) -> None:
    assert compare(architecture, policy, micro_batches(architecture)).num_differing == 0


@EVERY_ROW
def test_the_table_in_the_docs_has_a_row(architecture: Architecture) -> None:
    assert f"| {architecture.name} |" in PAGE.read_text(encoding="utf-8")


def test_buffers_kept_in_the_first_pass_are_in_the_predicted_peak() -> None:
    [architecture] = [row for row in ARCHITECTURES if row.name == "gpt-neo"]
    parity = compare(architecture, Activations.RECOMPUTE, 1)
    assert parity.peak_ratio == pytest.approx(1.0, abs=0.005)
