"""The predicted time of a step is near the real one."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.metrics import load_run
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import TinyData, tiny_config, train_quietly
from tests.training.stream.axes import TIERS

MODEL = GptConfig(hidden_size=512, num_layers=4, num_heads=8, context_length=128)
# The first steps are metered.
WARM_UP_STEPS = 4
# Other programs may begin or end between the prediction and the steps.
MOST_OFF = 2.0


def is_near(config: RunConfig) -> bool:
    """Whether the median step takes about as long as the plan has predicted."""
    run = load_run(train_quietly(config).folder)
    seconds = statistics.median(row.seconds for row in run.metrics.rows[WARM_UP_STEPS:])
    predicted = run.plan.predicted_step_seconds
    return predicted is not None and seconds / MOST_OFF < predicted < seconds * MOST_OFF


def timed_config(data: TinyData, folder: Path, tier: StoreTier, num_samples: int) -> RunConfig:
    return replace(
        tiny_config(data, folder, tier),
        model=MODEL,
        data=replace(data.config(), folder=folder / "tokens"),
        batch=BatchConfig(size=num_samples, sequence_length=64),
        steps=WARM_UP_STEPS + 7,
    )


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_step_takes_about_as_long_as_predicted(
    data: TinyData, tmp_path: Path, tier: StoreTier, num_samples: int
) -> None:
    assert is_near(timed_config(data, tmp_path, tier, num_samples))


@pytest.mark.slow
@pytest.mark.parametrize("products", [Products.SPARSE, Products.DENSE])
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_sparse_step_takes_about_as_long_as_predicted(
    data: TinyData, tmp_path: Path, products: Products, num_samples: int
) -> None:
    config = timed_config(data, tmp_path, StoreTier.DRAM, num_samples)
    assert is_near(replace(config, sparsity=0.9, sparse_products=products))
