"""What a dry run says of host memory beside the store."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.dry_run import DryRun
from openwafer.training.stream.plan.report import host_peak
from tests.training.stream.both_loops import STREAMED, Run, plan
from tests.training.stream.small_gpt import gpt_run


def dry_run_with(activations: Activations) -> DryRun:
    options = replace(STREAMED, default_activations=activations)
    return plan(gpt_run(), options).plan.dry


def test_activations_that_leave_a_device_in_host_memory_stay_in_host_memory() -> None:
    kept, offloaded = map(dry_run_with, (Activations.KEEP, Activations.OFFLOAD))
    assert offloaded.peak_bytes < kept.peak_bytes
    assert offloaded.host_bytes >= 0.95 * kept.host_bytes


def test_weights_that_the_store_lends_are_not_counted_again() -> None:
    kept = dry_run_with(Activations.KEEP)
    assert kept.host_bytes < kept.peak_bytes


@pytest.mark.parametrize(("clip_norm", "numbers"), [(None, 3), (1.0, 4)])
def test_the_predicted_peak_has_moments_and_the_gradients_that_wait_for_their_norm(
    clip_norm: float | None, numbers: int
) -> None:
    layers, width, much = 3, 64, 1 << 40
    run = Run(
        build=lambda: nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))),
        optimize=lambda model: torch.optim.AdamW(model.parameters()),
        draw=lambda generator: torch.randn(2, width, generator=generator),
        loss_of=lambda model, x: model(x).sum(),
        num_steps=1,
        clip_norm=clip_norm,
    )
    planned = plan(run, replace(STREAMED, min_layer_bytes=0))
    held = host_peak(much, planned.plan, planned.share(0)) - much - planned.plan.dry.host_bytes
    assert held == layers * numbers * 4 * width**2
