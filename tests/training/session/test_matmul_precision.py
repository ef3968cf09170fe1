"""A run multiplies as torch is told, in all its processes, and has the bits of the plain loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import MatmulPrecision, RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.session.matmul_precision import (
    ProductRate,
    multiplying,
    product_rate,
    remark_on_products,
)
from openwafer.training.sparsity.kernels.processor import peak_flops
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.foreign_loops import Loop, are_equal, outcome

LEVELS = tuple(case(one, by_default=one is MatmulPrecision.MEDIUM) for one in MatmulPrecision)
# Large enough for torch to hand its products to oneDNN, which rounds where the processor can.
WIDE = replace(GPT, hidden_size=64, mlp_size=128)


@contextmanager
def set_to(level: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(level)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def config_of(data: TinyData, folder: Path, level: MatmulPrecision) -> RunConfig:
    config = tiny_config(data, folder, StoreTier.DISK)
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=2)
    return replace(config, model=WIDE, batch=batch, matmul_precision=level)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_run_equals_the_plain_loop_under_the_same_setting(
    data: TinyData, tmp_path: Path, level: MatmulPrecision
) -> None:
    config = config_of(data, tmp_path, level)
    found = saved_parameters(train_quietly(config))
    with set_to(level):
        assert differing(found, plain_loop(config)) == []


@pytest.mark.slow
def test_a_run_on_two_systems_equals_the_plain_loop_under_the_same_setting(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = config_of(data, tmp_path, MatmulPrecision.MEDIUM)
    found = saved_parameters(pool.train(config, 2))
    with set_to("medium"):
        assert differing(found, plain_loop(config)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_streamed_loop_equals_the_plain_one_under_the_same_setting(level: str) -> None:
    def lines(loop: Loop) -> Any:
        loop.train()
        return loop.parameters

    with set_to(level):
        assert are_equal(outcome(lines), outcome(lines, streams=False))


def test_a_resumed_run_keeps_it_and_the_program_gets_its_own_back(
    data: TinyData, tmp_path: Path
) -> None:
    result = train_quietly(config_of(data, tmp_path, MatmulPrecision.MEDIUM))
    assert torch.get_float32_matmul_precision() == "highest"
    assert Session(result.folder).config.matmul_precision is MatmulPrecision.MEDIUM


def test_what_the_program_has_set_is_not_dropped_silently() -> None:
    refused = pytest.raises(OpenwaferError, match="to high, and the run's config says highest")
    with set_to("high"), refused as caught, multiplying(MatmulPrecision.HIGHEST):
        pass
    assert "write matmul_precision: high in the config" in str(caught.value)


@pytest.mark.parametrize(
    ("medium_off", "told"),
    [
        (1.3e-4, "medium makes them 2.2 times as fast, with a largest error of 1e-04 beside 6e-05"),
        (2e-2, "medium rounds their factors to fewer bits and makes them 2.2 times as fast"),
    ],
)
def test_products_far_below_the_peak_are_said(medium_off: float, told: str) -> None:
    remark = remark_on_products(ProductRate(107e9, 6e-5), ProductRate(236e9, medium_off), 263e9)
    assert remark is not None
    assert remark.message.startswith("dense products run at 41% of this processor's peak (107 of")
    assert told in str(remark.help)


@pytest.mark.parametrize(("own", "medium"), [(164e9, 558e9), (80e9, 90e9)])
def test_products_near_the_peak_or_without_remedy_are_not(own: float, medium: float) -> None:
    assert remark_on_products(ProductRate(own, 1e-6), ProductRate(medium, 1e-6), 219e9) is None


def test_no_product_is_faster_than_the_peak_of_its_format() -> None:
    assert 0 < product_rate(MatmulPrecision.HIGHEST).flops < 1.1 * peak_flops()
