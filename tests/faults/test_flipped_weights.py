"""A bit of a weight flips in the memory of one system, and the others find out."""

import re
from pathlib import Path

import pytest

from openwafer.training.models import UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session.config_sections import StreamingConfig
from tests.faults.killed_systems import start
from tests.faults.runs_of_systems import written_config

pytestmark = pytest.mark.slow


def what_a_run_says(folder: Path, size: int, weight: str, rank: int) -> str:
    """Of a run in two stages, one system of which has a faulty memory."""
    model = UserModule("tests.faults.faulty_models:FlippingModel", {"weight": weight, "rank": rank})
    streaming = StreamingConfig(device="cpu", mode=Mode.PIPELINED, stages=2)
    written_config(folder, 2, model=model, streaming=streaming)
    arguments = ["train", str(folder / "tiny.yaml"), "--systems", str(size)]
    return start(arguments).communicate(timeout=120)[0]


@pytest.mark.parametrize(
    ("size", "weight", "rank", "told"),
    [
        (4, "head.bias", 3, ("rank 3", "stage 1 of replica 1", "rank 1", "stage 1 of replica 0")),
        (
            4,
            "layers.0.bias",
            2,
            ("rank 2", "stage 0 of replica 1", "rank 0", "stage 0 of replica 0"),
        ),
        (2, "embedding.weight", 1, ("rank 1", "stage 1", "rank 0", "stage 0")),
    ],
)
def test_a_system_whose_memory_is_faulty_ends_the_run_by_name(
    tmp_path: Path, size: int, weight: str, rank: int, told: tuple[str, str, str, str]
) -> None:
    said = what_a_run_says(tmp_path, size, weight, rank)
    rank_named = r"%s on host '[^']*' \(%s\)"
    named = (
        f"ranks-differ.*in step 0 {rank_named} computed with other values of '{weight}' than "
        f"{rank_named} sent"
    )
    assert re.search(named % told, re.sub(r"\s+", " ", said)), said


def test_systems_whose_memory_is_sound_end_the_run_in_peace(tmp_path: Path) -> None:
    said = what_a_run_says(tmp_path, 4, "head.bias", rank=9)
    assert "step 2/2" in said
    assert "error" not in said
