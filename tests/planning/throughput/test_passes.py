"""The time of a pass: which resource limits it, and where the limits meet."""

import pytest

from openwafer.planning.systems import CS1, CS2, CS3, H200, System
from openwafer.planning.throughput import (
    Pass,
    Resource,
    Setting,
    balance_tokens,
    pass_time,
    transformer,
)
from openwafer.planning.throughput.passes import broadcast_seconds

GPT_3 = transformer(175e9, 96, 12288, 2048)


@pytest.mark.parametrize(
    ("system", "utilisation", "tokens"),
    [(CS2, 1.0, 38_500), (CS2, 0.3, 11_600), (CS3, 1.0, 84_000), (CS3, 0.3, 25_200)],
)
def test_balance_tokens_are_those_of_the_chips(
    system: System, utilisation: float, tokens: float
) -> None:
    assert balance_tokens(system, utilisation) == pytest.approx(tokens, abs=50)


def test_tags_double_the_balance_tokens() -> None:
    assert balance_tokens(CS2, 1.0, 4) == 2 * balance_tokens(CS2, 1.0)


@pytest.mark.parametrize("system", [CS2, CS3, H200], ids=lambda system: system.name)
@pytest.mark.parametrize("parameters", [1e8, 1e12])
def test_below_the_balance_weights_limit_and_above_it_products(
    system: System, parameters: float
) -> None:
    model, setting = transformer(parameters, 32, 4096), Setting(0.3)
    balance = balance_tokens(system, 0.3)
    below, above = (pass_time(system, model, f * balance, setting) for f in (0.99, 1.01))
    assert (below.limit, above.limit) == (Resource.STREAM, Resource.COMPUTE)


def test_a_weight_pass_of_120_trillion_weights_takes_1600_seconds() -> None:
    time = pass_time(CS2, transformer(120e12, 1000, 100_000), 200, Setting(1.0))
    assert time.limit is Resource.STREAM
    assert time.seconds == pytest.approx(1600)


def test_three_passes_do_6_operations_a_weight_and_token() -> None:
    model, setting = transformer(1e9, 10, 2000), Setting(1.0)
    passes = (Pass.FORWARD, Pass.ACTIVATION_GRADIENTS, Pass.WEIGHT_GRADIENTS)
    times = [pass_time(CS2, model, 1e6, setting, which) for which in passes]
    compute = sum(time.by_resource[Resource.COMPUTE] for time in times)
    assert compute * CS2.peak.value == pytest.approx(6 * 1e9 * 1e6)


def test_attention_counts_12_layers_width_and_length_a_token() -> None:
    dense = transformer(175e9, 96, 12288)
    assert GPT_3.flops_per_token - dense.flops_per_token == 12 * 96 * 12288 * 2048


def test_sparse_weights_stream_their_share_with_tags() -> None:
    dense, sparse = (
        pass_time(CS2, GPT_3, 1e5, Setting(0.3, sparsity)).by_resource[Resource.STREAM]
        for sparsity in (0.0, 0.9)
    )
    assert sparse / dense == pytest.approx(0.1 * 4 / 2)


def test_a_gpu_computes_zeros_as_other_numbers() -> None:
    dense, sparse = (
        pass_time(H200, GPT_3, 1e5, Setting(0.4, sparsity)).by_resource[Resource.COMPUTE]
        for sparsity in (0.0, 0.9)
    )
    assert sparse == dense


def test_who_holds_the_weights_streams_none() -> None:
    time = pass_time(CS1, transformer(1e8, 12, 768), 1e4, Setting(0.3, is_resident=True))
    assert Resource.STREAM not in time.by_resource
    assert time.by_resource[Resource.MEMORY] == pytest.approx(2e8 / 9e15)


def test_a_row_of_cores_passes_a_wavelet_on_each_cycle() -> None:
    """994 rows of 750 cores: 10 wavelets a row, 750 hops, 4 cycles of ramps."""
    assert CS2.fabric is not None
    seconds = broadcast_seconds(9940, CS2.fabric)
    assert seconds * 0.85e9 == pytest.approx(10 + 750 + 4)


def test_the_fabric_takes_weights_faster_than_the_link_brings_them() -> None:
    time = pass_time(CS2, GPT_3, 1e5, Setting(0.3)).by_resource
    assert time[Resource.FABRIC] < 0.2 * time[Resource.STREAM]
