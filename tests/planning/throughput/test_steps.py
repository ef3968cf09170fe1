"""The time of a step on several systems: what is shared, and what comes on top."""

import math

import pytest

from openwafer.planning.systems import CS2, H200
from openwafer.planning.throughput import Setting, StepTime, step_time, transformer
from openwafer.planning.throughput.steps import update_seconds

GPT_3 = transformer(175e9, 96, 12288, 2048)
SETTING = Setting(0.3)


def step(tokens: float, num_systems: int = 1, micro_batches: int = 1) -> StepTime:
    return step_time(CS2, GPT_3, tokens, SETTING, num_systems, micro_batches)


def test_systems_share_the_tokens_and_work_at_the_same_time() -> None:
    assert step(16 * 1e5, 16).passes_seconds == pytest.approx(step(1e5).passes_seconds)


def test_a_fixed_batch_is_done_in_proportion_until_tokens_run_short() -> None:
    """3.2M tokens are 11,560 on each of 277 systems."""
    one, half, most, beyond = (step(3.2e6, n).passes_seconds for n in (1, 2, 270, 540))
    assert one / half == pytest.approx(2)
    assert one / most == pytest.approx(270, rel=0.03)
    assert one / beyond == pytest.approx(277, rel=0.03)


def test_micro_batches_stream_the_weights_again() -> None:
    whole, parts = step(1e4), step(1e4, micro_batches=4)
    assert parts.passes_seconds == pytest.approx(4 * whole.passes_seconds)


def test_recomputation_is_a_forward_more() -> None:
    once = step_time(CS2, GPT_3, 1e6, SETTING).passes_seconds
    twice, thrice = (
        step_time(CS2, GPT_3, 1e6, Setting(0.3, forwards_again=n)).passes_seconds for n in (1, 2)
    )
    assert (twice / once, thrice / once) == pytest.approx((4 / 3, 5 / 3))


def test_adam_moves_36_bytes_a_weight_at_4_terabytes_a_second() -> None:
    assert update_seconds(CS2, GPT_3, SETTING) == pytest.approx(175e9 * 36 / 4e12)


def test_updates_limit_a_step_that_is_shorter_than_they_are() -> None:
    model = transformer(1e9, 1, 32768)
    short = StepTime(step_time(CS2, model, 1e3, SETTING).passes, 1, 5.0, 0.1)
    assert (short.seconds, short.limit) == (5.1, "store")


def test_the_tail_grows_with_the_logarithm_of_the_systems() -> None:
    tails = [step(1e5, n).tail_seconds for n in (1, 2, 16, 192)]
    added = [(tail - tails[0]) / (2 * CS2.hop.value) for tail in tails]
    assert added == pytest.approx([0, 1, 4, math.ceil(math.log2(192))])


def test_replicas_that_hold_the_weights_sum_gradients_in_a_ring() -> None:
    """Behind the backward of a token, which is two thirds of 6e9 FLOP, hardly any of it hides."""
    model, setting = transformer(1e9, 24, 2048), Setting(0.4, is_resident=True)
    alone, ring = (step_time(H200, model, n, setting, n) for n in (1, 8))
    backward = 2 * max(2e9 / (0.4 * 989.5e12), 2e9 / 4.8e12)
    assert alone.tail_seconds == 0
    assert ring.tail_seconds == pytest.approx(
        2 * 7 / 8 * 2e9 / 450e9 - backward + 6 * H200.hop.value
    )


def test_a_ring_hides_behind_a_backward_but_for_one_layer() -> None:
    model, setting = transformer(1e9, 24, 2048), Setting(0.4, is_resident=True)
    ring = 2 * 15 / 16 * 2e9 / 50e9
    found = step_time(H200, model, 16e4, setting, 16).tail_seconds
    assert found == pytest.approx(ring / 24 + 8 * H200.hop.value)


def test_the_limit_is_what_most_of_a_step_waits_for() -> None:
    assert step(1e5).limit == "compute"
    assert step(1e3).limit == "stream"
