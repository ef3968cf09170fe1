"""What a dry run says of host memory beside the store."""

from dataclasses import replace

from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.dry_run import DryRun
from tests.training.stream.both_loops import STREAMED, plan
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
