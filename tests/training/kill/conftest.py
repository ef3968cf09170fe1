"""Runs from disk that nothing disturbed, for others to equal."""

from dataclasses import replace

import pytest

from openwafer.training.session import RunConfig, Weights
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.kill.killed_runs import NUM_STEPS, run_to_the_end
from tests.training.session.tiny_runs import GPT, MODEL, TinyData, make_tiny_data, tiny_config

# Norms of the GPT are about 3: some of its steps are updated at once and undone.
KINDS = {
    "clipped, in bf16": (MODEL, 0.1, Weights.BF16),
    "not clipped": (MODEL, None, Weights.FP32),
    "undone": (GPT, 3.1, Weights.FP32),
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", params=list(KINDS.values()), ids=list(KINDS))
def unbroken(
    request: pytest.FixtureRequest, data: TinyData, tmp_path_factory: pytest.TempPathFactory
) -> RunConfig:
    """The config of a run from disk that nothing disturbed."""
    config = tiny_config(data, tmp_path_factory.mktemp("unbroken"), StoreTier.DISK)
    model, clip_norm, weights = request.param
    config = replace(config, model=model, steps=NUM_STEPS, clip_norm=clip_norm, weights=weights)
    run_to_the_end(config)
    return config
