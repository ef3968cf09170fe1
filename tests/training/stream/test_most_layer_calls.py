"""A bound on the calls of layers: the plan has room for it, and what goes beyond is told."""

from dataclasses import replace

import pytest

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from tests.tables import some
from tests.training.stream.both_loops import StreamedRun, plan
from tests.training.stream.routed_models import EarlyExit, StochasticDepth
from tests.training.stream.test_routed_depth import OPTIONS, run_of


def test_more_calls_have_room_on_the_device() -> None:
    run = run_of(EarlyExit, depths=(2,))
    few, many = (plan(run, replace(OPTIONS, most_layer_calls=most)) for most in (None, 7))
    more_bytes = many.plan.predicted_peak_bytes - few.plan.predicted_peak_bytes
    assert more_bytes == 4 * max(few.plan.dry.activation_bytes)


def test_a_bound_below_what_the_model_needs_is_refused_before_anything_runs() -> None:
    with pytest.raises(OpenwaferError, match=r"calls 5 layers, 'layers.3' behind the 3 that"):
        plan(run_of(EarlyExit, depths=(4,)), replace(OPTIONS, most_layer_calls=3))


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="expected above 0, found 0"):
        replace(OPTIONS, most_layer_calls=0)


def test_a_pass_that_goes_beyond_is_refused_at_the_call() -> None:
    run = run_of(EarlyExit, depths=(2,))
    planned = plan(run, replace(OPTIONS, most_layer_calls=3))
    streamed = StreamedRun(run_of(EarlyExit, depths=(5,)), planned)
    try:
        with pytest.raises(OpenwaferError, match=r"calls 4 layers, 'layers.3' behind the 3"):
            streamed.step(0)
    finally:
        streamed.close()


def test_a_pass_without_room_for_its_calls_is_told_what_gives_room() -> None:
    run = run_of(EarlyExit, depths=(1,))
    least = plan(run, OPTIONS).plan.predicted_peak_bytes
    streamed = StreamedRun(run_of(EarlyExit, depths=(6,)), plan(run, OPTIONS, budget=least))
    try:
        with pytest.raises(OpenwaferError, match=r"set streaming.most_layer_calls to the most"):
            streamed.step(0)
    finally:
        streamed.close()


@pytest.mark.parametrize("kind", some([EarlyExit, StochasticDepth], EarlyExit))
def test_each_micro_batch_has_room_for_as_many_calls(kind: type[EarlyExit]) -> None:
    run = replace(run_of(kind), num_micro_batches=3)
    streamed = StreamedRun(run, plan(run, replace(OPTIONS, most_layer_calls=7)))
    try:
        # They part, so that some pass a layer that others have passed before them.
        for step in range(4):
            streamed.step(step, is_watched=True)
            assert streamed.peak_bytes <= streamed.planned.plan.predicted_peak_bytes
    finally:
        streamed.close()
