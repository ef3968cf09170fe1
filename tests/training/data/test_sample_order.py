"""The order of samples is a permutation of each epoch, and a function of seed and position."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.data.sample_order import permute, sample_ids

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
SEEDS = st.integers(-(2**70), 2**70)


def plain_mix(word: int) -> int:
    word = (word + GOLDEN) % WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def plain_sample(position: int, num_samples: int, seed: int) -> int:
    """The order in Python's own integers, one position at a time; see docs/guide/data.md."""
    epoch, place = divmod(position, num_samples)
    key = plain_mix((plain_mix(seed) + epoch) % WORD)
    rows = next(rows for rows in itertools.count(1) if rows * rows >= num_samples)
    columns = -(-num_samples // rows)
    while True:
        row, column = divmod(place, columns)
        for number in range(1, 17):
            round_key = plain_mix((key + number * GOLDEN) % WORD)
            if number % 2:
                row = (row + plain_mix(column ^ round_key)) % rows
            else:
                column = (column + plain_mix(row ^ round_key)) % columns
        place = row * columns + column
        if place < num_samples:
            return place


@given(st.integers(1, 2000), st.integers(0, 2**40), SEEDS)
def test_every_epoch_holds_every_sample_once(num_samples: int, epoch: int, seed: int) -> None:
    positions = np.arange(epoch * num_samples, (epoch + 1) * num_samples)
    assert sorted(sample_ids(positions, num_samples, seed)) == list(range(num_samples))


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_the_permutation_stays_in_range_and_merges_nothing(
    size: int, key: int, data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50))
    keys = np.full(len(indices), key, np.uint64)
    images = permute(np.array(indices, np.int64), size, keys).tolist()
    assert len(set(images)) == len(indices)
    assert all(0 <= image < size for image in images)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(1, 999), SEEDS)
def test_a_position_gets_its_sample_whatever_else_is_asked(
    positions: list[int], num_samples: int, seed: int
) -> None:
    in_one_call = sample_ids(np.array(positions), num_samples, seed)
    alone = [sample_ids(np.array([position]), num_samples, seed)[0] for position in positions]
    assert in_one_call.tolist() == alone


def test_epochs_differ() -> None:
    first, second = np.split(sample_ids(np.arange(200), 100, seed=0), 2)
    assert (first == second).sum() < 10


def test_seeds_differ() -> None:
    orders = [sample_ids(np.arange(100), 100, seed) for seed in (0, 1)]
    assert (orders[0] == orders[1]).sum() < 10


def test_all_orders_of_five_samples_are_equally_frequent() -> None:
    num_epochs = 60_000
    epochs = sample_ids(np.arange(5 * num_epochs), 5, seed=1).reshape(num_epochs, 5)
    counts = Counter(map(tuple, epochs.tolist()))
    expected = num_epochs / 120
    orders = itertools.permutations(range(5))
    chi_square = sum((counts[order] - expected) ** 2 / expected for order in orders)
    # 99.9% of the chi-square distribution with 119 degrees of freedom lies below 172.
    assert chi_square < 172


@given(st.integers(0, 10**6), st.integers(1, 999), st.integers(0, 2**64 - 1))
def test_the_order_is_the_documented_one(position: int, num_samples: int, seed: int) -> None:
    found = sample_ids(np.array([position]), num_samples, seed)
    assert found.tolist() == [plain_sample(position, num_samples, seed)]
