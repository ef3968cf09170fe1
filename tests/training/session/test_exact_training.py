"""A run's parameters against those of a plain PyTorch loop, bit for bit.

What options have beside each other is in test_covering_runs.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session.config_sections import BatchConfig, Precision, StreamingConfig
from openwafer.training.step import LossScaling
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_a_streamed_run_equals_the_plain_loop(
    data: TinyData,
    tmp_path: Path,
    tier: StoreTier,
    num_micro_batches: int,
    clip_norm: float | None,
) -> None:
    config = replace(
        tiny_config(data, tmp_path, tier),
        clip_norm=clip_norm,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=num_micro_batches),
    )
    assert differing(saved_parameters(train_quietly(config)), plain_loop(config)) == []


def test_a_resident_run_equals_the_plain_loop(data: TinyData, tmp_path: Path) -> None:
    config = replace(
        tiny_config(data, tmp_path),
        streaming=StreamingConfig(device="cpu", mode=Mode.RESIDENT),
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=2),
    )
    assert differing(saved_parameters(train_quietly(config)), plain_loop(config)) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_a_transformer_that_recomputes_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, num_micro_batches: int
) -> None:
    config = tiny_config(data, tmp_path, StoreTier.DISK)
    config = replace(
        config,
        model=GPT,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=num_micro_batches),
        streaming=replace(config.streaming, activations=Activations.RECOMPUTE),
    )
    assert differing(saved_parameters(train_quietly(config)), plain_loop(config)) == []


@pytest.mark.slow
def test_bf16_autocast_equals_the_plain_loop(data: TinyData, tmp_path: Path) -> None:
    config = replace(
        tiny_config(data, tmp_path, StoreTier.DISK),
        precision=Precision.BF16,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=2),
    )
    assert differing(saved_parameters(train_quietly(config)), plain_loop(config)) == []


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [None, case(0.1, by_default=False)])
@pytest.mark.parametrize("initial_scale", [case(1024.0, by_default=False), 1e38])
def test_fp16_with_a_loss_scale_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, clip_norm: float | None, initial_scale: float
) -> None:
    # The large scale overflows in the first step, which is then skipped.
    config = replace(
        tiny_config(data, tmp_path, StoreTier.DISK),
        precision=Precision.FP16,
        loss_scale=LossScaling(initial_scale=initial_scale, backoff_factor=1e-36),
        clip_norm=clip_norm,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=2),
    )
    assert differing(saved_parameters(train_quietly(config)), plain_loop(config)) == []
