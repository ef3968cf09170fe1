"""A plan sets memory aside for the gradients of whole weights by which RigL grows."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.metrics import load_run
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.sparsity.products import Products
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config, train_quietly

# Of weights that are larger than activations.
MODEL = GptConfig(hidden_size=64, num_layers=2, num_heads=2, context_length=16)
# By default masks change in test_covering_runs, on devices of the planned peak.
pytestmark = pytest.mark.slow
MODES = [Mode.STREAMED, Mode.RESIDENT]
RIGL = SparsityGroup(0.9, AlgorithmName.RIGL, update=EverySteps(2))


def config_of(data: TinyData, folder: Path, mode: Mode, products: Products) -> RunConfig:
    config = tiny_config(data, folder)
    return replace(
        config,
        model=MODEL,
        steps=3,
        sparsity=RIGL,
        sparse_products=products,
        batch=BatchConfig(size=4, sequence_length=12, micro_batches=2),
        streaming=replace(config.streaming, mode=mode),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("products", [Products.DENSE, Products.SPARSE])
def test_no_step_takes_more_than_planned(
    data: TinyData, tmp_path: Path, mode: Mode, products: Products
) -> None:
    config = config_of(data, tmp_path, mode, products)
    planned = Session(config, console=quiet()).plan().predicted_peak_bytes
    run = load_run(train_quietly(replace(config, device_memory=planned)).folder)
    usual, updating, again = (row.device_bytes_peak or 0 for row in run.metrics.rows)
    assert max(usual, again) <= updating <= planned


@pytest.mark.parametrize("mode", MODES)
def test_what_is_planned_beside_is_that_of_one_layer_or_of_all(
    data: TinyData, tmp_path: Path, mode: Mode
) -> None:
    config = config_of(data, tmp_path, mode, Products.DENSE)
    rigl, static = (
        Session(replace(config, sparsity=sparsity), console=quiet()).plan()
        for sparsity in (RIGL, 0.9)
    )
    assert rigl.sparse is not None
    sizes = [4 * weight.elements for weight in rigl.sparse.weights]
    layers = 1 if mode is Mode.STREAMED else MODEL.num_layers
    beside = rigl.predicted_peak_bytes - static.predicted_peak_bytes
    assert beside == sum(sizes) * layers // MODEL.num_layers + max(sizes)
    assert rigl.predicted_host_bytes is not None


def test_updates_behind_the_last_step_take_nothing(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, Mode.STREAMED, Products.DENSE)
    late = replace(RIGL, update=EverySteps(4))
    peaks = [
        Session(replace(config, sparsity=sparsity), console=quiet()).plan().predicted_peak_bytes
        for sparsity in (late, 0.9)
    ]
    assert peaks[0] == peaks[1]
