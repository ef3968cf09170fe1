"""A model with sparse weights writes the same texts wherever its weights and patterns are."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.session import Sampling, Session
from openwafer.training.session.config_sections import OptimizerConfig, ScheduleConfig
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.sparsity.products import Products
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

PROMPTS = ("3", "7 squared is")
DRAWN = Sampling(max_new_tokens=8, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def run(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, behind each of which masks are updated."""
    config = replace(
        tiny_config(data, tmp_path_factory.mktemp("texts")),
        model=GPT,
        steps=2,
        sparsity=SparsityGroup(0.75, AlgorithmName.SET, update=EverySteps(1)),
        sparse_products=Products.SPARSE,
        optimizer=OptimizerConfig(learning_rate=0.1),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )
    return Session(config, console=quiet()).train().folder


def written(run: Path, *sets: str) -> tuple[str, ...]:
    return Session(run, sets, console=quiet()).generate_all(PROMPTS, DRAWN).texts


@pytest.fixture(scope="module")
def texts(run: Path) -> tuple[str, ...]:
    """As the run writes them that was trained."""
    return written(run)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["streaming.mode=resident", "streaming.store=disk"])
def test_texts_are_the_same_wherever_the_weights_are(
    run: Path, texts: tuple[str, ...], way: str
) -> None:
    assert written(run, way) == texts


# By default test_generated_texts writes on a device that is as small as can be.
@pytest.mark.slow
def test_texts_are_the_same_where_patterns_have_no_room(run: Path, texts: tuple[str, ...]) -> None:
    smallest = Session(run, console=quiet()).plan().predicted_peak_bytes
    assert written(run, f"device_memory={smallest}", "streaming.mode=streamed") == texts


@pytest.mark.slow
def test_a_run_that_went_on_writes_with_its_new_masks(run: Path, texts: tuple[str, ...]) -> None:
    session = Session(run, ["steps=3"], console=quiet())
    session.resume()
    after = session.generate_all(PROMPTS, DRAWN).texts
    assert after == written(run, "sparse_products=dense") != texts
