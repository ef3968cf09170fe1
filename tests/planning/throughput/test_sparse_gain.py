"""What skipping zeros gains, beside cores whose cycles are counted one by one."""

import numpy as np
import pytest

from openwafer.planning.systems import CS2, CS3, Fabric
from openwafer.planning.throughput import (
    core_rate,
    folding_tokens,
    greatest_gain,
    row_folding,
    sparse_gain,
)

WIDTH = 12288
"""Features of the GPT-3 layer whose gain was published."""


def fabric_of(system: object) -> Fabric:
    fabric = getattr(system, "fabric", None)
    assert isinstance(fabric, Fabric)
    return fabric


WSE_2, WSE_3 = fabric_of(CS2), fabric_of(CS3)


def counted_cycles(kept: np.ndarray, rows: int, folding: int) -> int:
    """Cycles of the columns of one fold: outputs x features, True where a weight is not zero."""
    cores = np.array_split(kept, rows // folding, axis=1)
    return int(sum((core.sum(axis=1) + 4).sum() for core in cores))


@pytest.mark.parametrize("folding", [1, 2, 7, 14])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99])
def test_the_gain_is_that_of_counted_cycles(folding: int, sparsity: float) -> None:
    rows = int(WSE_2.rows.value)
    features = 3 * rows
    kept = np.random.default_rng(0).random((400, features)) >= sparsity
    dense = counted_cycles(np.ones_like(kept), rows, folding)
    counted = dense / counted_cycles(kept, rows, folding)
    assert sparse_gain(features, folding, sparsity, WSE_2) == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize(
    ("folding", "gain", "digit"), [(1, 3.1, 0.05), (30, 9.1, 0.05), (994, 9.97, 0.005)]
)
def test_the_gain_at_90_percent_zeros_follows_the_folding(
    folding: float, gain: float, digit: float
) -> None:
    assert sparse_gain(WIDTH, folding, 0.9, WSE_2) == pytest.approx(gain, abs=digit)


def test_the_gain_of_gpt_3_ends_near_3000() -> None:
    assert greatest_gain(WIDTH, WSE_2.rows.value, WSE_2) == pytest.approx(3073)


def test_without_zeros_nothing_is_gained() -> None:
    assert sparse_gain(WIDTH, 5, 0.0, WSE_2) == 1


def test_a_core_without_partial_sums_to_speak_of_is_busy_all_the_time() -> None:
    assert core_rate(WIDTH, WSE_2.rows.value, 0.0, WSE_2) == pytest.approx(1, abs=4 / WIDTH)


def test_90000_tokens_fold_30_rows() -> None:
    assert folding_tokens(30, WSE_2) == 90_000
    assert row_folding(90_000, WSE_2) == 30


@pytest.mark.parametrize(("tokens", "folding"), [(1, 1), (3000, 1), (1e9, 994)])
def test_at_least_one_row_and_at_most_all_are_folded(tokens: float, folding: float) -> None:
    assert row_folding(tokens, WSE_2) == folding


def test_wider_cores_need_more_tokens_for_the_same_folding() -> None:
    assert folding_tokens(30, WSE_3) / folding_tokens(30, WSE_2) == pytest.approx(2 * 755 / 750)
